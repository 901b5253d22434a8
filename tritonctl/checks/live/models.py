# SPDX-License-Identifier: Apache-2.0
"""Models of a repository against those that a server has: there, ready, which versions, how set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tritonctl.checks.analysis.declared import type_name
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.findings import Hit
from tritonctl.checks.live import rules
from tritonctl.checks.live.drift import Difference, differences
from tritonctl.checks.live.rules import LiveRule
from tritonctl.checks.repository import Model
from tritonctl.protocol.datatypes import BY_CONFIG_NAME
from tritonctl.protocol.server_description import (
    IndexEntry,
    ServedModel,
    ServerDescription,
    TensorMetadata,
)

_AGAIN = (
    "load the model again so that it takes effect (`tritonctl reload`, model control, or a new "
    "start), or put the file back"
)
# Triton says the same of a model without a version, but not this.
_UNKNOWN = "is not found"
_UNLOADED = "unloaded"
_NOT_LOADED = "nobody asked for it, or its config.pbtxt could not be read"

Found = tuple[LiveRule, Hit]


def compare(model: Model, seen: ServerDescription) -> Iterator[Found]:
    """Everything about one model of the repository."""
    yield from _state(model, seen)
    served = seen.models.get(model.name)
    if served is not None and served.config is not None:
        config = model_config_schema().ModelConfig.FromString(served.config)
        if model.has_config:
            drift = differences(model.name, model.config, config, completes=_completes(model))
            yield from _drift(drift, model)
        yield from _metadata(served, config)


def of_no_repository(names: Collection[str], seen: ServerDescription) -> Iterator[Found]:
    """Models that are served and that no repository has."""
    for name in sorted({entry.name for entry in seen.index or () if entry.state == "READY"}):
        if name not in names:
            yield (
                rules.ELSEWHERE,
                Hit(
                    f"{name} is served and is in no repository that was named",
                    "name all repositories of the server, or unload the model",
                ),
            )


def _state(model: Model, seen: ServerDescription) -> Iterator[Found]:
    if seen.index is None:
        yield from _without_index(model, seen)
        return
    entries = [entry for entry in seen.index if entry.name == model.name]
    ready = {entry.version for entry in entries if entry.state == "READY"}
    if ready:
        yield from _versions(model, ready, entries)
    elif not entries:
        yield rules.NOT_SERVED, _absent(model)
    elif all(entry.state == "" or entry.reason == _UNLOADED for entry in entries):
        unloaded = any(entry.reason == _UNLOADED for entry in entries)
        state = "was unloaded" if unloaded else f"is not loaded: {_NOT_LOADED}"
        message = f"{model.name} {state}"
        yield rules.NOT_LOADED, Hit(message, "load it, or take it out of the repository")
    else:
        yield rules.NOT_READY, _unready(model, next(e for e in entries if e.state))


def _without_index(model: Model, seen: ServerDescription) -> Iterator[Found]:
    """The index takes a token: clients' own calls say less, and give no reasons."""
    if model.name in seen.models:
        yield from _versions(model, {*seen.models[model.name].versions}, ())
    elif _UNKNOWN in seen.unserved.get(model.name, ""):
        yield rules.NOT_SERVED, _absent(model)
    else:
        words = seen.unserved.get(model.name, "")
        hit = Hit(f"{model.name} does not answer: {words}", "look at the server's log")
        yield rules.NOT_READY, hit


def _absent(model: Model) -> Hit:
    return Hit(
        f"the server does not know {model.name}",
        "let the server read this repository (--model-repository), and start it again unless it "
        "polls",
    )


def _unready(model: Model, entry: IndexEntry) -> Hit:
    version = f" version {entry.version}" if entry.version else ""
    # Of Python's traceback the first lines tell what is wrong.
    words = entry.reason.split("\n\nAt:")[0].strip()
    reason = f": {words}" if words else ""
    return Hit(
        f"{model.name}{version} is {entry.state}{reason}",
        "correct what the reason says and load it again; the server's log says more",
    )


def _versions(model: Model, ready: set[str], entries: Iterable[IndexEntry]) -> Iterator[Found]:
    wanted = _wanted(model)
    if wanted is None:
        return
    states = {entry.version: entry for entry in entries}
    span = model.config.name_span("version_policy")
    for version in sorted(wanted - ready):
        if version in states:
            yield rules.NOT_READY, _unready(model, states[version])
        else:
            message = f"version {version} is not served, but {', '.join(sorted(ready))}"
            yield rules.VERSION_MISSING, Hit(message, _AGAIN, place=version)
    for version in sorted(ready - wanted):
        left = version in map(str, model.versions)
        why = "the version policy leaves it out" if left else "the repository has it no more"
        message = f"version {version} is served, and {why}"
        yield rules.VERSION_LEFT, Hit(message, _AGAIN, span=span if left else None)


def _wanted(model: Model) -> set[str] | None:
    """The versions that a server should serve; None where that is unknown."""
    if model.file is not None and not model.has_config:
        return None
    return {str(version) for version in model.served_versions} or None


def _completes(model: Model) -> bool:
    """Whether anything may have been added to the file: by a backend, or by model.py itself."""
    code = model.code
    if code is not None and code.model_class is not None and not code.model_class.bases:
        return code.method("auto_complete_config") is not None
    return model.backend != "ensemble"


def _drift(differences_: Iterable[Difference], model: Model) -> Iterator[Found]:
    completed = []
    for difference in differences_:
        if difference.kind == "completed":
            completed.append(difference)
        else:
            yield rules.DIFFERS, _differs(difference, model)
    if completed:
        values = "; ".join(f"{one.dotted}: {one.there}" for one in completed)
        fix = "write it down in config.pbtxt, so that a change is seen"
        yield rules.COMPLETED, Hit(f"the server has completed {values}", fix, place="config.pbtxt")


def _differs(one: Difference, model: Model) -> Hit:
    here = f"is {one.here} here" if one.here else "is not set here"
    server = f"has {one.there}" if one.there else "has none"
    span = model.config.name_span(*one.path)
    return Hit(f"{one.dotted} {here}, and the server {server}", _AGAIN, span=span)


def _metadata(served: ServedModel, config: Any) -> Iterator[Found]:
    both = (*config.input, *config.output)
    named = {*served.inputs, *served.outputs}
    configured = {*_tensors(config, both)}
    # Values of shapes have no batch dimension in some releases, and one in others.
    shapes = {one.name for one in both if one.is_shape_tensor}
    named, configured = ({one for one in s if one.name not in shapes} for s in (named, configured))
    if named != configured:
        yield (
            rules.METADATA,
            Hit(
                f"the metadata of {served.name} names {_listed(named - configured)}, and its "
                f"configuration has {_listed(configured - named)}",
                "ask Triton directly, without a proxy; then load the model again",
            ),
        )


def _tensors(config: Any, tensors: Iterable[Any]) -> Iterator[TensorMetadata]:
    batch = (-1,) if config.max_batch_size > 0 else ()
    for one in tensors:
        kind = BY_CONFIG_NAME.get(type_name(one.data_type))
        yield TensorMetadata(one.name, kind.wire if kind else "", (*batch, *one.dims))


def _listed(tensors: Iterable[TensorMetadata]) -> str:
    shown = sorted(f"{one.name} {one.datatype} {list(one.shape)}" for one in tensors)
    return ", ".join(shown) or "no such tensor"
