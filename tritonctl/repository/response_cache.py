# SPDX-License-Identifier: Apache-2.0
"""Triton's response cache: which models may have it, in front of what, as which version.

The key is a model's name, its version and the bytes of its inputs, and nothing is dropped when a
model is loaded again. So models with a cache are served as the version that their content is, and
only ever asked for all their outputs: decision 18.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonctl.checks.analysis.cache_key import CachedInput, shapeless
from tritonctl.checks.repository import LARGEST_VERSION
from tritonctl.engines.build.engine import Artefact
from tritonctl.engines.build.fingerprint import sha256
from tritonctl.errors import ConfigurationError
from tritonctl.protocol.model_config import Config, is_cached, is_decoupled, steps_of
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.server_environment import requirement_files

# Of a tensor, what its readers see: not how a backend wants it.
_PUBLIC = ("name", "data_type", "dims", "optional")


def behind_cache(
    planned: Sequence[PlannedModel], name: str, cached: str, header: str
) -> list[PlannedModel]:
    """The public model with a response cache, as the model `cached`; an ensemble in front of it.

    planned: all models of the project's model `name`. Raises ConfigurationError where Triton would
    refuse the cache, or give an answer to another request.
    """
    configs = {model.name: parse_pbtxt(model.config) for model in planned}
    _refuse_uncacheable(name, configs)
    inner = {**configs[name], "name": cached, "response_cache": {"enable": True}}
    behind = [
        replace(model, name=cached, config=to_pbtxt(inner, header=header))
        if model.name == name
        else model
        for model in planned
    ]
    front = to_pbtxt(_front(configs[name], cached), header=header)
    return [*behind, PlannedModel(name, name, front, ())]


def _front(config: Config, cached: str) -> dict[str, Any]:
    """An ensemble with the tensors of the model `cached`, which it asks for all its outputs.

    Asked directly, a cached model keeps what the first request wanted of them, and gives that to
    whoever wants others.
    """
    tensors = {
        side: [{key: each[key] for key in _PUBLIC if key in each} for each in config[side]]
        for side in ("input", "output")
    }
    maps = {
        f"{side}_map": {each["name"]: each["name"] for each in config[side]} for side in tensors
    }
    return {
        "name": config["name"],
        "platform": "ensemble",
        "max_batch_size": _max_batch(config),
        **tensors,
        "ensemble_scheduling": {"step": [{"model_name": cached, "model_version": -1, **maps}]},
    }


def without_cache(config: Config) -> dict[str, Any]:
    """The same model, answering every request itself."""
    return {key: value for key, value in config.items() if key != "response_cache"}


def versioned(
    models: Sequence[PlannedModel],
    artefacts: Mapping[str, Artefact],
    backends: Iterable[PythonBackend],
) -> list[PlannedModel]:
    """Models of a project's model with a response cache as the version that their content is."""
    configs = {model.name: parse_pbtxt(model.config) for model in models}
    owners = {model.owner for model in models if is_cached(configs[model.name])}
    packages = [("", file) for file in requirement_files([*backends])] if owners else []
    versions: dict[str, str] = {}
    for owner in owners:
        own = [model for model in models if model.owner == owner]
        digests = _digests(artefacts[owner]) if owner in artefacts else {}
        files = [(f"{model.name}/{place}", file) for model in own for file, place in model.files]
        parts = {model.name: configs[model.name] for model in own}
        _refuse_strangers(owner, parts)
        versions[owner] = content_version(parts.values(), [*files, *packages], digests)
    return [replace(model, version=versions.get(model.owner, model.version)) for model in models]


def _digests(artefact: Artefact) -> dict[Path, str]:
    return {artefact.folder / file.path: file.sha256 for file in artefact.manifest.result.files}


def content_version(
    configs: Iterable[Config],
    files: Iterable[tuple[str, Path]],
    digests: Mapping[Path, str],
) -> str:
    """The version of models with this content: another one for other settings, engines or code.

    files: place in the repository and source of each. digests: SHA-256 of sources where it is
    known; the others are read. Equal content, equal version. Raises OSError.
    """
    record = {
        "configs": [dict(config) for config in configs],
        "files": sorted((place, digests.get(file) or sha256(file)) for place, file in files),
    }
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).digest()
    return str(int.from_bytes(digest[:8]) % LARGEST_VERSION + 1)


def _refuse_uncacheable(name: str, configs: Mapping[str, Config]) -> None:
    """Refuse a cache for model `name`, with the configurations of it and its steps."""
    where, remedy = f"models.{name}.serving.cache", "remove `cache: true`"
    if why := _not_one_answer(configs):
        raise ConfigurationError(f"{where}: {why}", remedy=remedy)
    if confused := shapeless(_inputs(configs[name]), _max_batch(configs[name])):
        raise ConfigurationError(
            f"{where}: the cache knows an input by its bytes alone, and those of "
            f"{', '.join(confused)} do not tell its shape: [2, 8] and [4, 4] would get one answer",
            remedy=f"give the graph fixed shapes, set `engine.max_batch_size: 1`, or {remedy}",
        )


def _refuse_strangers(owner: str, configs: Mapping[str, Config]) -> None:
    """A version that is the content of `configs` says nothing of a step that is none of them."""
    steps = [step for config in configs.values() for step in steps_of(config)]
    if strangers := [step for step in steps if step not in configs]:
        raise ConfigurationError(
            f"{owner} has a response cache, and its step {strangers[0]} is a model of its own: "
            "loaded again, that would leave its old answers in the cache",
            remedy=f"remove the cache of {owner}, or give it to {strangers[0]}",
        )


def _not_one_answer(configs: Mapping[str, Config]) -> str | None:
    """Why these models do not give one answer to one request, whatever came before."""
    for name, config in configs.items():
        if is_decoupled(config):
            return f"{name} streams its answers, and Triton caches whole ones only"
        if "sequence_batching" in config:
            return f"{name} keeps a sequence's state: answers depend on earlier requests"
    return None


def _inputs(config: Config) -> Sequence[CachedInput]:
    return [
        CachedInput(each["name"], [int(dim) for dim in each["dims"]], bool(each.get("optional")))
        for each in config.get("input", ())
    ]


def _max_batch(config: Config) -> int:
    return int(config.get("max_batch_size", 0))
