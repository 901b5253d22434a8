# SPDX-License-Identifier: Apache-2.0
"""What a plan needs to know of a text-generation model: engines with a KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.engines.build.catalog import builder_named
from tritonctl.engines.estimates.checkpoints import (
    Architecture,
    Tensor,
    read_architecture,
    read_ranks,
    read_tensors,
)
from tritonctl.engines.estimates.decoders import Demand, Room, Weights, demand, weights
from tritonctl.engines.estimates.packed_weights import stored_weights
from tritonctl.engines.estimates.quantisation import Quantisation, described, read_quantisation
from tritonctl.engines.estimates.table import BuilderFigures, EstimateTable, Storage
from tritonctl.engines.hub.checkpoint import checkpoint_of
from tritonctl.engines.planning.records import Device, Fit
from tritonctl.errors import ConfigurationError
from tritonctl.project.engine import Engine
from tritonctl.project.schema import Model, Project


@dataclass(frozen=True)
class DecoderSubject:
    """A model that generates text, for the figures of its builder.

    `packed`: the weights of a checkpoint that is quantised already, whatever the precision.
    """

    name: str
    model: Model
    figures: BuilderFigures
    storage: Storage
    folder: Path
    sizes: Architecture
    tensors: list[Tensor]
    wanted: Demand
    packed: Weights | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def per_token(self) -> float:
        """Bytes of KV cache."""
        return self.wanted.per_token

    @property
    def work(self) -> int:
        """Bytes of activations of a step."""
        return self.wanted.work

    def weights(self, storage: Storage) -> Weights:
        """Stored as `storage` says; the project's own precision as its options say, too."""
        if self.packed is not None:
            return self.packed
        own = _mixture(self.model.engine, self.figures) if storage is self.storage else {}
        return weights(self.tensors, storage, **own)

    def beside(self, storage: Storage) -> int:
        """Bytes of what lies beside the weights: the graph's text and the tokenizer."""
        fixed, per_layer = storage.graph
        tokenizer = sum(path.stat().st_size for path in self.folder.glob("tokenizer*.json"))
        return fixed + per_layer * self.sizes.num_hidden_layers + tokenizer

    def fit(self, device: Device, refused: str | None) -> Fit:
        """On a device, `refused` or not."""
        engine = self.model.engine
        batch, length = (
            engine.max_batch_size,
            engine.max_seq_len or self.sizes.max_position_embeddings,
        )
        if length is None:
            raise ConfigurationError(
                f"models.{self.name}: neither `max_seq_len` nor the checkpoint says how long a "
                "sequence is",
                remedy="set `engine.max_seq_len`",
            )
        pool = self.model.serving.kv_cache_tokens or batch * self.wanted.in_blocks(length)
        # Instances of one engine share a device and nothing on it.
        instances = sum(group.count for group in self.model.serving.instance_group)
        usable = device.memory * self.figures.device_share / instances
        room = Room(usable, self.figures.memory_fraction)
        longest = room.longest(self.wanted, batch)
        return Fit(
            device=device,
            refused=refused,
            count=engine.tp_size * engine.pp_size,
            needed=math.ceil(self.wanted.total(batch, pool) * instances),
            usable=math.floor(usable * instances),
            fits=refused is None and room.fits(self.wanted, batch, pool),
            batch=batch,
            length=length,
            largest_batch=room.largest_batch(self.wanted, length),
            longest=min(longest, self.sizes.max_position_embeddings or longest),
        )


def decoder_subject(
    project: Project, name: str, table: EstimateTable, storage: Storage
) -> DecoderSubject:
    """Read what a model is made from. Raises ConfigurationError."""
    model = project.models[name]
    folder = checkpoint_of(project, model)
    figures = table.builders[model.engine.builder]
    if figures.max_num_tokens is None:
        builder = builder_named(model.engine.builder, project.root)
        figures = figures.model_copy(update={"max_num_tokens": builder.max_num_tokens})
    sizes = read_architecture(folder)
    packed, kv = None, None
    notes: list[str] = []
    if (quantisation := read_quantisation(folder)) is None:
        tensors = read_tensors(folder, allow_pickle=model.engine.allow_pickle)
        stored = weights(tensors, storage, **_mixture(model.engine, figures))
    else:
        ranks = _ranks(name, model.engine, folder, quantisation)
        tensors = [tensor for rank in ranks for tensor in rank]
        stored = packed = stored_weights(ranks, quantisation)
        notes = described(quantisation, packed)
        kv = quantisation.kv_cache_dtype if figures.device == "gpu" else None
    if kv is not None and model.engine.kv_cache_dtype is None:
        notes.append(f"the checkpoint asks for a KV cache of {kv}; `kv_cache_dtype` changes that")
    wanted = _demand(model, figures, storage, sizes, stored, table, kv_default=kv)
    return DecoderSubject(
        name, model, figures, storage, folder, sizes, tensors, wanted, packed, notes
    )


def _ranks(
    name: str, engine: Engine, folder: Path, quantisation: Quantisation
) -> list[list[Tensor]]:
    if quantisation.split is None:
        return [read_tensors(folder)]
    if quantisation.split != (engine.tp_size, engine.pp_size):
        tp_size, pp_size = quantisation.split
        raise ConfigurationError(
            f"models.{name}: {folder} is divided for tp_size {tp_size} and pp_size {pp_size}, the "
            f"project asks for {engine.tp_size} and {engine.pp_size}",
            remedy=f"set `engine.tp_size: {tp_size}` and `engine.pp_size: {pp_size}`",
        )
    return read_ranks(folder, engine.tp_size * engine.pp_size)


def _mixture(engine: Engine, figures: BuilderFigures) -> dict[str, Any]:
    """INT4 of some layers, INT8 of the rest, as `options.ratio` asks."""
    ratio = engine.options.get("ratio")
    rest = figures.precisions.get("int8")
    if engine.precision != "int4" or rest is None or not isinstance(ratio, int | float):
        return {}
    return {"ratio": float(ratio), "rest": rest}


def _demand(
    model: Model,
    figures: BuilderFigures,
    storage: Storage,
    sizes: Architecture,
    stored: Weights,
    table: EstimateTable,
    *,
    kv_default: str | None = None,
) -> Demand:
    engine = model.engine
    dtype = engine.kv_cache_dtype or kv_default
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
        tokens=engine.max_num_tokens or max(figures.max_num_tokens or 1, engine.max_batch_size),
        kv_bits=table.kv_cache_dtypes[dtype] if dtype else storage.kv,
        beams=engine.max_beam_width,
        tp_size=engine.tp_size,
        pp_size=engine.pp_size,
    )
