# SPDX-License-Identifier: Apache-2.0
"""Plans of a project's models: memory, disk and time per device, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from tritonctl.engines.artefacts.store import StoredArtefact, stored_artefacts
from tritonctl.engines.artefacts.usage import ancestors
from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.contract import BuildResult
from tritonctl.engines.builds.engine import built_engine
from tritonctl.engines.builds.preflight import check_requests
from tritonctl.engines.builds.requests import model_named
from tritonctl.engines.builds.stages import resolve_build
from tritonctl.engines.estimates.decoders import WeightBytes
from tritonctl.engines.estimates.table import (
    BuilderFigures,
    EstimateTable,
    Storage,
    estimate_table,
)
from tritonctl.engines.planning.decoders import decoder_subject
from tritonctl.engines.planning.graphs import graph_subject
from tritonctl.engines.planning.records import HOST, Fit, ModelPlan, PlannedDevice, ProjectPlan
from tritonctl.errors import ConfigurationError, HostError, TritonctlError, UsageError, choices
from tritonctl.host.resources import host_memory
from tritonctl.project.compatibility.rules import (
    check_formats,
    refuse_tensorrt_on_gpu,
    resolve_target,
    resolve_tensorrt_target,
)
from tritonctl.project.compatibility.table import gpu_named, table
from tritonctl.project.engine import Engine
from tritonctl.project.schema import Model, Project
from tritonctl.project.tasks import task_for_builder

# Earlier builds that differ in size by more than this factor do not predict the build time.
_COMPARABLE = 4.0
# Share of a run's time spent on texts beyond which a larger batch hardly helps.
_NEAR_BEST = 0.96


class _Subject(Protocol):
    """A model as its builder sees it.

    `packed` are the weights of a checkpoint that is already quantised, which no builder accepts.
    """

    @property
    def per_token(self) -> float: ...
    @property
    def activations(self) -> int: ...
    @property
    def packed(self) -> WeightBytes | None: ...
    @property
    def notes(self) -> list[str]: ...
    def weights(self, storage: Storage) -> WeightBytes: ...
    def extra_bytes(self, storage: Storage) -> int: ...
    def fit(self, device: PlannedDevice, refused: str | None) -> Fit: ...


def plan_models(
    project: Project, names: Sequence[str], gpus: Sequence[str] = (), memory: int | None = None
) -> ProjectPlan:
    """Plan several models; the plan contains the errors of models that a builder refuses.

    Raises UsageError for an unknown model or GPU.
    """
    for name in names:
        model_named(project, name)
    if memory is None:
        _refuse_unknown_gpus(gpus, project)
    plan = ProjectPlan()
    for name in names:
        try:
            check_requests(project, name, resolve_build(project, name))
        except TritonctlError as error:
            plan.refused[name] = error
        try:
            plan.models.append(plan_model(project, name, gpus, memory))
        except TritonctlError as error:
            if name not in plan.refused:
                plan.without_figures[name] = error
    return plan


def _refuse_unknown_gpus(gpus: Sequence[str], project: Project) -> None:
    compatibility = table(project.root)
    for gpu in gpus:
        try:
            gpu_named(gpu, compatibility)
        except ConfigurationError as error:
            gpu_names = [entry.name for entry in compatibility.gpus]
            raise UsageError(
                error.problem,
                remedy=f"{choices(gpu, gpu_names, '--gpus is one of')}; for other GPUs give their "
                "memory: --device-memory 80GiB",
            ) from error


def plan_model(
    project: Project, name: str, gpus: Sequence[str] = (), memory: int | None = None
) -> ModelPlan:
    """Plan one model on this host or on each of `gpus`.

    `gpus` defaults to the GPU of `engine.target`, or to all of the table. `memory` overrides the
    devices' memory in bytes. Raises ConfigurationError, UsageError.
    """
    model = model_named(project, name)
    table = estimate_table(project.root)
    is_task = task_for_builder(model.task, project.root) is not None
    figures, storage = _figures_and_storage(name, model, table, is_task=is_task)
    subject: _Subject
    if figures.engine == "graph":
        subject = graph_subject(project, name, figures, storage)
    else:
        subject = decoder_subject(project, name, table, storage)
    stored = subject.weights(storage)
    gpu_names = gpus or ([model.engine.target.gpu] if model.engine.target.gpu else [])
    devices = _devices(project, model, figures, gpu_names, memory)
    files = stored.total + subject.extra_bytes(storage)
    # To compare an earlier build in another precision, compute this model's size in that precision.
    by_precision = {
        precision: subject.weights(other_storage).total + subject.extra_bytes(other_storage)
        for precision, other_storage in figures.precisions.items()
    }
    artefacts = stored_artefacts(project)
    seconds, basis = build_seconds(
        [] if subject.packed else artefacts,
        model.engine,
        by_precision | {model.engine.precision: files},
    )
    built = _build_result(project, name, artefacts)
    return ModelPlan(
        model=name,
        builder=model.engine.builder,
        precision=model.engine.precision,
        parameters=stored.parameters,
        weights=stored.total,
        files=files,
        kv_bytes_per_token=subject.per_token,
        activations=subject.activations,
        disk=files
        if subject.packed
        else _build_disk_bytes(figures, storage, files, stored.parameters),
        build_memory=None if subject.packed else _build_memory_bytes(figures, stored.parameters),
        build_seconds=seconds,
        build_seconds_from=basis,
        built=None if built is None else sum(file.size for file in built.files),
        fits=[
            subject.fit(device, _refusal_reason(project, model.engine, figures, device))
            for device in devices
        ],
        notes=[
            *subject.notes,
            *(_better_builder_notes(model, figures) if is_task else ()),
            *(_best_batch_notes(built) if is_task and built else ()),
        ],
    )


def _better_builder_notes(model: Model, figures: BuilderFigures) -> Iterator[str]:
    if any(group.kind != "KIND_CPU" for group in model.serving.instance_group):
        return
    better = figures.better_for(model.engine)
    if better is not None:
        yield (
            f"`builder: {better.builder}` is better for {model.engine.precision} on CPUs: "
            f"{better.why}"
        )


def _best_batch_notes(built: BuildResult) -> Iterator[str]:
    """Yield the batch size that reaches nearly the best rate, from the cost of a run.

    The build measured that cost.
    """
    padding = built.runtime.get("padding")
    cost = padding.get("run_tokens") if isinstance(padding, dict) else None
    if isinstance(cost, int | float) and cost > 0:
        best_tokens = math.ceil(cost * _NEAR_BEST / (1 - _NEAR_BEST))
        yield (
            f"best batch: a run of {best_tokens} tokens or more spends {_NEAR_BEST:.0%} of its "
            "time on "
            f"texts; its fixed cost equals {cost:g} tokens (measured by the build)"
        )


def models_without_figures(project: Project) -> list[str]:
    """Return the models that cannot be planned because their builder has no figures."""
    builders = estimate_table(project.root).builders
    return sorted(n for n, model in project.models.items() if model.engine.builder not in builders)


def _figures_and_storage(
    name: str, model: Model, table: EstimateTable, *, is_task: bool
) -> tuple[BuilderFigures, Storage]:
    figures = table.builders.get(model.engine.builder)
    if figures is not None and figures.tasks is not None and is_task:
        figures = figures.tasks
    if figures is None:
        raise ConfigurationError(
            f"models.{name}: no figures for builder {model.engine.builder} in estimates.toml",
            remedy=f"it has figures for: {', '.join(sorted(table.builders))}",
        )
    storage = figures.precisions.get(model.engine.precision)
    if storage is None:
        raise ConfigurationError(
            f"models.{name}: no figures for {model.engine.builder} {model.engine.precision} "
            "in estimates.toml",
            remedy=f"it has figures for: {', '.join(figures.precisions)}",
        )
    options = model.engine.options
    if options.get("calibration") == "static":
        storage = figures.calibrated.get(model.engine.precision, storage)
    if figures.engine == "graph" and options.get("per_channel") is False:
        storage = storage.model_copy(update={"row_bytes": 0, "head_row_bytes": 0})
    group = options.get("group_size")
    if storage.group and isinstance(group, int):
        # -1: one group per row.
        storage = storage.model_copy(update={"group": group if group > 0 else 1 << 62})
    return figures, storage


def _devices(
    project: Project,
    model: Model,
    figures: BuilderFigures,
    gpus: Sequence[str],
    memory: int | None,
) -> list[PlannedDevice]:
    if _is_host(model, figures):
        return [PlannedDevice(HOST, memory or _host_memory())]
    if memory is not None:
        return [PlannedDevice(name, memory) for name in gpus or ("GPU",)]
    compatibility = table(project.root)
    target_gpus = [gpu_named(name, compatibility) for name in gpus] or compatibility.gpus
    return [PlannedDevice(gpu.name, gpu.memory_gib << 30) for gpu in target_gpus]


def _is_host(model: Model, figures: BuilderFigures) -> bool:
    on_gpu = any(group.kind == "KIND_GPU" for group in model.serving.instance_group)
    return figures.device == "host" or (figures.device == "any" and not on_gpu)


def runs_on_host(project: Project, model: Model) -> bool:
    """Whether a model's engine is in the host's memory; True if its builder has no figures."""
    figures = estimate_table(project.root).builders.get(model.engine.builder)
    return figures is None or _is_host(model, figures)


def _host_memory() -> int:
    if (memory := host_memory()) is None:
        raise HostError(
            "this system does not report its memory",
            remedy="give it: tritonctl plan --device-memory 16G",
        )
    return memory


def _refusal_reason(
    project: Project, engine: Engine, figures: BuilderFigures, device: PlannedDevice
) -> str | None:
    """Return why the engine cannot be built for or run on a GPU; None if it can."""
    if figures.device == "any":
        return None  # not built for a specific GPU
    compatibility = table(project.root)
    if device.name not in {gpu.name for gpu in compatibility.gpus}:
        return None  # only its memory is known
    release = engine.target.release
    try:
        if builder_named(engine.builder, project.root).targets == "tensorrt":
            target = resolve_tensorrt_target(compatibility, release=release, gpu=device.name)
            refuse_tensorrt_on_gpu(target, engine.precision, compatibility)
            return None
        world = engine.target.world
        target = resolve_target(compatibility, release=release, world=world, gpu=device.name)
        check_formats(target, engine.precision, compatibility, kv_cache_dtype=engine.kv_cache_dtype)
    except ConfigurationError as error:
        return error.problem
    return None


def _build_disk_bytes(
    figures: BuilderFigures, storage: Storage, files: int, parameters: int | None
) -> int:
    copies = figures.disk_copies if storage.disk_copies is None else storage.disk_copies
    scratch = figures.scratch_bytes_per_parameter * (parameters or 0)
    return math.ceil(copies * files + scratch)


def _build_memory_bytes(figures: BuilderFigures, parameters: int | None) -> int | None:
    if figures.build_bytes_per_parameter is None or parameters is None:
        return None
    return math.ceil(figures.build_bytes + figures.build_bytes_per_parameter * parameters)


def _build_result(
    project: Project, name: str, artefacts: Iterable[StoredArtefact]
) -> BuildResult | None:
    """Return the build result of the model's engine; None if it is not built."""
    if all(stored.model != name for stored in artefacts):
        return None  # saves hashing a checkpoint of 100 GB
    try:
        return built_engine(project, name).manifest.result
    except TritonctlError:
        return None


