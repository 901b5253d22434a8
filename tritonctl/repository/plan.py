# SPDX-License-Identifier: Apache-2.0
"""Plans a model repository: project + manifests + ensemble → planned models. It writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.engine import Artefact, built_engines
from tritonctl.engines.builds.requests import model_named
from tritonctl.errors import ConfigurationError, choices
from tritonctl.project.file import deep_merge
from tritonctl.project.schema import InstanceGroup, Model, Project, Serving
from tritonctl.repository import tensorrtllm
from tritonctl.repository.backends import PythonBackend, engine_config_tensors
from tritonctl.repository.composed import composed_models
from tritonctl.repository.contents import HandwrittenModel, folder_names, handwritten
from tritonctl.repository.engine_parameters import RUNTIME_SETTINGS, backend_parameters
from tritonctl.repository.engine_queue import (
    engine_batching,
    native_batching,
    queue_policy,
    requests_per_handover,
)
from tritonctl.repository.ensembles import (
    ENGINE_STEP,
    StepInterface,
    check_graph,
    drop_unread_inputs,
    ensemble_for,
    lower,
    step_model_name,
)
from tritonctl.repository.folding import fuse_steps, inline_detokenizer, with_steps_in_engine
from tritonctl.repository.interfaces import (
    planning_order,
    serving_backends,
    step_public_models,
)
from tritonctl.repository.model_config import ModelConfig
from tritonctl.repository.native import (
    NativeBackend,
    graph_files,
    native_backend,
    refuse_fused,
    refuse_unread_session,
)
from tritonctl.repository.packages import refuse_conflicts
from tritonctl.repository.planned import (
    FIRST_VERSION,
    PlannedModel,
    ServedRelease,
    batching_fields,
    config_text,
    header_text,
)
from tritonctl.repository.response_cache import add_cache, with_content_versions
from tritonctl.repository.server_fields import refuse_newer_fields
from tritonctl.repository.steps import cached_model
from tritonctl.repository.unary import UNARY, unary_backend, unary_not_applicable

ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class RepositoryPlan:
    """The models to publish, composing models before their ensembles."""

    models: tuple[PlannedModel, ...]
    backends: tuple[PythonBackend, ...]
    native: tuple[str, ...]  # native backends that the server must have
    artefacts: Mapping[str, Artefact]  # the engine of each of the project's models
    handwritten: tuple[HandwrittenModel, ...] = ()  # models that are not the project's
    # Set if the plan is of a release instead of the project's current state.
    release: ServedRelease | None = None

    @property
    def programs(self) -> tuple[PythonBackend | HandwrittenModel | ServedRelease, ...]:
        """The programs of Triton's stubs, which need packages."""
        return (*self.backends, *self.handwritten, *([self.release] if self.release else ()))

    @property
    def release_name(self) -> str:
        """Name of the release; "" without one."""
        return self.release.name if self.release else ""

    def repository_of(self, project: Project) -> Path:
        """Return the path under which a server of this machine loads the repository."""
        linked = self.release.repository if self.release else None
        return linked or project.repository

    @property
    def needs_cache(self) -> bool:
        """Whether the server needs a response cache."""
        return any(model.is_cached for model in self.models) or any(
            model.is_cached for model in self.handwritten
        )

    def needs_cache_for(self, owner: str) -> bool:
        """Whether a project's or hand-written model needs a response cache."""
        return any(model.is_cached for model in self.models_of(owner)) or any(
            model.is_cached for model in self.handwritten if model.name == owner
        )

    @property
    def owners(self) -> dict[str, str]:
        """The public model of every served model, by name."""
        owners = {model.name: model.name for model in self.handwritten}
        return owners | {model.name: model.owner for model in self.models}

    @property
    def model_names(self) -> list[str]:
        """Names of all served models, including hand-written ones."""
        return sorted(self.owners)

    def models_of(self, owner: str) -> tuple[PlannedModel, ...]:
        """Return the folders of a project's model, composing models first."""
        return tuple(model for model in self.models if model.owner == owner)


def plan_repository(
    project: Project, artefacts: Mapping[str, Artefact] | None = None
) -> RepositoryPlan:
    """Plan all models of a project; `artefacts` are its engines, if already resolved.

    Raises RepositoryError when an engine has not been built, ConfigurationError for a graph or a
    raw `serving.config` that Triton would refuse and for conflicting requirements.
    """
    models: list[PlannedModel] = []
    backends: dict[str, PythonBackend] = {}
    native: set[str] = set()
    resolved = built_engines(project) if artefacts is None else artefacts
    for name in planning_order(project):
        if name in project.ensembles:
            composed, used = composed_models(project, name, resolved)
            models += composed
            backends |= {backend.name: backend for backend in used.values()}
            continue
        artefact = resolved[name]
        model = model_named(project, name)
        if model.serving.backend == tensorrtllm.BACKEND:
            planned = [_plan_cpp_engine(project, name, model, artefact)]
            native.add(tensorrtllm.BACKEND)
        else:
            triton = native_backend(model.serving.backend, artefact, f"models.{name}")
            planned, used = _plan_model(project, name, resolved, triton)
            backends |= {backend.name: backend for backend in used.values()}
            native |= {triton.name} if triton else set()
        if model.serving.cache:
            header = _header(name, model, artefact)
            planned = add_cache(planned, name, cached_model(project, name), header)
        models += planned
    _refuse_collisions(models)
    models = with_content_versions(models, resolved, backends.values())
    for planned_model in models:
        refuse_newer_fields(planned_model.name, planned_model.config, project)
    in_order = tuple(backends[name] for name in sorted(backends))
    by_hand = handwritten(project, [model.name for model in models])
    plan = RepositoryPlan(tuple(models), in_order, tuple(sorted(native)), resolved, by_hand)
    refuse_conflicts(plan.programs)
    return plan


