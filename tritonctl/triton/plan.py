# SPDX-License-Identifier: Apache-2.0
"""What a model repository shall contain: project + manifests + ensemble → planned models.

Pure: nothing is written here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl import __version__
from tritonctl.engines.building import Artefact, built_engine
from tritonctl.engines.manifest import Manifest
from tritonctl.engines.requests import model_named
from tritonctl.errors import ConfigurationError, RepositoryError
from tritonctl.project import Model, Project, Serving
from tritonctl.project_file import deep_merge
from tritonctl.triton import tensorrtllm
from tritonctl.triton.backends import PythonBackend, backend_named
from tritonctl.triton.engine_queue import batch_of_places, bound_in_engine, engine_batching
from tritonctl.triton.ensembles import (
    Ensemble,
    check_graph,
    ensemble_for,
    fitted,
    fold,
    lower,
    step_model_name,
)
from tritonctl.triton.model_config import ModelConfig
from tritonctl.triton.pbtxt import to_pbtxt
from tritonctl.triton.server_fields import refuse_newer_fields

HEADER = "Rendered by tritonctl"
ENGINE_STEP = "engine"
DETOKENIZER = "detokenizer"
ENSEMBLE = "ensemble"
VERSION_FOLDER = "1"


@dataclass(frozen=True)
class PlannedModel:
    """One folder of the repository: its config.pbtxt and the files of its version folder."""

    name: str
    config: str
    files: tuple[tuple[Path, str], ...]  # (source, path below the version folder)


@dataclass(frozen=True)
class Plan:
    """The models to publish, composing models before the ensembles that need them."""

    models: tuple[PlannedModel, ...]
    backends: tuple[PythonBackend, ...]


def plan_repository(project: Project) -> Plan:
    """Plan all models of a project.

    Raises RepositoryError when an engine has not been built, ConfigurationError for a graph or a
    raw `serving.config` that Triton would refuse.
    """
    models: list[PlannedModel] = []
    backends: dict[str, PythonBackend] = {}
    for name in sorted(project.models):
        planned, used = _plan_model(project, name)
        models += planned
        backends |= {backend.name: backend for backend in used.values()}
    _refuse_collisions(models)
    for planned_model in models:
        refuse_newer_fields(planned_model.name, planned_model.config, project)
    return Plan(tuple(models), tuple(backends[name] for name in sorted(backends)))


def _plan_model(project: Project, name: str) -> tuple[list[PlannedModel], dict[str, PythonBackend]]:
    model = model_named(project, name)
    artefact = built_engine(project, name)
    if model.serving.backend == tensorrtllm.BACKEND:
        return [_plan_cpp_engine(project, name, model, artefact)], {}
    ensemble, source = ensemble_for(model.task, project.root)
    used = step_backends(ensemble, artefact.manifest.python_backend, project)
    ensemble = fitted(ensemble, used)
    check_graph(ensemble, used, source)
    backends = used
    if model.serving.inline_detokenizer:
        ensemble, backends = _inline(name, ensemble, used)
    _refuse_other_steps(name, model, (*ensemble.steps, ENSEMBLE))
    _refuse_unknown_runtime(name, model, used.get(ENGINE_STEP))
    header = _header(name, model, artefact)
    planned = [
        _plan_step(name, step, model, backend, artefact, header)
        for step, backend in backends.items()
    ]
    config = _with_raw(lower(ensemble, name), model.serving.config.get(ENSEMBLE))
    return [*planned, PlannedModel(name, to_pbtxt(config, header=header), ())], used


def _plan_cpp_engine(project: Project, name: str, model: Model, artefact: Artefact) -> PlannedModel:
    """The engine by itself, for NVIDIA's C++ backend."""
    _refuse_other_steps(name, model, (ENGINE_STEP,))
    step = step_model_name(name, ENGINE_STEP)
    folder = project.repository / step / VERSION_FOLDER / "engine"
    config = tensorrtllm.engine_config(name, step, model, artefact.manifest, folder)
    text = to_pbtxt(
        _with_raw(config, model.serving.config.get(ENGINE_STEP)),
        header=_header(name, model, artefact),
    )
    return PlannedModel(step, text, tuple(_artefact_files(artefact, ["engine"])))


def _inline(
    name: str, ensemble: Ensemble, backends: dict[str, PythonBackend]
) -> tuple[Ensemble, dict[str, PythonBackend]]:
    """The engine step takes over the detokenizer step."""
    steps = {step.backend: key for key, step in ensemble.steps.items()}
    if not {ENGINE_STEP, DETOKENIZER} <= steps.keys():
        raise ConfigurationError(
            f"models.{name}.serving.inline_detokenizer: the task {ensemble.task} has no steps "
            f"with the backends {ENGINE_STEP} and {DETOKENIZER}",
            remedy="remove `inline_detokenizer: true`",
        )
    engine, detokenizer = steps[ENGINE_STEP], steps[DETOKENIZER]
    try:
        merged = backends[engine].inlining(backends[detokenizer])
        folded = fold(ensemble, detokenizer, engine)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"models.{name}.serving.inline_detokenizer: {error.problem}", remedy=error.remedy
        ) from error
    return folded, {step: backends[step] for step in folded.steps} | {engine: merged}


