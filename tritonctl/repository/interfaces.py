# SPDX-License-Identifier: Apache-2.0
"""Interfaces of a graph's steps: Python backends, the engine's backend, models of the project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from tritonctl.engines.builds.engine import Artefact
from tritonctl.errors import ConfigurationError, choices
from tritonctl.host import bundled
from tritonctl.project.schema import Project
from tritonctl.project.yaml import YamlSource
from tritonctl.repository import tensorrtllm
from tritonctl.repository.backends import BackendTensor, PythonBackend, backend_named
from tritonctl.repository.ensembles import (
    ENGINE_STEP,
    Ensemble,
    StepInterface,
    drop_unread_inputs,
    ensemble_for,
    task_of,
)
from tritonctl.repository.native import (
    NativeBackend,
    engine_interface,
    native_backend,
    refuse_other_wiring,
)


@dataclass(frozen=True)
class PublicModel:
    """The interface of a public model that is a step of an ensemble."""

    name: str
    inputs: Sequence[BackendTensor]
    outputs: Sequence[BackendTensor]
    decoupled: bool


def step_backends(
    ensemble: Ensemble, source: YamlSource, engine_backend: str | None, project: Project
) -> dict[str, PythonBackend]:
    """Return the Python backend of each step that has one; `engine` uses `engine_backend`.

    Raises ConfigurationError, with the line, for an unknown backend.
    """
    available = bundled.names("python_backends", "/backend.toml", project.root)
    backends = {}
    for name, step in ensemble.steps.items():
        backend_name = engine_backend if step.backend == ENGINE_STEP else step.backend
        if backend_name is None:
            continue
        if backend_name not in available:
            project_backends = [
                each for each in available if (project.root / "python_backends" / each).is_dir()
            ]
            raise ConfigurationError(
                f"{source.line_of(('steps', name, 'backend'))}: unknown backend `{backend_name}`: "
                "neither the project nor tritonctl has "
                f"python_backends/{backend_name}/backend.toml",
                remedy=f"`tritonctl new step {backend_name}` writes one; "
                + choices(backend_name, project_backends or available, "available:"),
            )
        backends[name] = backend_named(backend_name, project.root)
    return backends


def serving_backends(
    name: str,
    ensemble: Ensemble,
    source: YamlSource,
    artefact: Artefact,
    native: NativeBackend | None,
    project: Project,
) -> dict[str, PythonBackend]:
    """Return the backend of each step of model `name` that has one, with the engine's tensors.

    An engine on a native backend of Triton is represented by its interface.
    """
    tensors = artefact.manifest.result.tensors
    batched = artefact.manifest.result.limits.max_batch_size > 0
    if native is None:
        backends = step_backends(ensemble, source, artefact.manifest.python_backend, project)
        return {
            step: backend.with_engine_tensors(tensors, batched=batched)
            for step, backend in backends.items()
        }
    refuse_other_wiring(name, ensemble, native, {tensor.name for tensor in tensors.inputs})
    other_backends = step_backends(ensemble, source, None, project)
    engines = (key for key, step in ensemble.steps.items() if step.backend == ENGINE_STEP)
    interface = engine_interface(native, tensors, batched=batched)
    interfaces = other_backends | dict.fromkeys(engines, interface)
    return {key: interfaces[key] for key in ensemble.steps if key in interfaces}


def step_public_models(
    ensemble: Ensemble, source: YamlSource, project: Project, artefacts: Mapping[str, Artefact]
) -> dict[str, PublicModel]:
    """Return the public model of each step that is one. Raises ConfigurationError."""
    models = {}
    for name, step in ensemble.steps.items():
        if step.model is None:
            continue
        if step.model not in project.public:
            raise ConfigurationError(
                f"{source.line_of(('steps', name, 'model'))}: the project has no model "
                f"`{step.model}`",
                remedy=choices(step.model, project.public, "its models:"),
            )
        models[name] = public_model(project, step.model, artefacts)
    return models


def public_model(project: Project, name: str, artefacts: Mapping[str, Artefact]) -> PublicModel:
    """Return the interface of a public model; graphs are acyclic (`planning_order`).

    Raises ConfigurationError for a model on NVIDIA's C++ backend, which only handles token ids.
    """
    ensemble, source = ensemble_for(task_of(project, name), project.root)
    parts: dict[str, StepInterface] = {}
    if name in project.models:
        chosen = project.models[name].serving.backend
        if chosen == tensorrtllm.BACKEND:
            raise ConfigurationError(
                f"{name} cannot be a step: serving.backend {chosen} serves only its engine",
                remedy="remove `backend: tensorrtllm` from it",
            )
        native = native_backend(chosen, artefacts[name], f"models.{name}")
        parts |= serving_backends(name, ensemble, source, artefacts[name], native, project)
    else:
        parts |= step_backends(ensemble, source, None, project)
    parts |= step_public_models(ensemble, source, project, artefacts)
    if ensemble.kind == "model":
        [single_step] = parts.values()
        return PublicModel(name, single_step.inputs, single_step.outputs, single_step.decoupled)
    fitted_ensemble = drop_unread_inputs(ensemble, parts)
    streams = any(part.decoupled for part in parts.values())
    return PublicModel(name, fitted_ensemble.inputs, fitted_ensemble.outputs, streams)


def models_within(project: Project, name: str) -> list[str]:
    """Return the project's models that are steps of a model or ensemble."""
    ensemble, _ = ensemble_for(task_of(project, name), project.root)
    return [step.model for step in ensemble.steps.values() if step.model]


def planning_order(project: Project) -> list[str]:
    """Return all public names, each after its steps.

    Raises ConfigurationError for models that are steps of each other.
    """
    within = {name: models_within(project, name) for name in project.public}
    try:
        ordered = list(TopologicalSorter(within).static_order())
    except CycleError as error:
        cycle = " → ".join(error.args[1])
        raise ConfigurationError(
            f"models that are steps of each other: {cycle}",
            remedy="take one of these steps out of its ensemble",
        ) from error
    return [name for name in ordered if name in within]