def startup_models(project: Project, plan: RepositoryPlan) -> list[str]:
    """Return the models to load on start: `*` if the repository has no other folders.

    Triton takes every folder for a model and does not start if one is not.
    """
    return ["*"] if folder_names(project.repository) == set(plan.model_names) else plan.model_names


def _plan_native(
    owner: str, name: str, step: str, model: Model, artefact: Artefact, backend: NativeBackend
) -> PlannedModel:
    """Plan the engine step on a native backend of Triton."""
    file, files = graph_files(artefact, backend)
    tensors, batched = artefact.manifest.result.tensors, model.engine.max_batch_size > 0
    batching = batching_fields(model.serving, 0)
    batching |= native_batching(model.serving.queue, model.engine.max_batch_size)
    config = ModelConfig(
        name=name,
        backend=backend.name,
        max_batch_size=model.engine.max_batch_size,
        inputs=engine_config_tensors(tensors.inputs, batched=batched),
        outputs=engine_config_tensors(tensors.outputs, batched=batched),
        dynamic_batching=batching if batching or batched else None,
        instance_group=_with_all_profiles(
            _groups(backend.instance_group(model.serving, f"models.{owner}")), artefact
        ),
    )
    settings = {"default_model_filename": file, **backend.settings(model.serving.session)}
    raw = deep_merge(settings, model.serving.config.get(step) or {})
    text = config_text(config, raw, _header(owner, model, artefact))
    return PlannedModel(name, owner, text, tuple(files))


def _plan_model(
    project: Project, name: str, artefacts: Mapping[str, Artefact], native: NativeBackend | None
) -> tuple[list[PlannedModel], dict[str, PythonBackend]]:
    """Plan the folders of a model; return them with the Python backends of its steps."""
    model, artefact = model_named(project, name), artefacts[name]
    ensemble, source = ensemble_for(model.task, project.root)
    backends = serving_backends(name, ensemble, source, artefact, native, project)
    programs = {
        step: backend
        for step, backend in backends.items()
        if native is None or ensemble.steps[step].backend != ENGINE_STEP
    }
    names = {step: step_model_name(name, step) for step in backends}
    public: list[PlannedModel] = []
    fronts: dict[str, PythonBackend] = {}
    header = _header(name, model, artefact)
    refuse_unread_session(name, model, programs.get(ENGINE_STEP), native)
    if ensemble.kind == "model":
        names = dict.fromkeys(backends, name)
        _refuse_unknown_steps(name, model, tuple(backends))
    else:
        parts: dict[str, StepInterface] = {**backends}
        parts |= step_public_models(ensemble, source, project, artefacts)
        ensemble = drop_unread_inputs(ensemble, parts)
        check_graph(ensemble, parts, source)
        _refuse_unknown_runtime(name, model, programs.get(ENGINE_STEP))
        if model.serving.unary:
            fronts = {UNARY: unary_backend(name, ensemble, parts, project)}
            names |= {UNARY: step_model_name(name, UNARY)}
        if model.serving.fused:
            refuse_fused(name, native)
            backends = fuse_steps(name, ensemble, backends)
            names |= dict.fromkeys(backends, name)
            _refuse_unknown_steps(name, model, (*backends, *fronts))
        else:
            if model.serving.inline_detokenizer:
                ensemble, backends = inline_detokenizer(name, ensemble, backends)
            ensemble, backends = with_steps_in_engine(ensemble, backends)
            _refuse_unknown_steps(name, model, (*backends, ENSEMBLE, *fronts))
            lowered = lower(ensemble, name, model.engine.max_batch_size)
            text = config_text(lowered, model.serving.config.get(ENSEMBLE), header)
            public = [PlannedModel(name, name, text, ())]
    steps = [
        _plan_native(name, names[step], step, model, artefact, native)
        if native is not None and step not in programs
        else _plan_step(name, names[step], step, model, backend, artefact, header)
        for step, backend in (backends | fronts).items()
    ]
    return [*steps, *public], programs | fronts


def _plan_cpp_engine(project: Project, name: str, model: Model, artefact: Artefact) -> PlannedModel:
    """Plan a single engine on NVIDIA's C++ backend."""
    _refuse_unknown_steps(name, model, (ENGINE_STEP,))
    step = step_model_name(name, ENGINE_STEP)
    folder = project.repository / step / FIRST_VERSION / "engine"
    config = tensorrtllm.engine_config(name, step, model, artefact.manifest, folder)
    raw = model.serving.config.get(ENGINE_STEP)
    text = config_text(config, raw, _header(name, model, artefact))
    return PlannedModel(step, name, text, tuple(_artefact_files(artefact, ["engine"])))


