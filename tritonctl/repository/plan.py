# SPDX-License-Identifier: Apache-2.0
"""What a model repository shall contain: project + manifests + ensemble → planned models.

Pure: nothing is written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.engines.build.engine import Artefact, built_engines
from tritonctl.engines.build.requests import model_named
from tritonctl.errors import ConfigurationError, choices
from tritonctl.project.file import deep_merge
from tritonctl.project.schema import InstanceGroup, Model, Project, Serving
from tritonctl.repository import tensorrtllm
from tritonctl.repository.backends import PythonBackend, artefact_tensors
from tritonctl.repository.composed import composed_models
from tritonctl.repository.contents import HandwrittenModel, folder_names, handwritten
from tritonctl.repository.engine_parameters import RUNTIME_SETTINGS, backend_parameters
from tritonctl.repository.engine_queue import (
    batch_of_places,
    engine_batching,
    native_batching,
    policy_of,
)
from tritonctl.repository.ensembles import (
    ENGINE_STEP,
    StepInterface,
    check_graph,
    ensemble_for,
    fitted,
    lower,
    step_model_name,
)
from tritonctl.repository.folding import fused, inlined, with_steps_in_engine
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
    Served,
    batching_of,
    config_text,
    header_text,
)
from tritonctl.repository.response_cache import behind_cache, versioned
from tritonctl.repository.server_fields import refuse_newer_fields
from tritonctl.repository.steps import cached_model
from tritonctl.repository.unary import UNARY, pointless, unary_backend

ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class Plan:
    """The models to publish, composing models before the ensembles that need them.

    `handwritten`: the models in the repository that are not the project's. `release`: which one of
    the project this is, instead of what it is now.
    """

    models: tuple[PlannedModel, ...]
    backends: tuple[PythonBackend, ...]
    native: tuple[str, ...]  # Triton's own backends that the server must have
    artefacts: Mapping[str, Artefact]  # the engine of each of the project's models
    handwritten: tuple[HandwrittenModel, ...] = ()
    release: Served | None = None

    @property
    def programs(self) -> tuple[PythonBackend | HandwrittenModel | Served, ...]:
        """What runs in Triton's stubs, and needs packages there."""
        return (*self.backends, *self.handwritten, *([self.release] if self.release else ()))

    @property
    def release_name(self) -> str:
        """Of the release that this is; "" where it is none."""
        return self.release.name if self.release else ""

    def repository_of(self, project: Project) -> Path:
        """What a server of this machine knows the repository by."""
        linked = self.release.repository if self.release else None
        return linked or project.repository

    @property
    def caches(self) -> bool:
        """Whether the server needs a response cache."""
        return any(model.cached for model in self.models) or any(
            model.cached for model in self.handwritten
        )

    def caches_of(self, owner: str) -> bool:
        """Whether one of the project's models, or one by hand, needs it."""
        return any(model.cached for model in self.models_of(owner)) or any(
            model.cached for model in self.handwritten if model.name == owner
        )

    @property
    def owners(self) -> dict[str, str]:
        """Every model that is served, with the public model whose step it is."""
        own = {model.name: model.name for model in self.handwritten}
        return own | {model.name: model.owner for model in self.models}

    @property
    def served(self) -> list[str]:
        """Every model that a server has, hand-written ones too."""
        return sorted(self.owners)

    def models_of(self, owner: str) -> tuple[PlannedModel, ...]:
        """The folders of one of the project's models, composing models first."""
        return tuple(model for model in self.models if model.owner == owner)


