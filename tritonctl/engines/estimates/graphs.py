# SPDX-License-Identifier: Apache-2.0
"""Memory estimates of graphs without a KV cache: encoders, classifiers, any ONNX file.

All results are bytes, sequences or elements of a variable dimension ("tokens").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tritonctl.engines.estimates.checkpoints import CheckpointTensor
from tritonctl.engines.estimates.decoders import WeightBytes, tensor_bytes
from tritonctl.engines.estimates.encoders import ExportedEncoder
from tritonctl.engines.estimates.onnx_weights import WIDTHS, OnnxWeights
from tritonctl.engines.estimates.table import BuilderFigures, Storage
from tritonctl.formats.graph_file import GraphTensor

_BITS = 8
_FP32_BYTES = 4
# An operator's input and output exist at the same time.
_ALIVE = 2


@dataclass(frozen=True)
class ActivationDemand:
    """Bytes of activations: a batch of `b` sequences of `n` tokens takes
    b * (per_sequence + n * per_token + n^2 * per_pair).
    """

    per_sequence: float
    per_token: float
    per_pair: float

    def sequence_bytes(self, length: int) -> float:
        """Return the bytes for one sequence of `length` tokens."""
        return self.per_sequence + length * self.per_token + length**2 * self.per_pair

    def scaled(self, factor: float) -> ActivationDemand:
        """Return the demand multiplied by a factor."""
        return ActivationDemand(
            self.per_sequence * factor, self.per_token * factor, self.per_pair * factor
        )

    def max_length(self, available_bytes: float) -> int:
        """Return the tokens of one sequence for which `available_bytes` suffice.

        Raises ZeroDivisionError if the demand does not depend on the length.
        """
        available_bytes -= self.per_sequence
        if available_bytes <= 0:
            return 0
        if not self.per_pair:
            return math.floor(available_bytes / self.per_token)
        root = math.sqrt(self.per_token**2 + 4 * self.per_pair * available_bytes)
        return math.floor((root - self.per_token) / (2 * self.per_pair))


def encoder_activations(encoder: ExportedEncoder, bits: float) -> ActivationDemand:
    """Return the activations of one layer at its widest point, plus the outputs.

    Per token: bits / 8 * (2 * hidden (residual and normed input) + the wider of 4 * hidden (query,
    key, value, attention's output) and 2 * intermediate), plus the outputs in FP32. Per pair of
    tokens: 2 * heads * bits / 8 for the attention scores and their softmax.
    """
    hidden = encoder.hidden_size
    widest = max(4 * hidden, 2 * encoder.intermediate_size)
    return ActivationDemand(
        per_sequence=0,
        per_token=(2 * hidden + widest) * bits / _BITS + encoder.outputs_per_token * _FP32_BYTES,
        per_pair=2 * encoder.num_attention_heads * bits / _BITS,
    )


def onnx_activations(model: OnnxWeights, sizes: dict[str, int], bits: float) -> ActivationDemand:
    """Return the activations of an ONNX graph: twice the widest tensor whose shape is in the file.

    For files that only have the shapes of inputs and outputs: rows + columns of the widest matrix
    per token. Inputs and outputs are added. Tensors with one variable dimension after the batch
    count per token, with more per pair of tokens; `sizes` fixes such dimensions by name.
    """
    intermediate = [_value_bytes(value, sizes, bits) for value in model.values]
    inputs_and_outputs = [
        _value_bytes(value, sizes, bits) for value in (*model.inputs, *model.outputs)
    ]
    varies = any(value[1] or value[2] for value in inputs_and_outputs)
    layers = [t for t in model.tensors if t.kind in ("linear", "head")]
    matrix = max((t.rows + t.columns for t in layers), default=0) * bits / _BITS
    widest = [
        _ALIVE * max((value[degree] for value in intermediate), default=0) for degree in range(3)
    ]
    matrix_degree = 1 if varies else 0
    widest[matrix_degree] = max(widest[matrix_degree], matrix)
    return ActivationDemand(
        *(
            wide + sum(value[degree] for value in inputs_and_outputs)
            for degree, wide in enumerate(widest)
        )
    )


def _value_bytes(
    value: GraphTensor, sizes: dict[str, int], bits: float
) -> tuple[float, float, float]:
    """Return a tensor's bytes per sequence, token or pair of tokens; two of them are 0."""
    width = bits / _BITS if value.kind in ("float", "float16") else WIDTHS.get(value.kind, 0)
    dims = [sizes.get(d, d) if isinstance(d, str) else d for d in (value.shape or ())[1:]]
    fixed = math.prod(d for d in dims if isinstance(d, int)) * width
    variable = min(2, sum(isinstance(d, str) for d in dims))
    per: list[float] = [0, 0, 0]
    per[variable] = fixed
    return per[0], per[1], per[2]


def graph_weights(
    tensors: Iterable[CheckpointTensor],
    fixed: Iterable[CheckpointTensor],
    storage: Storage,
    *,
    may_widen: bool,
) -> WeightBytes:
    """Return the bytes of a graph's weights in `storage`; `fixed` tensors keep their type.

    With `may_widen`, tensors narrower than `storage` are widened: an export of a checkpoint does
    so, an existing ONNX file keeps its types.
    """
    bytes_of = dict.fromkeys(("linear", "embedding", "head", "other"), 0.0)
    parameters = 0
    for tensor in tensors:
        parameters += tensor.elements
        size = tensor_bytes(tensor, storage)
        bytes_of[tensor.kind] += size if may_widen else min(size, tensor.stored_bytes)
    bytes_of["other"] += sum(tensor.stored_bytes for tensor in fixed)
    return WeightBytes(parameters, **{kind: round(size) for kind, size in bytes_of.items()})


@dataclass(frozen=True)
class GraphRoom:
    """Memory of a device and a graph's demand."""

    usable: float  # bytes
    fixed: float  # bytes in use before the first request
    activations: ActivationDemand

    def required_bytes(self, batch: int, length: int) -> float:
        """Return the bytes for a batch of sequences of `length` tokens."""
        return self.fixed + batch * self.activations.sequence_bytes(length)

    def largest_batch(self, length: int) -> int:
        """Return how many sequences of `length` tokens fit."""
        each = self.activations.sequence_bytes(length)
        return max(0, math.floor((self.usable - self.fixed) / each)) if each else 0

    def max_length(self, batch: int) -> int:
        """Return the tokens that each of `batch` sequences may have."""
        return self.activations.max_length((self.usable - self.fixed) / batch)


def resident_bytes(
    figures: BuilderFigures, storage: Storage, weights: WeightBytes, workspace: int
) -> float:
    """Return the bytes in use before the first request: weights per copy, libraries, workspace."""
    copies = figures.host_copies if storage.copies is None else storage.copies
    return weights.total * copies + figures.host_bytes + workspace