def _plan_step(
    owner: str,
    name: str,
    step: str,
    model: Model,
    backend: PythonBackend,
    artefact: Artefact,
    header: str,
) -> PlannedModel:
    max_batch_size = _max_batch_size(step, backend, model)
    batching = _dynamic_batching(step, backend, model)
    config = ModelConfig(
        name=name,
        backend="python",
        max_batch_size=max_batch_size,
        inputs=backend.input_tensors(max_batch_size),
        outputs=tuple(tensor.as_config_tensor() for tensor in backend.outputs),
        decoupled=backend.decoupled,
        # With batches of one and no queue settings, a batcher has no effect.
        dynamic_batching=batching if batching or max_batch_size > 1 else None,
        instance_group=_instance_group(step, model.serving),
        parameters=backend_parameters(backend, model.serving, artefact.manifest),
    )
    text = config_text(config, model.serving.config.get(step), header)
    files = [*backend.version_files(), *_artefact_files(artefact, backend.files)]
    return PlannedModel(name, owner, text, tuple(files))


def _max_batch_size(step: str, backend: PythonBackend, model: Model) -> int:
    if step != ENGINE_STEP:
        return backend.max_batch_size
    # A decoupled engine forms batches itself; Triton only hands requests over.
    engine_batch_size = model.engine.max_batch_size
    return min(
        backend.max_batch_size,
        requests_per_handover(engine_batch_size) if backend.decoupled else engine_batch_size,
    )


def _dynamic_batching(step: str, backend: PythonBackend, model: Model) -> dict[str, Any] | None:
    if not backend.dynamic_batching:
        return None
    queue, engine_batch_size = model.serving.queue, model.engine.max_batch_size
    if step == ENGINE_STEP and backend.decoupled:
        return engine_batching(queue, engine_batch_size)
    batching = batching_fields(model.serving, backend.max_queue_delay_microseconds)
    if step == ENGINE_STEP:
        keeps_the_queue = "max_queue_size" in backend.parameters
        batching |= (
            engine_batching(queue, engine_batch_size)
            if keeps_the_queue
            else queue_policy(queue, engine_batch_size)
        )
    return batching


def _instance_group(step: str, serving: Serving) -> tuple[dict[str, Any], ...]:
    if step == ENGINE_STEP:
        return _groups(serving.instance_group)
    # Exactly one: several detokenizer instances would reorder the responses of a stream.
    return ({"kind": "KIND_CPU", "count": 1},)


def _groups(groups: Sequence[InstanceGroup]) -> tuple[dict[str, Any], ...]:
    records = (group.model_dump() for group in groups)
    return tuple({k: v for k, v in record.items() if v} for record in records)


def _with_all_profiles(
    groups: tuple[dict[str, Any], ...], artefact: Artefact
) -> tuple[dict[str, Any], ...]:
    """List all optimisation profiles of a TensorRT plan: by default Triton uses only the first."""
    profiles = artefact.manifest.result.runtime.get("profiles")
    count = len(profiles) if isinstance(profiles, list) else 0
    if count < 2:  # noqa: PLR2004 - the first is the default
        return groups
    return tuple(group | {"profile": [str(number) for number in range(count)]} for group in groups)


def _artefact_files(artefact: Artefact, folders: list[str]) -> list[tuple[Path, str]]:
    return [
        (artefact.folder / file.path, file.path)
        for file in artefact.manifest.result.files
        if file.path.split("/", 1)[0] in folders
    ]


def _header(name: str, model: Model, artefact: Artefact) -> str:
    engine = artefact.manifest.fingerprint
    return header_text(f"model {name}", "settings and engine", model, engine)


def _refuse_unknown_steps(name: str, model: Model, step_names: tuple[str, ...]) -> None:
    if model.serving.unary and UNARY not in step_names:
        raise unary_not_applicable(name)
    for step in model.serving.config:
        if step not in step_names:
            raise ConfigurationError(
                f"models.{name}.serving.config: unknown step `{step}`",
                remedy=f"steps: {', '.join(step_names)}",
            )


def _refuse_unknown_runtime(name: str, model: Model, engine: PythonBackend | None) -> None:
    settings = [key for key in RUNTIME_SETTINGS if engine and key in engine.parameters]
    for key in model.serving.runtime:
        if key not in settings:
            raise ConfigurationError(
                f"models.{name}.serving.runtime: the engine of builder {model.engine.builder} has "
                f"no setting `{key}`",
                remedy=choices(key, settings, "settings:"),
            )


def _refuse_collisions(models: list[PlannedModel]) -> None:
    seen: set[str] = set()
    for model in models:
        if model.name in seen:
            raise ConfigurationError(
                f"two models of the project have the name `{model.name}` in the repository",
                remedy="rename one of them in tritonctl.yaml",
            )
        seen.add(model.name)
