# SPDX-License-Identifier: Apache-2.0
"""Compare a repository's models with a server's: state, versions, configuration and metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tritonctl.checks.analysis.declared import type_name
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.findings import Hit
from tritonctl.checks.live import rules
from tritonctl.checks.live.drift import ConfigDifference, differences
from tritonctl.checks.live.rules import LiveRule
from tritonctl.checks.repository import Model
from tritonctl.protocol.datatypes import BY_CONFIG_NAME
from tritonctl.protocol.server_description import (
    IndexEntry,
    ServedModel,
    ServerDescription,
    TensorMetadata,
)

_RELOAD_FIX = (
    "reload the model to apply the change (`tritonctl reload`, model control, or a restart), or "
    "restore the file"
)
# Part of Triton's message for an unknown model; other messages about models lack it.
_NOT_FOUND_TEXT = "is not found"
_UNLOADED = "unloaded"
_NOT_LOADED_REASON = "no client requested it, or its config.pbtxt could not be read"

LiveHit = tuple[LiveRule, Hit]


def compare_model(model: Model, seen: ServerDescription) -> Iterator[LiveHit]:
    """Yield all differences of one model of the repository."""
    yield from _state(model, seen)
    live_model = seen.models.get(model.name)
    if live_model is not None and live_model.config is not None:
        config = model_config_schema().ModelConfig.FromString(live_model.config)
        if model.has_config:
            drift = differences(model.name, model.config, config, completes=_completes(model))
            yield from _drift(drift, model)
        yield from _metadata(live_model, config)


def unlisted_models(names: Collection[str], seen: ServerDescription) -> Iterator[LiveHit]:
    """Yield the models that the server has and no repository contains."""
    for name in sorted({entry.name for entry in seen.index or () if entry.state == "READY"}):
        if name not in names:
            yield (
                rules.NOT_IN_REPOSITORY,
                Hit(
                    f"the server has {name}, and none of the given repositories does",
                    "name all repositories of the server, or unload the model",
                ),
            )


def _state(model: Model, server: ServerDescription) -> Iterator[LiveHit]:
    if server.index is None:
        yield from _state_from_readiness(model, server)
        return
    entries = [entry for entry in server.index if entry.name == model.name]
    ready = {entry.version for entry in entries if entry.state == "READY"}
    if ready:
        yield from _versions(model, ready, entries)
    elif not entries:
        yield rules.NOT_SERVED, _not_served_hit(model)
    elif all(entry.state == "" or entry.reason == _UNLOADED for entry in entries):
        unloaded = any(entry.reason == _UNLOADED for entry in entries)
        state = "was unloaded" if unloaded else f"is not loaded: {_NOT_LOADED_REASON}"
        message = f"{model.name} {state}"
        yield rules.NOT_LOADED, Hit(message, "load it, or remove it from the repository")
    else:
        yield rules.NOT_READY, _not_ready_hit(model, next(e for e in entries if e.state))


def _state_from_readiness(model: Model, server: ServerDescription) -> Iterator[LiveHit]:
    """Determine the state without the repository index, which requires a token.

    The result has less detail and no reasons.
    """
    if model.name in server.models:
        yield from _versions(model, {*server.models[model.name].versions}, ())
    elif _NOT_FOUND_TEXT in server.unserved.get(model.name, ""):
        yield rules.NOT_SERVED, _not_served_hit(model)
    else:
        reason = server.unserved.get(model.name, "")
        hit = Hit(f"{model.name} does not answer: {reason}", "look at the server's log")
        yield rules.NOT_READY, hit


def _not_served_hit(model: Model) -> Hit:
    return Hit(
        f"the server does not know {model.name}",
        "let the server read this repository (--model-repository), and restart it unless it polls",
    )


def _not_ready_hit(model: Model, entry: IndexEntry) -> Hit:
    version = f" version {entry.version}" if entry.version else ""
    # The first lines of a Python traceback contain the error.
    words = entry.reason.split("\n\nAt:")[0].strip()
    reason = f": {words}" if words else ""
    return Hit(
        f"{model.name}{version} is {entry.state}{reason}",
        "correct the stated error and load the model again; the server's log has details",
    )


def _versions(model: Model, ready: set[str], entries: Iterable[IndexEntry]) -> Iterator[LiveHit]:
    requested = _requested_versions(model)
    if requested is None:
        return
    states = {entry.version: entry for entry in entries}
    span = model.config.name_span("version_policy")
    for version in sorted(requested - ready):
        if version in states:
            yield rules.NOT_READY, _not_ready_hit(model, states[version])
        else:
            live_versions = ", ".join(sorted(ready))
            message = f"version {version} is not served; the server has {live_versions}"
            yield rules.VERSION_MISSING, Hit(message, _RELOAD_FIX, relative_path=version)
    for version in sorted(ready - requested):
        is_excluded = version in map(str, model.versions)
        reason = "version_policy excludes it" if is_excluded else "the repository no longer has it"
        message = f"version {version} is served, and {reason}"
        yield rules.VERSION_LEFT_OVER, Hit(message, _RELOAD_FIX, span=span if is_excluded else None)


def _requested_versions(model: Model) -> set[str] | None:
    """Return the versions that a server should serve; None if unknown."""
    if model.file is not None and not model.has_config:
        return None
    return {str(version) for version in model.served_versions} or None


def _completes(model: Model) -> bool:
    """Whether a backend or model.py may have added fields to the configuration."""
    code = model.code
    if code is not None and code.model_class is not None and not code.model_class.bases:
        return code.method("auto_complete_config") is not None
    return model.backend != "ensemble"


def _drift(differences_: Iterable[ConfigDifference], model: Model) -> Iterator[LiveHit]:
    completed = []
    for difference in differences_:
        if difference.kind == "completed":
            completed.append(difference)
        else:
            yield rules.DIFFERS, _difference_hit(difference, model)
    if completed:
        values = "; ".join(
            f"{completed_difference.dotted}: {completed_difference.remote}"
            for completed_difference in completed
        )
        fix = "write these settings into config.pbtxt, so that changes become visible"
        yield (
            rules.COMPLETED,
            Hit(f"the server has completed {values}", fix, relative_path="config.pbtxt"),
        )


def _difference_hit(difference: ConfigDifference, model: Model) -> Hit:
    local = f"is {difference.local} here" if difference.local else "is not set here"
    remote = f"has {difference.remote}" if difference.remote else "has none"
    span = model.config.name_span(*difference.path)
    return Hit(f"{difference.dotted} {local}, and the server {remote}", _RELOAD_FIX, span=span)


def _metadata(live_model: ServedModel, config: Any) -> Iterator[LiveHit]:
    config_tensors = (*config.input, *config.output)
    metadata_tensors = {*live_model.inputs, *live_model.outputs}
    configured = {*_tensors(config, config_tensors)}
    # Whether shape tensors have a batch dimension depends on the release.
    shape_tensor_names = {tensor.name for tensor in config_tensors if tensor.is_shape_tensor}
    metadata_tensors, configured = (
        {tensor for tensor in s if tensor.name not in shape_tensor_names}
        for s in (metadata_tensors, configured)
    )
    if metadata_tensors != configured:
        yield (
            rules.METADATA,
            Hit(
                f"the metadata of {live_model.name} has "
                f"{_format_tensors(metadata_tensors - configured)}, and its "
                f"configuration has {_format_tensors(configured - metadata_tensors)}",
                "query Triton directly, without a proxy; then load the model again",
            ),
        )


def _tensors(config: Any, tensors: Iterable[Any]) -> Iterator[TensorMetadata]:
    batch = (-1,) if config.max_batch_size > 0 else ()
    for tensor in tensors:
        kind = BY_CONFIG_NAME.get(type_name(tensor.data_type))
        yield TensorMetadata(tensor.name, kind.wire if kind else "", (*batch, *tensor.dims))


def _format_tensors(tensors: Iterable[TensorMetadata]) -> str:
    texts = sorted(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in tensors)
    return ", ".join(texts) or "no such tensor"
