# SPDX-License-Identifier: Apache-2.0
"""How much memory a graph without a KV cache takes: encoders, classifiers, any ONNX file.

All results are bytes, sequences or elements of a variable dimension ("tokens").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tritonctl.engines.estimates.checkpoints import Tensor
from tritonctl.engines.estimates.decoders import Weights, tensor_bytes
from tritonctl.engines.estimates.encoders import Encoder
from tritonctl.engines.estimates.onnx_weights import WIDTHS, OnnxWeights
from tritonctl.engines.estimates.table import BuilderFigures, Storage
from tritonctl.formats.graph_file import GraphTensor

_BITS = 8
_FP32_BYTES = 4
# The input of a step and its output live together.
_ALIVE = 2


@dataclass(frozen=True)
class Work:
    """Bytes of activations: a batch of `b` sequences of `n` tokens takes
    b * (per_sequence + n * per_token + n^2 * per_pair).
    """

    per_sequence: float
    per_token: float
    per_pair: float

    def of_one(self, length: int) -> float:
        """Of a sequence of `length` tokens."""
        return self.per_sequence + length * self.per_token + length**2 * self.per_pair

    def times(self, factor: float) -> Work:
        """This many times as much."""
        return Work(self.per_sequence * factor, self.per_token * factor, self.per_pair * factor)

    def longest(self, left: float) -> int:
        """The tokens of one sequence that `left` bytes suffice for: the root of of_one(n) = left.

        Raises ZeroDivisionError where nothing depends on the length.
        """
        left -= self.per_sequence
        if left <= 0:
            return 0
        if not self.per_pair:
            return math.floor(left / self.per_token)
        root = math.sqrt(self.per_token**2 + 4 * self.per_pair * left)
        return math.floor((root - self.per_token) / (2 * self.per_pair))


def encoder_work(encoder: Encoder, bits: float) -> Work:
    """Activations of one layer, the widest point, and the answer.

    Per token: bits / 8 * (2 * hidden (residual and normed input) + the wider of 4 * hidden (query,
    key, value, attention's output) and 2 * intermediate), and what the graph answers in FP32. Per
    pair of tokens: 2 * heads * bits / 8, the scores of attention and their softmax.
    """
    hidden = encoder.hidden_size
    widest = max(4 * hidden, 2 * encoder.intermediate_size)
    return Work(
        per_sequence=0,
        per_token=(2 * hidden + widest) * bits / _BITS + encoder.outputs_per_token * _FP32_BYTES,
        per_pair=2 * encoder.num_attention_heads * bits / _BITS,
    )


def onnx_work(model: OnnxWeights, sizes: dict[str, int], bits: float) -> Work:
    """Activations of an ONNX graph: twice the widest tensor whose shape is in the file.

    For files with the shapes of inputs and outputs only: rows + columns of the widest matrix,
    for each token. Inputs and outputs come on top. Tensors with one variable dimension behind the
    batch count per token, with more per pair of tokens; `sizes` fixes such dimensions by name.
    """
    flowing = [_value(value, sizes, bits) for value in model.values]
    border = [_value(value, sizes, bits) for value in (*model.inputs, *model.outputs)]
    varies = any(value[1] or value[2] for value in border)
    layers = [t for t in model.tensors if t.kind in ("linear", "head")]
    matrix = max((t.rows + t.columns for t in layers), default=0) * bits / _BITS
    widest = [_ALIVE * max((value[at] for value in flowing), default=0) for at in range(3)]
    by_matrix = 1 if varies else 0
    widest[by_matrix] = max(widest[by_matrix], matrix)
    return Work(*(wide + sum(value[at] for value in border) for at, wide in enumerate(widest)))


def _value(value: GraphTensor, sizes: dict[str, int], bits: float) -> tuple[float, float, float]:
    """Bytes of a tensor per sequence, per token, per pair of tokens: one of the three."""
    width = bits / _BITS if value.kind in ("float", "float16") else WIDTHS.get(value.kind, 0)
    dims = [sizes.get(d, d) if isinstance(d, str) else d for d in (value.shape or ())[1:]]
    fixed = math.prod(d for d in dims if isinstance(d, int)) * width
    variable = min(2, sum(isinstance(d, str) for d in dims))
    per: list[float] = [0, 0, 0]
    per[variable] = fixed
    return per[0], per[1], per[2]


def graph_weights(
    tensors: Iterable[Tensor], fixed: Iterable[Tensor], storage: Storage, *, widens: bool
) -> Weights:
    """The weights of a graph, stored as `storage` says; `fixed` stay as they are.

    `widens`: what is narrower than `storage` is stored wider. An exported checkpoint is, a given
    ONNX file keeps its types.
    """
    bytes_of = dict.fromkeys(("linear", "embedding", "head", "other"), 0.0)
    parameters = 0
    for tensor in tensors:
        parameters += tensor.elements
        size = tensor_bytes(tensor, storage)
        bytes_of[tensor.kind] += size if widens else min(size, tensor.stored)
    bytes_of["other"] += sum(tensor.stored for tensor in fixed)
    return Weights(parameters, **{kind: round(size) for kind, size in bytes_of.items()})


@dataclass(frozen=True)
class GraphRoom:
    """Memory of a device, and what an engine takes of it in any case."""

    usable: float
    fixed: float
    work: Work

    def needed(self, batch: int, length: int) -> float:
        """Bytes for a batch."""
        return self.fixed + batch * self.work.of_one(length)

    def largest_batch(self, length: int) -> int:
        """Sequences of `length` tokens that fit."""
        each = self.work.of_one(length)
        return max(0, math.floor((self.usable - self.fixed) / each)) if each else 0

    def longest(self, batch: int) -> int:
        """Tokens that each of `batch` sequences may have."""
        return self.work.longest((self.usable - self.fixed) / batch)


def resident(figures: BuilderFigures, storage: Storage, weights: Weights, workspace: int) -> float:
    """Bytes that are taken before the first request: weights as often as they lie there."""
    copies = figures.host_copies if storage.copies is None else storage.copies
    return weights.total * copies + figures.host_bytes + workspace
