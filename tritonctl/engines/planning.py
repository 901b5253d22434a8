# SPDX-License-Identifier: Apache-2.0
"""Plans of a project's models: what each will take on each device, before anything is started."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.compatibility import check, resolve_target
from tritonctl.compatibility_table import gpu_named, table
from tritonctl.engines.artefact_usage import sources
from tritonctl.engines.artefacts import Stored, stored_artefacts
from tritonctl.engines.building import built_engine
from tritonctl.engines.checkpoints import Architecture, Tensor, read_architecture, read_tensors
from tritonctl.engines.estimate_table import (
    BuilderFigures,
    EstimateTable,
    Storage,
    estimate_table,
)
from tritonctl.engines.estimates import Demand, Room, Weights, demand, weights
from tritonctl.engines.requests import model_named
from tritonctl.errors import ConfigurationError, TritonctlError
from tritonctl.host import host_memory
from tritonctl.project import Engine, Model, Project

# Beyond this factor of size an earlier build says nothing of the next one's time.
_COMPARABLE = 4.0


@dataclass(frozen=True)
class Device:
    """Where an engine is to run: a name, and the bytes of memory it has (of one, if several)."""

    name: str
    memory: int


@dataclass(frozen=True)
class Fit:
    """A model on a device; bytes per device. `batch` x `length` is what the project asks for.

    `refused` says why it cannot run there, however much memory there is.
    """

    device: Device
    refused: str | None
    count: int
    needed: int
    usable: int
    fits: bool
    batch: int
    length: int
    largest_batch: int
    longest: int


@dataclass(frozen=True)
class ModelPlan:
    """What is known of a model's engine before it is built. Bytes; seconds; None: unknown.

    `files` is the engine's size on the disk, `disk` the most its build takes there, `build_memory`
    the host memory it takes meanwhile, `built` the real size of the engine if it is there already.
    """

    model: str
    builder: str
    precision: str
    parameters: int
    weights: int
    files: int
    kv_bytes_per_token: float
    activations: int
    disk: int
    build_memory: int | None
    build_seconds: float | None
    build_seconds_from: str
    built: int | None
    fits: list[Fit] = field(default_factory=list)


def plan_model(
    project: Project, name: str, gpus: Sequence[str] = (), memory: int | None = None
) -> ModelPlan:
    """Plan one model: on this host, or on each of `gpus` (that of `engine.target` or
    all that are known, when there are none).

    `memory` replaces what the devices are known to have. Raises ConfigurationError, UsageError.
    """
    model = model_named(project, name)
    table = estimate_table(project.root)
    figures, storage = _figures(name, model, table)
    folder = project.path(model.checkpoint)
    sizes, tensors = _checkpoint(folder)
    stored = weights(tensors, storage, **_mixture(model.engine, figures))
    wanted = _demand(model, figures, storage, sizes, stored, table)
    chosen = gpus or ([model.engine.target.gpu] if model.engine.target.gpu else [])
    devices = _devices(project, figures, chosen, memory)
    files = stored.total + _companions(folder, storage, sizes)
    # An earlier build in another precision is compared by what this model would take in that.
    by_precision = {
        precision: weights(tensors, other).total + _companions(folder, other, sizes)
        for precision, other in figures.precisions.items()
    }
    artefacts = stored_artefacts(project)
    seconds, basis = build_seconds(
        artefacts, model.engine, by_precision | {model.engine.precision: files}
    )
    return ModelPlan(
        model=name,
        builder=model.engine.builder,
        precision=model.engine.precision,
        parameters=stored.parameters,
        weights=stored.total,
        files=files,
        kv_bytes_per_token=wanted.per_token,
        activations=wanted.work,
        disk=_disk(figures, files, stored.parameters),
        build_memory=_build_memory(figures, stored.parameters),
        build_seconds=seconds,
        build_seconds_from=basis,
        built=_built(project, name, artefacts),
        fits=[
            _fit(
                name, model, figures, sizes, wanted, device, _refused(project, model.engine, device)
            )
            for device in devices
        ],
    )


def without_figures(project: Project) -> list[str]:
    """Models whose builder nothing is known of, so that there is no plan for them."""
    known = estimate_table(project.root).builders
    return sorted(n for n, model in project.models.items() if model.engine.builder not in known)


def _figures(name: str, model: Model, table: EstimateTable) -> tuple[BuilderFigures, Storage]:
    figures = table.builders.get(model.engine.builder)
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
    group = model.engine.options.get("group_size")
    if storage.group and isinstance(group, int):
        # -1: one group a row, however long.
        storage = storage.model_copy(update={"group": group if group > 0 else 1 << 62})
    return figures, storage


def _mixture(engine: Engine, figures: BuilderFigures) -> dict[str, Any]:
    """INT4 of some layers, INT8 of the rest, as `options.ratio` asks."""
    ratio = engine.options.get("ratio")
    rest = figures.precisions.get("int8")
    if engine.precision != "int4" or rest is None or not isinstance(ratio, int | float):
        return {}
    return {"ratio": float(ratio), "rest": rest}


def _checkpoint(folder: Path) -> tuple[Architecture, list[Tensor]]:
    sizes = read_architecture(folder)
    if sizes.quantised:
        raise ConfigurationError(
            f"{folder} is quantised already: its tensors do not tell their parameters",
            remedy="plan with the checkpoint it was made from; its files are as large as they are",
        )
    return sizes, read_tensors(folder)


def _devices(
    project: Project, figures: BuilderFigures, gpus: Sequence[str], memory: int | None
) -> list[Device]:
    if figures.device == "host":
        return [Device("host", memory or host_memory())]
    if memory is not None:
        return [Device(name, memory) for name in gpus or ("GPU",)]
    compatibility = table(project.root)
    known = [gpu_named(name, compatibility) for name in gpus] or compatibility.gpus
    return [Device(gpu.name, gpu.memory_gib << 30) for gpu in known]


def _refused(project: Project, engine: Engine, device: Device) -> str | None:
    """Why the engine cannot be built for a GPU of that name or run on it."""
    compatibility = table(project.root)
    if device.name not in {gpu.name for gpu in compatibility.gpus}:
        return None  # nothing but its memory is known
    asked = engine.target.model_dump(include={"release", "world"})
    try:
        target = resolve_target(compatibility, **asked, gpu=device.name)
        check(target, engine.precision, compatibility, kv_cache_dtype=engine.kv_cache_dtype)
    except ConfigurationError as error:
        return error.problem
    return None


def _demand(
    model: Model,
    figures: BuilderFigures,
    storage: Storage,
    sizes: Architecture,
    stored: Weights,
    table: EstimateTable,
) -> Demand:
    engine = model.engine
    dtype = engine.kv_cache_dtype
    if dtype is not None and dtype not in table.kv_cache_dtypes:
        raise ConfigurationError(
            f"no figures for a KV cache of type `{dtype}` in estimates.toml",
            remedy=f"it has those of: {', '.join(table.kv_cache_dtypes)}",
        )
    return demand(
        sizes,
        figures,
        storage,
        stored,
        tokens=engine.max_num_tokens or max(figures.max_num_tokens, engine.max_batch_size),
        kv_bits=table.kv_cache_dtypes[dtype] if dtype else storage.kv,
        beams=engine.max_beam_width,
        tp_size=engine.tp_size,
        pp_size=engine.pp_size,
    )


def _fit(
    name: str,
    model: Model,
    figures: BuilderFigures,
    sizes: Architecture,
    wanted: Demand,
    device: Device,
    refused: str | None,
) -> Fit:
    engine = model.engine
    batch, length = engine.max_batch_size, engine.max_seq_len or sizes.max_position_embeddings
    if length is None:
        raise ConfigurationError(
            f"models.{name}: neither `max_seq_len` nor the checkpoint says how long a sequence is",
            remedy="set `engine.max_seq_len`",
        )
    pool = model.serving.kv_cache_tokens or batch * wanted.in_blocks(length)
    # Instances of one engine share a device and nothing on it.
    instances = sum(group.count for group in model.serving.instance_group)
    usable = device.memory * figures.device_share / instances
    room = Room(usable, figures.memory_fraction)
    longest = room.longest(wanted, batch)
    return Fit(
        device=device,
        refused=refused,
        count=engine.tp_size * engine.pp_size,
        needed=math.ceil(wanted.total(batch, pool) * instances),
        usable=math.floor(usable * instances),
        fits=refused is None and room.fits(wanted, batch, pool),
        batch=batch,
        length=length,
        largest_batch=room.largest_batch(wanted, length),
        longest=min(longest, sizes.max_position_embeddings or longest),
    )


def _disk(figures: BuilderFigures, files: int, parameters: int) -> int:
    scratch = figures.scratch_bytes_per_parameter * parameters
    return math.ceil(figures.disk_copies * files + scratch)


def _build_memory(figures: BuilderFigures, parameters: int) -> int | None:
    if figures.build_bytes_per_parameter is None:
        return None
    return math.ceil(figures.build_bytes + figures.build_bytes_per_parameter * parameters)


def _companions(folder: Path, storage: Storage, sizes: Architecture) -> int:
    """Bytes of what lies beside the weights: the graph's text and the tokenizer."""
    fixed, per_layer = storage.graph
    tokenizer = sum(path.stat().st_size for path in folder.glob("tokenizer*.json"))
    return fixed + per_layer * sizes.num_hidden_layers + tokenizer


def _built(project: Project, name: str, artefacts: Iterable[Stored]) -> int | None:
    """Bytes of the engine if it is there; whether it could be built is not judged here."""
    if all(stored.model != name for stored in artefacts):
        return None  # a checkpoint of 100 GB need not be hashed to know that
    try:
        files = built_engine(project, name).manifest.result.files
    except TritonctlError:
        return None
    return sum(file.size for file in files)


def build_seconds(
    artefacts: Iterable[Stored], engine: Engine, sizes: Mapping[str, int]
) -> tuple[float | None, str]:
    """How long a build will take (seconds), and from which earlier one that is known.

    `sizes` are bytes of the engine by precision; an earlier build is compared with the one of its
    own. seconds * max(1, size / earlier size), from this builder's build nearest in size, of the
    same precision if there is one: never less than that took, because much of a build does not
    depend on size. None when none is within a factor of four.
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
    stages = [best, *sources(best, artefacts)]
    return sum(map(_seconds, stages)) * max(1.0, ratio), best.name


def _seconds(stored: Stored) -> float:
    return sum(stored.record.result.durations_seconds.values()) if stored.record else 0.0
