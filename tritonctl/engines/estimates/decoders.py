# SPDX-License-Identifier: Apache-2.0
"""Memory and disk estimates of text-generation engines, from a checkpoint's headers and sizes.

All results are bytes, tokens or sequences. benchmarks/results/estimates.md compares them with
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tritonctl.engines.estimates.checkpoints import CheckpointTensor, DecoderSizes
from tritonctl.engines.estimates.table import BuilderFigures, Storage

_BITS = 8
_LOGIT_BYTES = 4  # the sampler needs the newest token's logits in FP32


def tensor_bytes(tensor: CheckpointTensor, storage: Storage) -> float:
    """Return the bytes of one stored tensor: elements * bits / 8, plus its scales.

    A linear layer has scales per group of `group` inputs of a row (the last may be shorter), per
    row (output feature), per column (input feature) and per tensor.
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
    # A stack of experts counts as one layer per expert.
    layers = math.prod(tensor.shape[:-2])
    per_layer = tensor.columns * storage.column_bytes + storage.tensor_bytes
    return size + tensor.rows * per_row + layers * per_layer


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of an engine's weights by kind."""

    parameters: int | None  # None: the format does not show them
    linear: int
    embedding: int
    head: int
    other: int
    fullest_device: int | None = None  # bytes on the fullest device of an already split checkpoint

    @property
    def total(self) -> int:
        """Bytes of one engine on one device."""
        return self.linear + self.embedding + self.head + self.other

    def per_device(self, layers: int, tp_size: int, pp_size: int) -> int:
        """Return the bytes on the fullest device.

        Tensor parallelism splits matrices (linear layers, embedding, head) and repeats all other
        tensors. Pipeline parallelism gives ceil(layers / pp_size) layers to a device, the
        embedding to the first and the head to the last one.
        """
        if self.fullest_device is not None:
            return self.fullest_device
        share = math.ceil(layers / pp_size) / layers
        embedding_and_head = self.embedding + self.head
        if pp_size > 1:
            embedding_and_head = max(self.embedding, self.head)
        return math.ceil((self.linear * share + embedding_and_head) / tp_size + self.other * share)


def weight_bytes(
    tensors: Iterable[CheckpointTensor],
    storage: Storage,
    *,
    ratio: float = 1.0,
    other_storage: Storage | None = None,
) -> WeightBytes:
    """Return the bytes of a checkpoint's weights in `storage`.

    A share `ratio` of the linear layers' weights uses `storage`, the remainder `other_storage`. An
    embedding shared with the head is one tensor in both checkpoint and engine.
    """
    bytes_of = dict.fromkeys(("linear", "embedding", "head", "other"), 0.0)
    parameters = 0
    for tensor in tensors:
        parameters += tensor.elements
        size = tensor_bytes(tensor, storage)
        if other_storage is not None and tensor.kind == "linear":
            size = ratio * size + (1 - ratio) * tensor_bytes(tensor, other_storage)
        bytes_of[tensor.kind] += size
    return WeightBytes(parameters, **{kind: round(size) for kind, size in bytes_of.items()})


def kv_bytes_per_token(
    sizes: DecoderSizes, bits: float, head_bytes: float = 0, tp_size: int = 1, pp_size: int = 1
) -> float:
    """Return the bytes of KV cache per token and device.

    2 (key, value) * layers * kv_heads * (head_dim * bits / 8 + head_bytes), with layers split
    among pp_size and heads among tp_size devices, both rounded up. Multi-head latent attention:
    layers * (kv_lora_rank + qk_rope_head_dim) * bits / 8, not split (DeepSeek-V2,
    arXiv:2405.04434, section 2.1). This is an upper bound for attention windows.
    """
    layers = math.ceil(sizes.num_hidden_layers / pp_size)
    if sizes.kv_lora_rank is not None:
        return layers * (sizes.kv_lora_rank + sizes.qk_rope_head_dim) * bits / _BITS
    heads = math.ceil(sizes.num_key_value_heads / tp_size)
    return 2 * layers * heads * (sizes.head_dim * bits / _BITS + head_bytes)


