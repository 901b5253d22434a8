# SPDX-License-Identifier: Apache-2.0
"""The project's ensembles without an engine: configurations of the ensembles and their steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonctl.engines.builds.engine import Artefact
from tritonctl.errors import ConfigurationError, choices
from tritonctl.project.schema import ComposedServing, Project
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.ensembles import (
    ENGINE_STEP,
    StepInterface,
    check_graph,
    drop_unread_inputs,
    ensemble_for,
    lower,
    step_model_name,
    task_of,
)
from tritonctl.repository.interfaces import step_backends, step_public_models
from tritonctl.repository.model_config import ModelConfig
from tritonctl.repository.planned import PlannedModel, batching_fields, config_text, header_text

_ENSEMBLE = "ensemble"


def composed_models(
    project: Project, name: str, artefacts: Mapping[str, Artefact]
) -> tuple[list[PlannedModel], dict[str, PythonBackend]]:
    """Plan the folders of one of the project's `ensembles`, steps first; return their backends too.

    Raises ConfigurationError for a graph that Triton would refuse or that needs an engine.
    """
    location, serving = f"ensembles.{name}", project.ensembles[name].serving
    ensemble, source = ensemble_for(task_of(project, name), project.root)
    if ENGINE_STEP in (step.backend for step in ensemble.steps.values()):
        raise ConfigurationError(
            f"{location}: {source.line_of(('steps', ENGINE_STEP))} needs an engine, which "
            "entries of "
            "`ensembles:` do not have",
            remedy="list it under `models:` with a checkpoint and an engine, or make that step "
            "another model of the project: `model: NAME`",
        )
    used = step_backends(ensemble, source, None, project)
    if ensemble.max_batch_size == "engine":
        raise ConfigurationError(
            f"{location}: {source.line_of(('max_batch_size',))} refers to an engine, which "
            "entries of "
            "`ensembles:` do not have",
            remedy="write a number, at most that of its smallest step",
        )
    for step, backend in used.items():
        _refuse_engine_needs(f"{source.line_of(('steps', step, 'backend'))}: step {step}", backend)
    header = header_text(f"ensemble {name}", "settings", serving)
    if ensemble.kind == "model":
        _refuse_unknown_steps(location, serving, list(used))
        [(step, backend)] = used.items()
        return [_step(name, name, step, backend, serving, header)], used
    _refuse_unknown_steps(location, serving, [*used, _ENSEMBLE])
    parts: dict[str, StepInterface] = {**used}
    parts |= step_public_models(ensemble, source, project, artefacts)
    ensemble = drop_unread_inputs(ensemble, parts)
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
        batching = batching_fields(serving, backend.max_queue_delay_microseconds)
    config = ModelConfig(
        name=name,
        backend="python",
        max_batch_size=backend.max_batch_size,
        inputs=backend.input_tensors(backend.max_batch_size),
        outputs=tuple(tensor.as_config_tensor() for tensor in backend.outputs),
        decoupled=backend.decoupled,
        dynamic_batching=batching if batching or backend.max_batch_size > 1 else None,
        # Exactly one: several instances would reorder the responses of a stream.
        instance_group=({"kind": "KIND_CPU", "count": 1},),
        parameters=dict(backend.settings),
    )
    text = config_text(config, serving.config.get(step), header)
    return PlannedModel(name, owner, text, tuple(backend.version_files()))


def _refuse_engine_needs(location: str, backend: PythonBackend) -> None:
    """Raise ConfigurationError for a backend that needs an engine's data."""
    engine_needs = [f"the parameter `{key}`" for key in backend.parameters]
    engine_needs += [f"the folder {folder}/" for folder in backend.files]
    engine_needs += ["its tensors"] if backend.tensors != "declared" else []
    if engine_needs:
        raise ConfigurationError(
            f"{location}: the backend {backend.name} needs {engine_needs[0]} of an engine, which "
            "entries "
            "of `ensembles:` do not have",
            remedy="make it a step of a model under `models:`, or choose another backend",
        )


def _refuse_unknown_steps(location: str, serving: ComposedServing, step_names: list[str]) -> None:
    for step in serving.config:
        if step not in step_names:
            raise ConfigurationError(
                f"{location}.serving.config: unknown step `{step}`",
                remedy=choices(step, step_names, "steps:"),
            )
