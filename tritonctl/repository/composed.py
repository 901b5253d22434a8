# SPDX-License-Identifier: Apache-2.0
"""Ensembles of the project without an engine: their configuration, and that of their own steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonctl.engines.build.engine import Artefact
from tritonctl.errors import ConfigurationError, choices
from tritonctl.project.schema import ComposedServing, Project
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.ensembles import (
    ENGINE_STEP,
    StepInterface,
    check_graph,
    ensemble_for,
    fitted,
    lower,
    step_model_name,
    task_of,
)
from tritonctl.repository.interfaces import step_backends, step_public_models
from tritonctl.repository.model_config import ModelConfig
from tritonctl.repository.planned import PlannedModel, batching_of, config_text, header_text

_ENSEMBLE = "ensemble"


def composed_models(
    project: Project, name: str, artefacts: Mapping[str, Artefact]
) -> tuple[list[PlannedModel], dict[str, PythonBackend]]:
    """The folders of one of the project's `ensembles`, its own steps first, and their backends.

    Raises ConfigurationError for a graph that Triton would refuse, or that needs an engine.
    """
    where, serving = f"ensembles.{name}", project.ensembles[name].serving
    ensemble, source = ensemble_for(task_of(project, name), project.root)
    if ENGINE_STEP in (step.backend for step in ensemble.steps.values()):
        raise ConfigurationError(
            f"{where}: {source.where(('steps', ENGINE_STEP))} wants an engine, and what stands "
            "under `ensembles:` has none of its own",
            remedy="list it under `models:` with a checkpoint and an engine, or make that step "
            "another model of the project: `model: NAME`",
        )
    used = step_backends(ensemble, source, None, project)
    if ensemble.max_batch_size == "engine":
        raise ConfigurationError(
            f"{where}: {source.where(('max_batch_size',))} is that of an engine, and what stands "
            "under `ensembles:` has none of its own",
            remedy="write a number, that of its smallest step at most",
        )
    for step, backend in used.items():
        _refuse_engines_own(f"{source.where(('steps', step, 'backend'))}: step {step}", backend)
    header = header_text(f"ensemble {name}", "settings", serving)
    if ensemble.kind == "model":
        _refuse_other_steps(where, serving, list(used))
        [(step, backend)] = used.items()
        return [_step(name, name, step, backend, serving, header)], used
    _refuse_other_steps(where, serving, [*used, _ENSEMBLE])
    parts: dict[str, StepInterface] = {**used}
    parts |= step_public_models(ensemble, source, project, artefacts)
    ensemble = fitted(ensemble, parts)
    check_graph(ensemble, parts, source)
    steps = [
        _step(name, step_model_name(name, step), step, backend, serving, header)
        for step, backend in used.items()
    ]
    text = config_text(lower(ensemble, name, 0), serving.config.get(_ENSEMBLE), header)
    return [*steps, PlannedModel(name, name, text, ())], used


def _step(
    owner: str, name: str, step: str, backend: PythonBackend, serving: ComposedServing, header: str
) -> PlannedModel:
    batching: dict[str, Any] | None = None
    if backend.dynamic_batching:
        batching = batching_of(serving, backend.max_queue_delay_microseconds)
    config = ModelConfig(
        name=name,
        backend="python",
        max_batch_size=backend.max_batch_size,
        inputs=backend.input_tensors(),
        outputs=tuple(tensor.tensor() for tensor in backend.outputs),
        decoupled=backend.decoupled,
        dynamic_batching=batching if batching or backend.max_batch_size > 1 else None,
        # One: several would scramble the responses of a stream before them.
        instance_group=({"kind": "KIND_CPU", "count": 1},),
        parameters=dict(backend.settings),
    )
    text = config_text(config, serving.config.get(step), header)
    return PlannedModel(name, owner, text, tuple(backend.code()))


def _refuse_engines_own(where: str, backend: PythonBackend) -> None:
    """Raise ConfigurationError for what only an engine can give."""
    wanted = [f"the parameter `{key}`" for key in backend.parameters]
    wanted += [f"the folder {folder}/" for folder in backend.files]
    wanted += ["its tensors"] if backend.tensors != "declared" else []
    if wanted:
        raise ConfigurationError(
            f"{where}: the backend {backend.name} takes {wanted[0]} from an engine, and an "
            "ensemble of the project has none",
            remedy="make it a step of a model under `models:`, or choose another backend",
        )


def _refuse_other_steps(where: str, serving: ComposedServing, known: list[str]) -> None:
    for step in serving.config:
        if step not in known:
            raise ConfigurationError(
                f"{where}.serving.config: unknown step `{step}`",
                remedy=choices(step, known, "steps:"),
            )