def plan_repository(project: Project, artefacts: Mapping[str, Artefact] | None = None) -> Plan:
    """Plan all models of a project, of `artefacts` where the caller has resolved them already.

    Raises RepositoryError when an engine has not been built, ConfigurationError for a graph or a
    raw `serving.config` that Triton would refuse, and for requirements that contradict each other.
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
            planned = behind_cache(planned, name, cached_model(project, name), header)
        models += planned
    _refuse_collisions(models)
    models = versioned(models, resolved, backends.values())
    for planned_model in models:
        refuse_newer_fields(planned_model.name, planned_model.config, project)
    in_order = tuple(backends[name] for name in sorted(backends))
    by_hand = handwritten(project, [model.name for model in models])
    plan = Plan(tuple(models), in_order, tuple(sorted(native)), resolved, by_hand)
    refuse_conflicts(plan.programs)
    return plan


def startup_models(project: Project, plan: Plan) -> list[str]:
    """The models that a server loads when it starts: `*` where the repository has no other folder.

    Triton takes every folder for a model, and does not start if one is not a model.
    """
    return ["*"] if folder_names(project.repository) == set(plan.served) else plan.served


def _plan_native(
    owner: str, name: str, step: str, model: Model, artefact: Artefact, backend: NativeBackend
) -> PlannedModel:
    """The engine step as Triton's own backend serves it."""
    file, files = graph_files(artefact, backend)
    config = ModelConfig(
        name=name,
        backend=backend.name,
        max_batch_size=model.engine.max_batch_size,
        inputs=artefact_tensors(artefact.manifest.result.tensors.inputs),
        outputs=artefact_tensors(artefact.manifest.result.tensors.outputs),
        dynamic_batching=batching_of(model.serving, 0)
        | native_batching(model.serving.queue, model.engine.max_batch_size),
        instance_group=_of_profiles(
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
    """The folders of a model, and the Python backends whose packages its steps need."""
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
        _refuse_other_steps(name, model, tuple(backends))
    else:
        parts: dict[str, StepInterface] = {**backends}
        parts |= step_public_models(ensemble, source, project, artefacts)
        ensemble = fitted(ensemble, parts)
        check_graph(ensemble, parts, source)
        _refuse_unknown_runtime(name, model, programs.get(ENGINE_STEP))
        if model.serving.unary:
            fronts = {UNARY: unary_backend(name, ensemble, parts, project)}
            names |= {UNARY: step_model_name(name, UNARY)}
        if model.serving.fused:
            refuse_fused(name, native)
            backends = fused(name, ensemble, backends)
            names |= dict.fromkeys(backends, name)
            _refuse_other_steps(name, model, (*backends, *fronts))
        else:
            if model.serving.inline_detokenizer:
                ensemble, backends = inlined(name, ensemble, backends)
            ensemble, backends = with_steps_in_engine(ensemble, backends)
            _refuse_other_steps(name, model, (*backends, ENSEMBLE, *fronts))
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
    """The engine alone, for NVIDIA's C++ backend."""
    _refuse_other_steps(name, model, (ENGINE_STEP,))
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
    most = _max_batch_size(step, backend, model)
    batching = _dynamic_batching(step, backend, model)
    config = ModelConfig(
        name=name,
        backend="python",
        max_batch_size=most,
        inputs=backend.input_tensors(),
        outputs=tuple(tensor.tensor() for tensor in backend.outputs),
        decoupled=backend.decoupled,
        # Over batches of one, without its own queue, a batcher does nothing.
        dynamic_batching=batching if batching or most > 1 else None,
        instance_group=_instance_group(step, model.serving),
        parameters=backend_parameters(backend, model.serving, artefact.manifest),
    )
    text = config_text(config, model.serving.config.get(step), header)
    files = [*backend.code(), *_artefact_files(artefact, backend.files)]
    return PlannedModel(name, owner, text, tuple(files))


def _max_batch_size(step: str, backend: PythonBackend, model: Model) -> int:
    if step != ENGINE_STEP:
        return backend.max_batch_size
    # A decoupled engine keeps its own batch: what Triton hands over only goes there.
    most = model.engine.max_batch_size
    return min(backend.max_batch_size, batch_of_places(most) if backend.decoupled else most)


def _dynamic_batching(step: str, backend: PythonBackend, model: Model) -> dict[str, Any] | None:
    if not backend.dynamic_batching:
        return None
    queue, most = model.serving.queue, model.engine.max_batch_size
    if step == ENGINE_STEP and backend.decoupled:
        return engine_batching(queue, most)
    batching = batching_of(model.serving, backend.max_queue_delay_microseconds)
    if step == ENGINE_STEP:
        keeps_the_queue = "max_queue_size" in backend.parameters
        batching |= engine_batching(queue, most) if keeps_the_queue else policy_of(queue, most)
    return batching


def _instance_group(step: str, serving: Serving) -> tuple[dict[str, Any], ...]:
    if step == ENGINE_STEP:
        return _groups(serving.instance_group)
    # Exactly one: several detokenizer instances would scramble the order inside a stream.
    return ({"kind": "KIND_CPU", "count": 1},)


def _groups(groups: Sequence[InstanceGroup]) -> tuple[dict[str, Any], ...]:
    records = (group.model_dump() for group in groups)
    return tuple({k: v for k, v in record.items() if v} for record in records)


def _of_profiles(
    groups: tuple[dict[str, Any], ...], artefact: Artefact
) -> tuple[dict[str, Any], ...]:
    """With all optimisation profiles of a plan: without a list, Triton uses the first alone."""
    profiles = artefact.manifest.result.runtime.get("profiles")
    count = len(profiles) if isinstance(profiles, list) else 0
    if count < 2:  # noqa: PLR2004 - the first is the default
        return groups
    return tuple(group | {"profile": [str(at) for at in range(count)]} for group in groups)


def _artefact_files(artefact: Artefact, folders: list[str]) -> list[tuple[Path, str]]:
    return [
        (artefact.folder / file.path, file.path)
        for file in artefact.manifest.result.files
        if file.path.split("/", 1)[0] in folders
    ]


def _header(name: str, model: Model, artefact: Artefact) -> str:
    engine = artefact.manifest.fingerprint
    return header_text(f"model {name}", "settings and engine", model, engine)


def _refuse_other_steps(name: str, model: Model, known: tuple[str, ...]) -> None:
    if model.serving.unary and UNARY not in known:
        raise pointless(name)
    for step in model.serving.config:
        if step not in known:
            raise ConfigurationError(
                f"models.{name}.serving.config: unknown step `{step}`",
                remedy=f"steps: {', '.join(known)}",
            )


def _refuse_unknown_runtime(name: str, model: Model, engine: PythonBackend | None) -> None:
    known = [key for key in RUNTIME_SETTINGS if engine and key in engine.parameters]
    for key in model.serving.runtime:
        if key not in known:
            raise ConfigurationError(
                f"models.{name}.serving.runtime: the engine of builder {model.engine.builder} has "
                f"no setting `{key}`",
                remedy=choices(key, known, "settings:"),
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
