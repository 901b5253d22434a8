# SPDX-License-Identifier: Apache-2.0
"""Triton's response cache: which models may use it, and their versions.

The cache key is a model's name, its version and the bytes of its inputs. Entries survive a reload.
The version of a cached model is therefore derived from its content, and an ensemble in front of it
always requests all outputs (decision 18).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonctl.checks.analysis.cache_key import CachedInput, inputs_with_ambiguous_shape
from tritonctl.checks.repository import MAX_VERSION
from tritonctl.engines.builds.engine import Artefact
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import sha256
from tritonctl.protocol.model_config import Config, is_cached, is_decoupled, steps_of
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.server_environment import requirement_files

# Tensor fields that clients see.
_PUBLIC = ("name", "data_type", "dims", "optional")


def add_cache(
    planned: Sequence[PlannedModel], name: str, cached: str, header: str
) -> list[PlannedModel]:
    """Rename the public model to `cached`, enable its cache and add an ensemble in front of it.

    `planned` are all models of the project's model `name`. Raises ConfigurationError if Triton
    refuses the cache or would confuse requests.
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
    front = to_pbtxt(_cache_ensemble(configs[name], cached), header=header)
    return [*behind, PlannedModel(name, name, front, ())]


def _cache_ensemble(config: Config, cached: str) -> dict[str, Any]:
    """Return an ensemble with the tensors of `cached` that always requests all its outputs.

    Triton caches only the outputs that the first request asks for, and returns them to later
    requests for other outputs.
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
    """Return the configuration without a response cache."""
    return {key: value for key, value in config.items() if key != "response_cache"}


def with_content_versions(
    models: Sequence[PlannedModel],
    artefacts: Mapping[str, Artefact],
    backends: Iterable[PythonBackend],
) -> list[PlannedModel]:
    """Give every model of a cached project model a version derived from its content."""
    configs = {model.name: parse_pbtxt(model.config) for model in models}
    owners = {model.owner for model in models if is_cached(configs[model.name])}
    packages = [("", file) for file in requirement_files([*backends])] if owners else []
    versions: dict[str, str] = {}
    for owner in owners:
        owner_models = [model for model in models if model.owner == owner]
        digests = _digests(artefacts[owner]) if owner in artefacts else {}
        files = [
            (f"{model.name}/{place}", file) for model in owner_models for file, place in model.files
        ]
        parts = {model.name: configs[model.name] for model in owner_models}
        _refuse_foreign_steps(owner, parts)
        versions[owner] = content_version(parts.values(), [*files, *packages], digests)
    return [replace(model, version=versions.get(model.owner, model.version)) for model in models]


def _digests(artefact: Artefact) -> dict[Path, str]:
    return {artefact.folder / file.path: file.sha256 for file in artefact.manifest.result.files}


def content_version(
    configs: Iterable[Config],
    files: Iterable[tuple[str, Path]],
    digests: Mapping[Path, str],
) -> str:
    """Return the version of models with this content: settings, engines and code.

    `files` are pairs of path in the repository and source file. `digests` are known SHA-256 of
    sources; other files are read. Equal content has an equal version. Raises OSError.
    """
    record = {
        "configs": [dict(config) for config in configs],
        "files": sorted((place, digests.get(file) or sha256(file)) for place, file in files),
    }
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).digest()
    return str(int.from_bytes(digest[:8]) % MAX_VERSION + 1)


def _refuse_uncacheable(name: str, configs: Mapping[str, Config]) -> None:
    """Raise ConfigurationError if the model `name` with these configurations is uncacheable."""
    location, remedy = f"models.{name}.serving.cache", "remove `cache: true`"
    if obstacle := _cache_obstacle(configs):
        raise ConfigurationError(f"{location}: {obstacle}", remedy=remedy)
    if shapeless_inputs := inputs_with_ambiguous_shape(
        _inputs(configs[name]), _max_batch(configs[name])
    ):
        raise ConfigurationError(
            f"{location}: the cache compares inputs by their bytes, and those of "
            f"{', '.join(shapeless_inputs)} lack the shape: [2, 8] and [4, 4] would share an "
            "answer",
            remedy=f"give the graph fixed shapes, set `engine.max_batch_size: 1`, or {remedy}",
        )


def _refuse_foreign_steps(owner: str, configs: Mapping[str, Config]) -> None:
    """Raise ConfigurationError for a step outside `configs`: the version would not cover it."""
    steps = [step for config in configs.values() for step in steps_of(config)]
    if foreign_steps := [step for step in steps if step not in configs]:
        raise ConfigurationError(
            f"{owner} has a response cache, and its step {foreign_steps[0]} is a separate model: "
            "reloading that would leave its old answers in the cache",
            remedy=f"remove the cache of {owner}, or move it to {foreign_steps[0]}",
        )


def _cache_obstacle(configs: Mapping[str, Config]) -> str | None:
    """Return why a request does not determine the answer of these models; None if it does."""
    for name, config in configs.items():
        if is_decoupled(config):
            return f"{name} streams its answers, and Triton caches complete ones only"
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
