# SPDX-License-Identifier: Apache-2.0
"""How much memory and disk an engine will take: formulas over a checkpoint's headers and sizes.

All results are bytes, tokens or sequences; bits are turned to bytes by dividing by 8. How far each
was from what was measured is in docs/explanation/estimates.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tritonctl.engines.estimates.checkpoints import Architecture, Tensor
from tritonctl.engines.estimates.table import BuilderFigures, Storage

_BITS = 8
_LOGIT_BYTES = 4  # of a sequence's newest token, each: the sampler wants FP32


def tensor_bytes(tensor: Tensor, storage: Storage) -> float:
    """Bytes of one stored tensor: elements * bits / 8, and its scales.

    Scales of a linear layer: per group of `group` inputs of a row (the last may be shorter), per
    row (output feature), per column (input feature), per tensor.
    """
    kind = tensor.kind
    size = tensor.elements * float(getattr(storage, kind)) / _BITS
    if kind == "embedding":
        return size + tensor.rows * storage.embedding_row_bytes
    if kind == "head":
        return size + tensor.rows * storage.head_row_bytes
    if kind == "other":
        return size
    groups = math.ceil(tensor.columns / storage.group) if storage.group else 0
    per_row = storage.row_bytes + groups * storage.group_bytes
    # A stack of experts is so many layers side by side.
    layers = math.prod(tensor.shape[:-2])
    per_layer = tensor.columns * storage.column_bytes + storage.tensor_bytes
    return size + tensor.rows * per_row + layers * per_layer


@dataclass(frozen=True)
class Weights:
    """Bytes of an engine's weights by what they are for.

    `parameters` is None where a format does not show them; `fullest` what the fullest device takes
    of a checkpoint that is divided already.
    """

    parameters: int | None
    linear: int
    embedding: int
    head: int
    other: int
    fullest: int | None = None

    @property
    def total(self) -> int:
        """Of one engine on one device."""
        return self.linear + self.embedding + self.head + self.other

    def per_device(self, layers: int, tp_size: int, pp_size: int) -> int:
        """Bytes on the fullest device.

        Tensor parallelism divides matrices (linear layers, embedding, head) and repeats the rest;
        pipeline parallelism gives ceil(layers / pp_size) layers to a device, the embedding to the
        first and the head to the last.
        """
        if self.fullest is not None:
            return self.fullest
        share = math.ceil(layers / pp_size) / layers
        ends = self.embedding + self.head
        if pp_size > 1:
            ends = max(self.embedding, self.head)
        return math.ceil((self.linear * share + ends) / tp_size + self.other * share)


def weights(
    tensors: Iterable[Tensor],
    storage: Storage,
    *,
    ratio: float = 1.0,
    rest: Storage | None = None,
) -> Weights:
    """The weights of a checkpoint, stored as `storage` says.

    `ratio` is the share of the linear layers' weights so stored, `rest` how the others are. An
    embedding that the checkpoint shares with the head is one tensor there and in the engine.
    """
    bytes_of = dict.fromkeys(("linear", "embedding", "head", "other"), 0.0)
    parameters = 0
    for tensor in tensors:
        parameters += tensor.elements
        size = tensor_bytes(tensor, storage)
        if rest is not None and tensor.kind == "linear":
            size = ratio * size + (1 - ratio) * tensor_bytes(tensor, rest)
        bytes_of[tensor.kind] += size
    return Weights(parameters, **{kind: round(size) for kind, size in bytes_of.items()})


def kv_bytes_per_token(
    sizes: Architecture, bits: float, head_bytes: float = 0, tp_size: int = 1, pp_size: int = 1
) -> float:
    """Bytes of KV cache per token and device.

    2 (key, value) * layers * kv_heads * (head_dim * bits / 8 + head_bytes), with layers divided
    among pp_size and heads among tp_size devices, both rounded up. Multi-head latent attention:
    layers * (kv_lora_rank + qk_rope_head_dim) * bits / 8, not divided (DeepSeek-V2,
    arXiv:2405.04434, section 2.1). Windows of attention would need less: this is what never fails.
    """
    layers = math.ceil(sizes.num_hidden_layers / pp_size)
    if sizes.kv_lora_rank is not None:
        return layers * (sizes.kv_lora_rank + sizes.qk_rope_head_dim) * bits / _BITS
    heads = math.ceil(sizes.num_key_value_heads / tp_size)
    return 2 * layers * heads * (sizes.head_dim * bits / _BITS + head_bytes)


def activation_bytes(sizes: Architecture, bits: float, tokens: int, tp_size: int = 1) -> int:
    """Bytes of activations in a step of `tokens` tokens, logits apart.

    What one layer holds at once: tokens * bits / 8 * (2 * hidden (residual and normed input) +
    the wider of (2 * heads + 2 * kv_heads) * head_dim (query, key, value, attention's output) and
    2 * intermediate (gate and up)), the latter two divided among tp_size devices. Kernels with
    workspaces of their own need more, fused ones less: take it for a factor of two.
    """
    attention = 2 * (sizes.num_attention_heads + sizes.num_key_value_heads) * sizes.head_dim
    widest = max(attention, 2 * sizes.intermediate_size) / tp_size
    return math.ceil(tokens * bits / _BITS * (2 * sizes.hidden_size + widest))


@dataclass(frozen=True)
class Demand:
    """What an engine takes of one device: bytes in any case, per sequence and per token of KV.

    `fixed` is weights, libraries and `work`, the activations of a step.
    """

    fixed: float
    work: int
    per_sequence: float
    per_token: float
    block_size: int

    def total(self, batch: int, kv_tokens: int) -> float:
        """Bytes for `batch` sequences at once and a KV pool of `kv_tokens`."""
        return self.fixed + batch * self.per_sequence + kv_tokens * self.per_token

    def in_blocks(self, length: int) -> int:
        """`length` rounded up: no two sequences share a block."""
        return math.ceil(length / self.block_size) * self.block_size


@dataclass(frozen=True)
class Room:
    """Memory of a device: usable bytes, and the share of what they leave that KV may have."""

    usable: float
    kv_fraction: float = 1.0

    def kv_pool(self, demand: Demand, batch: int) -> float:
        """Bytes for the KV cache beside everything else; negative: not even the weights fit."""
        left = self.usable - demand.fixed - batch * demand.per_sequence
        return left * self.kv_fraction if left > 0 else left

    def fits(self, demand: Demand, batch: int, kv_tokens: int) -> bool:
        """Whether `batch` sequences and a KV pool of `kv_tokens` fit."""
        return self.kv_pool(demand, batch) >= kv_tokens * demand.per_token

    def largest_batch(self, demand: Demand, length: int) -> int:
        """Sequences of `length` tokens that fit: the b that solves
        fraction * (usable - fixed - b * per_sequence) = b * length * per_token.
        """
        kv = demand.in_blocks(length) * demand.per_token
        per_sequence = kv + self.kv_fraction * demand.per_sequence
        left = self.kv_fraction * (self.usable - demand.fixed)
        return max(0, math.floor(left / per_sequence))

    def longest(self, demand: Demand, batch: int) -> int:
        """Tokens, in whole blocks, that each of `batch` sequences may have."""
        tokens = self.kv_pool(demand, batch) / (demand.per_token * batch)
        return max(0, math.floor(tokens / demand.block_size) * demand.block_size)


def demand(
    sizes: Architecture,
    figures: BuilderFigures,
    storage: Storage,
    engine_weights: Weights,
    *,
    tokens: int,
    kv_bits: float,
    beams: int = 1,
    tp_size: int = 1,
    pp_size: int = 1,
) -> Demand:
    """What the engine takes of its fullest device; a step has `tokens` tokens.

    Each of a sequence's `beams` has its own logits and, after the prompt, its own KV; the prompt's
    is counted for each, too.
    """
    resident = engine_weights.per_device(sizes.num_hidden_layers, tp_size, pp_size)
    work = activation_bytes(sizes, storage.activation, tokens, tp_size)
    per_token = kv_bytes_per_token(sizes, kv_bits, storage.kv_head_bytes, tp_size, pp_size)
    return Demand(
        fixed=resident * figures.host_copies + figures.host_bytes + work,
        work=work,
        per_sequence=beams * sizes.vocab_size * _LOGIT_BYTES,
        per_token=beams * per_token,
        block_size=figures.block_size,
    )