def step_backends(
    ensemble: Ensemble, engine_backend: str, project: Project
) -> dict[str, PythonBackend]:
    """The Python backend of each step; the step `engine` is served by the engine's own."""
    return {
        name: backend_named(
            engine_backend if step.backend == ENGINE_STEP else step.backend, project.root
        )
        for name, step in ensemble.steps.items()
    }


def _plan_step(
    name: str, step: str, model: Model, backend: PythonBackend, artefact: Artefact, header: str
) -> PlannedModel:
    config = ModelConfig(
        name=step_model_name(name, step),
        backend="python",
        max_batch_size=_max_batch_size(step, backend, model),
        inputs=backend.input_tensors(),
        outputs=tuple(tensor.tensor() for tensor in backend.outputs),
        decoupled=backend.decoupled,
        dynamic_batching=_dynamic_batching(step, backend, model),
        instance_group=_instance_group(step, model.serving),
        parameters=_parameters(backend, model.serving, artefact.manifest),
    )
    text = to_pbtxt(_with_raw(config, model.serving.config.get(step)), header=header)
    files = [*backend.code(), *_artefact_files(artefact, backend.files)]
    return PlannedModel(config.name, text, tuple(files))


def _with_raw(config: ModelConfig, raw: Mapping[str, Any] | None) -> dict[str, Any]:
    if raw and "name" in raw:
        raise ConfigurationError(
            f"serving.config cannot rename `{config.name}`: Triton wants the folder's name there",
            remedy="remove `name`; rename the model under `models:` instead",
        )
    return deep_merge(config.as_dict(), raw or {})


def _max_batch_size(step: str, backend: PythonBackend, model: Model) -> int:
    if step == ENGINE_STEP:
        return min(backend.max_batch_size, batch_of_places(model.engine.max_batch_size))
    return backend.max_batch_size


def _dynamic_batching(step: str, backend: PythonBackend, model: Model) -> dict[str, Any] | None:
    if not backend.dynamic_batching:
        return None
    if step == ENGINE_STEP:
        return engine_batching(model.serving.queue, model.engine.max_batch_size)
    chosen = model.serving.dynamic_batching.model_dump(exclude_defaults=True)
    batching = {"max_queue_delay_microseconds": backend.max_queue_delay_microseconds} | chosen
    return {key: value for key, value in batching.items() if value}


def _instance_group(step: str, serving: Serving) -> tuple[dict[str, Any], ...]:
    if step == ENGINE_STEP:
        groups = (group.model_dump() for group in serving.instance_group)
        return tuple({k: v for k, v in group.items() if v} for group in groups)
    # Exactly one: several detokenizer instances would scramble the order inside a stream.
    return ({"kind": "KIND_CPU", "count": 1},)