def build_seconds(
    artefacts: Iterable[StoredArtefact], engine: Engine, sizes: Mapping[str, int]
) -> tuple[float | None, str]:
    """Estimate a build's duration (seconds) and name the earlier build that it is based on.

    `sizes` are bytes of the engine by precision; an earlier build is compared with the size in its
    precision. The estimate is seconds * max(1, size / earlier size), from this builder's build
    nearest in size, of the same precision if possible. It is never less than the earlier duration,
    because much of a build does not depend on size. None if no build is within a factor of four.
    """
    artefacts = list(artefacts)
    source_fingerprints = {stored.record.source for stored in artefacts if stored.record}
    earlier = [
        (sizes.get(stored.precision or "", 0) / stored.size, stored)
        for stored in artefacts
        if stored.record and stored.record.builder == engine.builder and stored.size
        if stored.record.fingerprint not in source_fingerprints
    ]
    comparable = [entry for entry in earlier if 1 / _COMPARABLE <= entry[0] <= _COMPARABLE]
    same_precision = [entry for entry in comparable if entry[1].precision == engine.precision]
    if not comparable:
        return None, "no earlier build of about that size"
    ratio, best = min(same_precision or comparable, key=lambda entry: abs(math.log(entry[0])))
    records = [stored.record for stored in (best, *ancestors(best, artefacts)) if stored.record]
    seconds = sum(sum(record.result.durations_seconds.values()) for record in records)
    return seconds * max(1.0, ratio), best.name
