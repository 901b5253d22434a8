# SPDX-License-Identifier: Apache-2.0
"""Plans of a project's models: what each will take on each device, before anything is started."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from tritonctl.engines.artefacts.store import Stored, stored_artefacts
from tritonctl.engines.artefacts.usage import sources
from tritonctl.engines.build.catalog import builder_named
from tritonctl.engines.build.contract import BuildResult
from tritonctl.engines.build.engine import built_engine
from tritonctl.engines.build.preflight import check_request
from tritonctl.engines.build.requests import model_named
from tritonctl.engines.estimates.decoders import Weights
from tritonctl.engines.estimates.table import (
    BuilderFigures,
    EstimateTable,
    Storage,
    estimate_table,
)
from tritonctl.engines.planning.decoders import decoder_subject
from tritonctl.engines.planning.graphs import graph_subject
from tritonctl.engines.planning.records import HOST, Device, Fit, ModelPlan, ProjectPlan
from tritonctl.errors import ConfigurationError, HostError, TritonctlError, UsageError, choices
from tritonctl.host.resources import host_memory
from tritonctl.project.compatibility.rules import (
    check,
    refuse_tensorrt_on_gpu,
    resolve_target,
    resolve_tensorrt_target,
)
from tritonctl.project.compatibility.table import gpu_named, table
from tritonctl.project.engine import Engine
from tritonctl.project.schema import Model, Project
from tritonctl.project.tasks import asked_task

# Beyond this factor of size an earlier build says nothing of the next one's time.
_COMPARABLE = 4.0
# Of a run's time, what its texts take where more of them would hardly help.
_NEAR_BEST = 0.96


class _Subject(Protocol):
    """A model as its builder makes an engine of it. `work`: bytes of activations.

    `packed`: the weights of a checkpoint that is quantised already; no builder takes one.
    """

    @property
    def per_token(self) -> float: ...
    @property
    def work(self) -> int: ...
    @property
    def packed(self) -> Weights | None: ...
    @property
    def notes(self) -> list[str]: ...
    def weights(self, storage: Storage) -> Weights: ...
    def beside(self, storage: Storage) -> int: ...
    def fit(self, device: Device, refused: str | None) -> Fit: ...


def plan_models(
    project: Project, names: Sequence[str], gpus: Sequence[str] = (), memory: int | None = None
) -> ProjectPlan:
    """Plan several models: what their builder refuses is refused here, in its words.

    Raises UsageError for an unknown model or GPU.
    """
    for name in names:
        model_named(project, name)
    if memory is None:
        _refuse_unknown(gpus, project)
    plan = ProjectPlan()
    for name in names:
        try:
            check_request(project, name)
        except TritonctlError as error:
            plan.refused[name] = error
        try:
            plan.models.append(plan_model(project, name, gpus, memory))
        except TritonctlError as error:
            if name not in plan.refused:
                plan.unknown[name] = error
    return plan


def _refuse_unknown(gpus: Sequence[str], project: Project) -> None:
    compatibility = table(project.root)
    for gpu in gpus:
        try:
            gpu_named(gpu, compatibility)
        except ConfigurationError as error:
            known = [one.name for one in compatibility.gpus]
            raise UsageError(
                error.problem,
                remedy=f"{choices(gpu, known, '--gpus is one of')}; of another one say how much "
                "memory it has: --memory 80GiB",
            ) from error


def plan_model(
    project: Project, name: str, gpus: Sequence[str] = (), memory: int | None = None
) -> ModelPlan:
    """Plan one model: on this host, or on each of `gpus` (by default that of
    `engine.target`, or all known ones).

    `memory` replaces what the devices are known to have. Raises ConfigurationError, UsageError.
    """
    model = model_named(project, name)
    table = estimate_table(project.root)
    is_task = asked_task(model.task, project.root) is not None
    figures, storage = _figures(name, model, table, is_task=is_task)
    subject: _Subject
    if figures.engine == "graph":
        subject = graph_subject(project, name, figures, storage)
    else:
        subject = decoder_subject(project, name, table, storage)
    stored = subject.weights(storage)
    chosen = gpus or ([model.engine.target.gpu] if model.engine.target.gpu else [])
    devices = _devices(project, model, figures, chosen, memory)
    files = stored.total + subject.beside(storage)
    # An earlier build in another precision is compared by what this model would take in that.
    by_precision = {
        precision: subject.weights(other).total + subject.beside(other)
        for precision, other in figures.precisions.items()
    }
    artefacts = stored_artefacts(project)
    seconds, basis = build_seconds(
        [] if subject.packed else artefacts,
        model.engine,
        by_precision | {model.engine.precision: files},
    )
    built = _built(project, name, artefacts)
    return ModelPlan(
        model=name,
        builder=model.engine.builder,
        precision=model.engine.precision,
        parameters=stored.parameters,
        weights=stored.total,
        files=files,
        kv_bytes_per_token=subject.per_token,
        activations=subject.work,
        disk=files if subject.packed else _disk(figures, storage, files, stored.parameters),
        build_memory=None if subject.packed else _build_memory(figures, stored.parameters),
        build_seconds=seconds,
        build_seconds_from=basis,
        built=None if built is None else sum(file.size for file in built.files),
        fits=[
            subject.fit(device, _refused(project, model.engine, figures, device))
            for device in devices
        ],
        notes=[
            *subject.notes,
            *(_about_better(model, figures) if is_task else ()),
            *(_about_batches(built) if is_task and built else ()),
        ],
    )


def _about_better(model: Model, figures: BuilderFigures) -> Iterator[str]:
    if any(group.kind != "KIND_CPU" for group in model.serving.instance_group):
        return
    better = figures.better_for(model.engine)
    if better is not None:
        yield (
            f"`builder: {better.builder}` makes {model.engine.precision} better for a CPU: "
            f"{better.why}"
        )


def _about_batches(built: BuildResult) -> Iterator[str]:
    """Where a run of texts has nearly the best rate: its fixed cost was measured by the build."""
    padding = built.runtime.get("padding")
    cost = padding.get("run_tokens") if isinstance(padding, dict) else None
    if isinstance(cost, int | float) and cost > 0:
        enough = math.ceil(cost * _NEAR_BEST / (1 - _NEAR_BEST))
        yield (
            f"best batch: a run of {enough} tokens or more, in which {_NEAR_BEST:.0%} of the time "
            f"is its texts'; it costs as much as {cost:g} tokens besides (measured by the build)"
        )


def without_figures(project: Project) -> list[str]:
    """Models that cannot be planned: their builder has no figures."""
    known = estimate_table(project.root).builders
    return sorted(n for n, model in project.models.items() if model.engine.builder not in known)


def _figures(
    name: str, model: Model, table: EstimateTable, *, is_task: bool
) -> tuple[BuilderFigures, Storage]:
    figures = table.builders.get(model.engine.builder)
    if figures is not None and figures.tasks is not None and is_task:
        figures = figures.tasks
    if figures is None:
        raise ConfigurationError(
            f"models.{name}: no figures for builder {model.engine.builder} in estimates.toml",
            remedy=f"it has those of: {', '.join(sorted(table.builders))}",
        )
    storage = figures.precisions.get(model.engine.precision)
    if storage is None:
        raise ConfigurationError(
            f"models.{name}: no figures for {model.engine.builder} {model.engine.precision} "
            "in estimates.toml",
            remedy=f"it has those of: {', '.join(figures.precisions)}",
        )
    options = model.engine.options
    if options.get("calibration") == "static":
        storage = figures.calibrated.get(model.engine.precision, storage)
    if figures.engine == "graph" and options.get("per_channel") is False:
        storage = storage.model_copy(update={"row_bytes": 0, "head_row_bytes": 0})
    group = options.get("group_size")
    if storage.group and isinstance(group, int):
        # -1: one group a row, however long.
        storage = storage.model_copy(update={"group": group if group > 0 else 1 << 62})
    return figures, storage


def _devices(
    project: Project,
    model: Model,
    figures: BuilderFigures,
    gpus: Sequence[str],
    memory: int | None,
) -> list[Device]:
    on_gpu = any(group.kind == "KIND_GPU" for group in model.serving.instance_group)
    if figures.device == "host" or (figures.device == "any" and not on_gpu):
        return [Device(HOST, memory or _this_memory())]
    if memory is not None:
        return [Device(name, memory) for name in gpus or ("GPU",)]
    compatibility = table(project.root)
    known = [gpu_named(name, compatibility) for name in gpus] or compatibility.gpus
    return [Device(gpu.name, gpu.memory_gib << 30) for gpu in known]


def _this_memory() -> int:
    if (memory := host_memory()) is None:
        raise HostError(
            "this system does not say how much memory it has",
            remedy="say it: tritonctl plan --memory 16G",
        )
    return memory


def _refused(
    project: Project, engine: Engine, figures: BuilderFigures, device: Device
) -> str | None:
    """Why the engine cannot be built for a GPU of that name or run on it."""
    if figures.device == "any":
        return None  # built for no GPU in particular
    compatibility = table(project.root)
    if device.name not in {gpu.name for gpu in compatibility.gpus}:
        return None  # nothing but its memory is known
    release = engine.target.release
    try:
        if builder_named(engine.builder, project.root).targets == "tensorrt":
            target = resolve_tensorrt_target(compatibility, release=release, gpu=device.name)
            refuse_tensorrt_on_gpu(target, engine.precision, compatibility)
            return None
        world = engine.target.world
        target = resolve_target(compatibility, release=release, world=world, gpu=device.name)
        check(target, engine.precision, compatibility, kv_cache_dtype=engine.kv_cache_dtype)
    except ConfigurationError as error:
        return error.problem
    return None


def _disk(figures: BuilderFigures, storage: Storage, files: int, parameters: int | None) -> int:
    copies = figures.disk_copies if storage.disk_copies is None else storage.disk_copies
    scratch = figures.scratch_bytes_per_parameter * (parameters or 0)
    return math.ceil(copies * files + scratch)


def _build_memory(figures: BuilderFigures, parameters: int | None) -> int | None:
    if figures.build_bytes_per_parameter is None or parameters is None:
        return None
    return math.ceil(figures.build_bytes + figures.build_bytes_per_parameter * parameters)


def _built(project: Project, name: str, artefacts: Iterable[Stored]) -> BuildResult | None:
    """What the build says of the engine, if it is built."""
    if all(stored.model != name for stored in artefacts):
        return None  # a checkpoint of 100 GB need not be hashed to know that
    try:
        return built_engine(project, name).manifest.result
    except TritonctlError:
        return None


def build_seconds(
    artefacts: Iterable[Stored], engine: Engine, sizes: Mapping[str, int]
) -> tuple[float | None, str]:
    """How long a build will take (seconds), and from which earlier one that is known.

    `sizes` are bytes of the engine by precision; an earlier build is compared with the one of its
    own. seconds * max(1, size / earlier size), from this builder's build nearest in size, of the
    same precision if possible: never less than the earlier one took, because much of a build does
    not depend on size. None when none is within a factor of four.
    """
    artefacts = list(artefacts)
    made_from = {stored.record.source for stored in artefacts if stored.record}
    earlier = [
        (sizes.get(stored.precision or "", 0) / stored.size, stored)
        for stored in artefacts
        if stored.record and stored.record.builder == engine.builder and stored.size
        if stored.record.fingerprint not in made_from
    ]
    near = [entry for entry in earlier if 1 / _COMPARABLE <= entry[0] <= _COMPARABLE]
    same = [entry for entry in near if entry[1].precision == engine.precision]
    if not near:
        return None, "no earlier build of about that size"
    ratio, best = min(same or near, key=lambda entry: abs(math.log(entry[0])))
    records = [stored.record for stored in (best, *sources(best, artefacts)) if stored.record]
    seconds = sum(sum(record.result.durations_seconds.values()) for record in records)
    return seconds * max(1.0, ratio), best.name