def _kv_blocks(serving: Serving, manifest: Manifest) -> int | None:
    limits, block = manifest.result.limits, manifest.result.runtime.get("block_size")
    if not isinstance(block, int) or limits.max_seq_len is None:
        return None
    # Each sequence ends in a block of its own: round up per sequence, not in total.
    per_sequence = -(-limits.max_seq_len // block)
    if serving.kv_cache_tokens is None:
        return limits.max_batch_size * per_sequence
    if serving.kv_cache_tokens < limits.max_seq_len:
        raise ConfigurationError(
            f"serving.kv_cache_tokens {serving.kv_cache_tokens} holds not even one sequence of "
            f"max_seq_len {limits.max_seq_len}",
            remedy=f"set it to {limits.max_seq_len} or more, or leave it out",
        )
    return -(-serving.kv_cache_tokens // block)


def _fact(manifest: Manifest, name: str) -> object:
    return getattr(manifest.result.model, name, None)


def _runtime(serving: Serving, manifest: Manifest, key: str) -> Any:
    """A setting of the engine's runtime: the project's, else what the builder recorded."""
    return serving.runtime.get(key, manifest.result.runtime.get(key))


def _kv_cache_config(serving: Serving, manifest: Manifest) -> dict[str, Any]:
    """TensorRT-LLM's KvCacheConfig: the artefact's, the project's, and the project's raw fields."""
    own: dict[str, Any] = {"enable_block_reuse": serving.enable_prefix_caching}
    if serving.kv_cache_tokens is not None:
        own["max_tokens"] = serving.kv_cache_tokens
    built = manifest.result.runtime.get("kv_cache_config") or {}
    return {**built, **own, **serving.runtime.get("kv_cache_config", {})}


_Parameter = Callable[[Serving, Manifest], object]

# What `serving.runtime` may set, of backends that have the parameter.
_RUNTIME_SETTINGS = ("gather_generation_logits", "guided_decoding_backend", "kv_cache_config")

# Everything a backend may ask for under [parameters] in its backend.toml.
_PARAMETERS: dict[str, _Parameter] = {
    "max_seq_len": lambda _, manifest: manifest.result.limits.max_seq_len,
    "max_input_len": lambda _, manifest: manifest.result.limits.max_input_len,
    "max_num_seqs": lambda _, manifest: manifest.result.limits.max_batch_size,
    "max_num_batched_tokens": lambda _, manifest: manifest.result.limits.max_num_tokens,
    "num_kv_blocks": _kv_blocks,
    "block_size": lambda _, manifest: manifest.result.runtime.get("block_size"),
    "properties": lambda _, manifest: manifest.result.runtime.get("properties"),
    "enable_prefix_caching": lambda serving, _: serving.enable_prefix_caching,
    "max_queue_size": lambda serving, manifest: bound_in_engine(
        serving.queue, manifest.result.limits.max_batch_size
    ),
    "inline_detokenizer": lambda serving, _: serving.inline_detokenizer,
    "eos_token_ids": lambda _, manifest: _fact(manifest, "eos_token_ids"),
    "vocab_size": lambda _, manifest: _fact(manifest, "vocab_size"),
    "world": lambda serving, manifest: _runtime(serving, manifest, "world"),
    "tensorrt_llm": lambda _, manifest: manifest.result.versions.get("tensorrt_llm", ""),
    "tp_size": lambda _, manifest: manifest.result.limits.tp_size,
    "pp_size": lambda _, manifest: manifest.result.limits.pp_size,
    "kv_cache_config": _kv_cache_config,
    "guided_decoding_backend": lambda serving, manifest: (
        _runtime(serving, manifest, "guided_decoding_backend") or ""
    ),
    "gather_generation_logits": lambda serving, manifest: bool(
        _runtime(serving, manifest, "gather_generation_logits")
    ),
    "lora_adapters": lambda _, manifest: manifest.result.runtime.get("lora_adapters") or {},
    "add_special_tokens": lambda *_: True,
    "skip_special_tokens": lambda *_: True,
}


def _parameters(backend: PythonBackend, serving: Serving, manifest: Manifest) -> dict[str, str]:
    values = {}
    for key in sorted(backend.parameters):
        value = _PARAMETERS[key](serving, manifest) if key in _PARAMETERS else None
        if value is None:
            raise RepositoryError(
                f"backend {backend.name} asks for the parameter `{key}`, which neither the "
                f"project nor the manifest of builder {manifest.builder} gives",
                remedy="make the engine again with `tritonctl build --force`",
            )
        values[key] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return values


def _artefact_files(artefact: Artefact, folders: list[str]) -> list[tuple[Path, str]]:
    return [
        (artefact.folder / file.path, file.path)
        for file in artefact.manifest.result.files
        if file.path.split("/", 1)[0] in folders
    ]


def _header(name: str, model: Model, artefact: Artefact) -> str:
    settings = json.dumps(model.model_dump(mode="json"), sort_keys=True)
    digest = hashlib.sha256(f"{settings}{artefact.manifest.fingerprint}".encode()).hexdigest()
    return (
        f"{HEADER} {__version__} for model {name} (settings and engine {digest[:16]}).\n"
        "Change tritonctl.yaml and render again; edits here are lost."
    )


def _refuse_other_steps(name: str, model: Model, known: tuple[str, ...]) -> None:
    for step in model.serving.config:
        if step not in known:
            raise ConfigurationError(
                f"models.{name}.serving.config: there is no step `{step}`",
                remedy=f"steps: {', '.join(known)}",
            )


def _refuse_unknown_runtime(name: str, model: Model, engine: PythonBackend | None) -> None:
    known = [key for key in _RUNTIME_SETTINGS if engine and key in engine.parameters]
    for key in model.serving.runtime:
        if key not in known:
            raise ConfigurationError(
                f"models.{name}.serving.runtime: the engine of builder {model.engine.builder} has "
                f"no setting `{key}`",
                remedy=f"settings: {', '.join(known) or 'none'}",
            )


def _refuse_collisions(models: list[PlannedModel]) -> None:
    seen: set[str] = set()
    for model in models:
        if model.name in seen:
            raise ConfigurationError(
                f"two models of the project would both be called `{model.name}` in the repository",
                remedy="rename one of them in tritonctl.yaml",
            )
        seen.add(model.name)
