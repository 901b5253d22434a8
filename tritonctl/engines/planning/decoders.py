# SPDX-License-Identifier: Apache-2.0
"""The plan of a text-generation model: an engine with a KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.estimates.checkpoints import (
    CheckpointTensor,
    DecoderSizes,
    read_decoder_sizes,
    read_ranks,
    read_tensors,
)
from tritonctl.engines.estimates.decoders import (
    DecoderRoom,
    MemoryDemand,
    WeightBytes,
    memory_demand,
    weight_bytes,
)
from tritonctl.engines.estimates.packed_weights import stored_weights
from tritonctl.engines.estimates.quantisation import Quantisation, describe, read_quantisation
from tritonctl.engines.estimates.table import BuilderFigures, EstimateTable, Storage
from tritonctl.engines.planning.records import Fit, PlannedDevice
from tritonctl.engines.sources.checkpoint import checkpoint_path
from tritonctl.errors import ConfigurationError
from tritonctl.project.engine import Engine
from tritonctl.project.schema import Model, Project


@dataclass(frozen=True)
class DecoderSubject:
    """A text-generation model with the figures of its builder."""

    name: str
    model: Model
    figures: BuilderFigures
    storage: Storage
    folder: Path
    sizes: DecoderSizes
    tensors: list[CheckpointTensor]
    demand: MemoryDemand
    packed: WeightBytes | None = None  # of a checkpoint that is already quantised
    notes: list[str] = field(default_factory=list)

    @property
    def per_token(self) -> float:
        """Bytes of KV cache per token."""
        return self.demand.per_token

    @property
    def activations(self) -> int:
        """Bytes of activations in one step."""
        return self.demand.activations

    def weights(self, storage: Storage) -> WeightBytes:
        """Return the weights in `storage`; the project's precision also follows its options."""
        if self.packed is not None:
            return self.packed
        mixture = (
            _mixture_options(self.model.engine, self.figures) if storage is self.storage else {}
        )
        return weight_bytes(self.tensors, storage, **mixture)

    def extra_bytes(self, storage: Storage) -> int:
        """Return the bytes of graph text and tokenizer."""
        fixed, per_layer = storage.graph
        tokenizer = sum(path.stat().st_size for path in self.folder.glob("tokenizer*.json"))
        return fixed + per_layer * self.sizes.num_hidden_layers + tokenizer

    def fit(self, device: PlannedDevice, refused: str | None) -> Fit:
        """Return how the model fits a device; `refused` is the reason why it cannot run there."""
        engine = self.model.engine
        batch, length = (
            engine.max_batch_size,
            engine.max_seq_len or self.sizes.max_position_embeddings,
        )
        if length is None:
            raise ConfigurationError(
                f"models.{self.name}: neither `max_seq_len` nor the checkpoint gives the length "
                "of a sequence",
                remedy="set `engine.max_seq_len`",
            )
        kv_tokens = self.model.serving.kv_cache_tokens or batch * self.demand.round_to_blocks(
            length
        )
        # Instances of one engine share the device but no memory.
        instances = sum(group.count for group in self.model.serving.instance_group)
        usable = device.memory * self.figures.device_share / instances
        room = DecoderRoom(usable, self.figures.memory_fraction)
        max_length = room.max_length(self.demand, batch)
        return Fit(
            device=device,
            refused=refused,
            count=engine.tp_size * engine.pp_size,
            needed=math.ceil(self.demand.total(batch, kv_tokens) * instances),
            usable=math.floor(usable * instances),
            fits=refused is None and room.fits(self.demand, batch, kv_tokens),
            batch=batch,
            length=length,
            largest_batch=room.largest_batch(self.demand, length),
            longest=min(max_length, self.sizes.max_position_embeddings or max_length),
        )


def decoder_subject(
    project: Project, name: str, table: EstimateTable, storage: Storage
) -> DecoderSubject:
    """Read a model's checkpoint. Raises ConfigurationError."""
    model = project.models[name]
    folder = checkpoint_path(project, model)
    figures = table.builders[model.engine.builder]
    if figures.max_num_tokens is None:
        builder = builder_named(model.engine.builder, project.root)
        figures = figures.model_copy(update={"max_num_tokens": builder.max_num_tokens})
    sizes = read_decoder_sizes(folder)
    packed, kv = None, None
    notes: list[str] = []
    if (quantisation := read_quantisation(folder)) is None:
        tensors = read_tensors(folder, allow_pickle=model.engine.allow_pickle)
        stored = weight_bytes(tensors, storage, **_mixture_options(model.engine, figures))
    else:
        ranks = _read_ranks(name, model.engine, folder, quantisation)
        tensors = [tensor for rank in ranks for tensor in rank]
        stored = packed = stored_weights(ranks, quantisation)
        notes = describe(quantisation, packed)
        kv = quantisation.kv_cache_dtype if figures.device == "gpu" else None
    if kv is not None and model.engine.kv_cache_dtype is None:
        notes.append(f"the checkpoint requests a KV cache of {kv}; `kv_cache_dtype` overrides it")
    demand = _model_demand(model, figures, storage, sizes, stored, table, kv_default=kv)
    return DecoderSubject(
        name, model, figures, storage, folder, sizes, tensors, demand, packed, notes
    )


def _read_ranks(
    name: str, engine: Engine, folder: Path, quantisation: Quantisation
) -> list[list[CheckpointTensor]]:
    if quantisation.split is None:
        return [read_tensors(folder)]
    if quantisation.split != (engine.tp_size, engine.pp_size):
        tp_size, pp_size = quantisation.split
        raise ConfigurationError(
            f"models.{name}: {folder} is split for tp_size {tp_size} and pp_size {pp_size}, the "
            f"project sets {engine.tp_size} and {engine.pp_size}",
            remedy=f"set `engine.tp_size: {tp_size}` and `engine.pp_size: {pp_size}`",
        )
    return read_ranks(folder, engine.tp_size * engine.pp_size)


def _mixture_options(engine: Engine, figures: BuilderFigures) -> dict[str, Any]:
    """Return the options for INT4 with some layers in INT8, as `options.ratio` requests."""
    ratio = engine.options.get("ratio")
    int8_storage = figures.precisions.get("int8")
    if engine.precision != "int4" or int8_storage is None or not isinstance(ratio, int | float):
        return {}
    return {"ratio": float(ratio), "other_storage": int8_storage}


def _model_demand(
    model: Model,
    figures: BuilderFigures,
    storage: Storage,
    sizes: DecoderSizes,
    stored: WeightBytes,
    table: EstimateTable,
    *,
    kv_default: str | None = None,
) -> MemoryDemand:
    engine = model.engine
    dtype = engine.kv_cache_dtype or kv_default
    if dtype is not None and dtype not in table.kv_cache_dtypes:
        raise ConfigurationError(
            f"no figures for a KV cache of type `{dtype}` in estimates.toml",
            remedy=f"it has figures for: {', '.join(table.kv_cache_dtypes)}",
        )
    return memory_demand(
        sizes,
        figures,
        storage,
        stored,
        tokens=engine.max_num_tokens or max(figures.max_num_tokens or 1, engine.max_batch_size),
        kv_bits=table.kv_cache_dtypes[dtype] if dtype else storage.kv,
        beams=engine.max_beam_width,
        tp_size=engine.tp_size,
        pp_size=engine.pp_size,
    )
