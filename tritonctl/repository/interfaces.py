# SPDX-License-Identifier: Apache-2.0
"""What the steps of a graph are: Python backends, the engine's own, other models of the project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from tritonctl.engines.build.engine import Artefact
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
    ensemble_for,
    fitted,
    task_of,
)
from tritonctl.repository.native import (
    NativeBackend,
    interface,
    native_backend,
    refuse_other_wiring,
)


@dataclass(frozen=True)
class PublicModel:
    """A public model of the project, as an ensemble sees it that has it for a step."""

    name: str
    inputs: Sequence[BackendTensor]
    outputs: Sequence[BackendTensor]
    decoupled: bool


def step_backends(
    ensemble: Ensemble, source: YamlSource, engine_backend: str | None, project: Project
) -> dict[str, PythonBackend]:
    """The Python backend of each step that has one; `engine` is served by the engine's own.

    Raises ConfigurationError for an unknown one, with its line.
    """
    known = bundled.names("python_backends", "/backend.toml", project.root)
    found = {}
    for name, step in ensemble.steps.items():
        wanted = engine_backend if step.backend == ENGINE_STEP else step.backend
        if wanted is None:
            continue
        if wanted not in known:
            own = [each for each in known if (project.root / "python_backends" / each).is_dir()]
            raise ConfigurationError(
                f"{source.where(('steps', name, 'backend'))}: there is no backend `{wanted}`: "
                f"neither the project nor tritonctl has python_backends/{wanted}/backend.toml",
                remedy=f"`tritonctl new step {wanted}` writes one; "
                + choices(wanted, own or known, "there are"),
            )
        found[name] = backend_named(wanted, project.root)
    return found


def serving_backends(
    name: str,
    ensemble: Ensemble,
    source: YamlSource,
    artefact: Artefact,
    native: NativeBackend | None,
    project: Project,
) -> dict[str, PythonBackend]:
    """The backend of each step of model `name` that has one, with its engine's tensors.

    Of an engine that Triton's own backend serves, what is seen of it.
    """
    tensors = artefact.manifest.result.tensors
    if native is None:
        named = step_backends(ensemble, source, artefact.manifest.python_backend, project)
        return {step: backend.serving(tensors) for step, backend in named.items()}
    refuse_other_wiring(name, ensemble, native, {tensor.name for tensor in tensors.inputs})
    others = step_backends(ensemble, source, None, project)
    engines = (key for key, step in ensemble.steps.items() if step.backend == ENGINE_STEP)
    seen = others | dict.fromkeys(engines, interface(native, tensors))
    return {key: seen[key] for key in ensemble.steps if key in seen}


def step_public_models(
    ensemble: Ensemble, source: YamlSource, project: Project, artefacts: Mapping[str, Artefact]
) -> dict[str, PublicModel]:
    """The model of each step that is one. Raises ConfigurationError for an unknown one."""
    found = {}
    for name, step in ensemble.steps.items():
        if step.model is None:
            continue
        if step.model not in project.public:
            raise ConfigurationError(
                f"{source.where(('steps', name, 'model'))}: the project has no model "
                f"`{step.model}`",
                remedy=choices(step.model, project.public, "its models:"),
            )
        found[name] = public_model(project, step.model, artefacts)
    return found


def public_model(project: Project, name: str, artefacts: Mapping[str, Artefact]) -> PublicModel:
    """The tensors of a public model; the project's graphs have no circles (`planning_order`).

    Raises ConfigurationError for one that is no step: token ids alone, for NVIDIA's C++ backend.
    """
    ensemble, source = ensemble_for(task_of(project, name), project.root)
    parts: dict[str, StepInterface] = {}
    if name in project.models:
        chosen = project.models[name].serving.backend
        if chosen == tensorrtllm.BACKEND:
            raise ConfigurationError(
                f"{name} cannot be a step: serving.backend {chosen} serves it as an engine alone",
                remedy="remove `backend: tensorrtllm` from it",
            )
        native = native_backend(chosen, artefacts[name], f"models.{name}")
        parts |= serving_backends(name, ensemble, source, artefacts[name], native, project)
    else:
        parts |= step_backends(ensemble, source, None, project)
    parts |= step_public_models(ensemble, source, project, artefacts)
    if ensemble.kind == "model":
        [only] = parts.values()
        return PublicModel(name, only.inputs, only.outputs, only.decoupled)
    whole = fitted(ensemble, parts)
    streams = any(part.decoupled for part in parts.values())
    return PublicModel(name, whole.inputs, whole.outputs, streams)


def models_within(project: Project, name: str) -> list[str]:
    """The project's other models that one of its models or ensembles has for steps."""
    ensemble, _ = ensemble_for(task_of(project, name), project.root)
    return [step.model for step in ensemble.steps.values() if step.model]


def planning_order(project: Project) -> list[str]:
    """All public names, each after those that it has for steps.

    Raises ConfigurationError for models that are steps of each other.
    """
    within = {name: models_within(project, name) for name in project.public}
    try:
        ordered = list(TopologicalSorter(within).static_order())
    except CycleError as error:
        way = " → ".join(error.args[1])
        raise ConfigurationError(
            f"models that are steps of each other: {way}",
            remedy="take one of these steps out of its ensemble",
        ) from error
    return [name for name in ordered if name in within]