def activation_bytes(sizes: DecoderSizes, bits: float, tokens: int, tp_size: int = 1) -> int:
    """Return the bytes of activations in a step of `tokens` tokens, without logits.

    One layer holds tokens * bits / 8 * (2 * hidden (residual and normed input) + the wider of
    (2 * heads + 2 * kv_heads) * head_dim (query, key, value, attention's output) and
    2 * intermediate (gate and up)), the latter two split among tp_size devices. Kernels with
    workspaces need more, fused kernels less; the estimate is accurate within a factor of two.
    """
    attention = 2 * (sizes.num_attention_heads + sizes.num_key_value_heads) * sizes.head_dim
    mlp_or_attention = max(attention, 2 * sizes.intermediate_size) / tp_size
    return math.ceil(tokens * bits / _BITS * (2 * sizes.hidden_size + mlp_or_attention))


@dataclass(frozen=True)
class MemoryDemand:
    """An engine's memory on one device, in bytes."""

    fixed: float  # weights, libraries and activations
    activations: int  # activations of a step
    per_sequence: float
    per_token: float  # KV cache
    block_size: int  # tokens

    def total(self, batch: int, kv_tokens: int) -> float:
        """Return the bytes for `batch` parallel sequences and a KV pool of `kv_tokens`."""
        return self.fixed + batch * self.per_sequence + kv_tokens * self.per_token

    def round_to_blocks(self, length: int) -> int:
        """Round `length` up to whole blocks: sequences do not share a block."""
        return math.ceil(length / self.block_size) * self.block_size


@dataclass(frozen=True)
class DecoderRoom:
    """Memory of a device."""

    usable: float  # bytes
    kv_fraction: float = 1.0  # share of the remaining bytes available for the KV cache

    def kv_pool(self, demand: MemoryDemand, batch: int) -> float:
        """Return the bytes that remain for the KV cache; negative: not even the weights fit."""
        remaining_bytes = self.usable - demand.fixed - batch * demand.per_sequence
        return remaining_bytes * self.kv_fraction if remaining_bytes > 0 else remaining_bytes

    def fits(self, demand: MemoryDemand, batch: int, kv_tokens: int) -> bool:
        """Whether `batch` sequences and a KV pool of `kv_tokens` fit."""
        return self.kv_pool(demand, batch) >= kv_tokens * demand.per_token

    def largest_batch(self, demand: MemoryDemand, length: int) -> int:
        """Return how many sequences of `length` tokens fit.

        Solves fraction * (usable - fixed - b * per_sequence) = b * length * per_token for b.
        """
        kv = demand.round_to_blocks(length) * demand.per_token
        per_sequence = kv + self.kv_fraction * demand.per_sequence
        available_bytes = self.kv_fraction * (self.usable - demand.fixed)
        return max(0, math.floor(available_bytes / per_sequence))

    def max_length(self, demand: MemoryDemand, batch: int) -> int:
        """Return the tokens, in whole blocks, that each of `batch` sequences may have."""
        tokens = self.kv_pool(demand, batch) / (demand.per_token * batch)
        return max(0, math.floor(tokens / demand.block_size) * demand.block_size)


def memory_demand(
    sizes: DecoderSizes,
    figures: BuilderFigures,
    storage: Storage,
    engine_weights: WeightBytes,
    *,
    tokens: int,
    kv_bits: float,
    beams: int = 1,
    tp_size: int = 1,
    pp_size: int = 1,
) -> MemoryDemand:
    """Return the engine's memory on its fullest device; a step has `tokens` tokens.

    Each of a sequence's `beams` has separate logits and, after the prompt, separate KV. The
    prompt's KV is counted once per beam too.
    """
    resident = engine_weights.per_device(sizes.num_hidden_layers, tp_size, pp_size)
    activations = activation_bytes(sizes, storage.activation, tokens, tp_size)
    per_token = kv_bytes_per_token(sizes, kv_bits, storage.kv_head_bytes, tp_size, pp_size)
    return MemoryDemand(
        fixed=resident * figures.host_copies + figures.host_bytes + activations,
        activations=activations,
        per_sequence=beams * sizes.vocab_size * _LOGIT_BYTES,
        per_token=beams * per_token,
        block_size=figures.block_size,
    )
