# SPDX-License-Identifier: Apache-2.0
"""The weights of an ONNX file: size, type and operator of each. No weight is read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tritonctl.engines.estimates.checkpoints import CheckpointTensor, Kind
from tritonctl.errors import ConfigurationError
from tritonctl.formats.graph_file import (
    BrokenFileError,
    GraphTensor,
    UndecidedFileError,
    is_lfs_pointer,
)
from tritonctl.formats.onnx_graph import MAX_ONNX_BYTES, TYPES, value_info
from tritonctl.formats.wire import BYTES, VARINT, WireFile, fields, messages

_COPY_AGAIN = "copy, download or export the ONNX file again"
_MODEL_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT, _VALUE = 1, 5, 11, 12, 13
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_LOCATION = 1, 2, 8, 14
# float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
_TENSOR_DATA = {4, 5, 6, 7, 9, 10, 11}
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR = 1, 2, 4
# Bytes per element by ONNX type; types without a fixed size (text) are missing.
WIDTHS = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
_FLOATS = {"float", "float16", "bfloat16", "double"}
# Operators that pass a weight on unchanged.
_PASS_THROUGH = {"Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Transpose"}
_PRODUCTS = {"MatMul", "MatMulInteger", "FusedMatMul"}
_DENSE = {"Gemm", "Conv", "ConvTranspose"}
# ONNX Runtime fuses a Gemm with these; dynamic INT8 converts other Gemms to products.
_FUSED = {"Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign"}
_FUSED |= {"Tanh", "ThresholdedRelu"}
_MATRIX = 2


@dataclass(frozen=True)
class OnnxWeights:
    """Constants and values of an ONNX file."""

    file: Path
    tensors: tuple[CheckpointTensor, ...]  # floating-point constants
    fixed: tuple[CheckpointTensor, ...]  # other constants
    graph_bytes: int  # of the file without numeric constants; texts count here
    inputs: tuple[GraphTensor, ...]  # that a request must have
    outputs: tuple[GraphTensor, ...]
    values: tuple[GraphTensor, ...]  # with a known shape, including inputs and outputs

    def as_batch_of_one(self) -> OnnxWeights:
        """Return a graph without a batch dimension as if every tensor had one in front."""
        return replace(
            self,
            inputs=_with_batch(self.inputs),
            outputs=_with_batch(self.outputs),
            values=_with_batch(self.values),
        )


def _with_batch(tensors: Iterable[GraphTensor]) -> tuple[GraphTensor, ...]:
    return tuple(
        tensor if tensor.shape is None else tensor._replace(shape=(1, *tensor.shape))
        for tensor in tensors
    )


@dataclass
class _Graph:
    """The parts of a graph read so far."""

    constants: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    weight_bytes: int = 0
    nodes: list[tuple[str, list[str], list[str]]] = field(default_factory=list)
    inputs: list[GraphTensor] = field(default_factory=list)
    outputs: list[GraphTensor] = field(default_factory=list)
    values: list[GraphTensor] = field(default_factory=list)


def read_weights(path: Path) -> OnnxWeights:
    """Read an ONNX file. Raises ConfigurationError for a missing or incomplete one."""
    if is_lfs_pointer(path):
        raise ConfigurationError(f"{path} is a Git LFS pointer", remedy="fetch it: `git lfs pull`")
    try:
        size = path.stat().st_size
        if size > MAX_ONNX_BYTES:
            raise BrokenFileError("it is larger than 2 GiB, the limit of protobuf")
        descriptor = os.open(path, os.O_RDONLY)
        try:
            graph = _read(WireFile(descriptor, size), size)
        finally:
            os.close(descriptor)
    except UndecidedFileError as error:
        raise ConfigurationError(
            f"{path} has too many fields to plan with", remedy=_COPY_AGAIN
        ) from error
    except (OSError, BrokenFileError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}", remedy=_COPY_AGAIN) from error
    return _weights(path, size, graph)


def _weights(path: Path, size: int, graph: _Graph) -> OnnxWeights:
    roles = _roles(graph.nodes)
    constants = [
        CheckpointTensor(
            name, kind, shape, math.prod(shape) * WIDTHS.get(kind, 0), roles.get(name, "other")
        )
        for name, kind, shape in graph.constants
    ]
    names = {name for name, _, _ in graph.constants}
    inputs = tuple(value for value in graph.inputs if value.name not in names)
    return OnnxWeights(
        path,
        tuple(_as_layer(tensor) for tensor in constants if tensor.dtype in _FLOATS),
        tuple(tensor for tensor in constants if tensor.dtype not in _FLOATS),
        size - graph.weight_bytes,
        inputs,
        tuple(graph.outputs),
        (*inputs, *graph.outputs, *graph.values),
    )


def _read(file: WireFile, size: int) -> _Graph:
    graph = _Graph()
    graphs = [(a, b) for number, a, b in messages(file, 0, size) if number == _MODEL_GRAPH]
    if not graphs:
        raise BrokenFileError("it has no graph")
    lists = {_INPUT: graph.inputs, _OUTPUT: graph.outputs, _VALUE: graph.values}
    for start, stop in graphs:
        for number, a, b in messages(file, start, stop):
            if number == _NODE:
                graph.nodes.append(_node(file, a, b))
            elif number == _INITIALIZER:
                _constant(file, a, b, graph)
            elif number in lists:
                lists[number].append(value_info(file, a, b))
    return graph


def _node(file: WireFile, start: int, stop: int) -> tuple[str, list[str], list[str]]:
    operator, inputs, outputs = "", [], []
    for number, a, b in messages(file, start, stop):
        if number == _NODE_INPUT:
            inputs.append(file.text(a, b))
        elif number == _NODE_OUTPUT:
            outputs.append(file.text(a, b))
        elif number == _NODE_OPERATOR:
            operator = file.text(a, b)
    return operator, inputs, outputs


def _constant(file: WireFile, start: int, stop: int, graph: _Graph) -> None:
    name, kind = "", ""
    shape: list[int] = []
    weight_bytes = 0
    for number, wire, a, b in fields(file, start, stop):
        if number == _TENSOR_DIMS:
            shape += [a] if wire == VARINT else _packed(file, a, b)
        elif (number, wire) == (_TENSOR_TYPE, VARINT):
            kind = TYPES.get(a, (f"type {a}", None))[0]
        elif (number, wire) == (_TENSOR_NAME, BYTES):
            name = file.text(a, b)
        elif number in _TENSOR_DATA and wire == BYTES and kind in {*WIDTHS, ""}:
            weight_bytes += b - a
    graph.constants.append((name, kind, tuple(shape)))
    graph.weight_bytes += weight_bytes


def _packed(file: WireFile, start: int, stop: int) -> list[int]:
    """Decode a packed repeated field of varints."""
    numbers, shift, value = [], 0, 0
    for position in range(start, stop):
        value |= (file.bytes[position] & 0x7F) << shift
        shift += 7
        if file.bytes[position] & 0x80 == 0:
            numbers.append(value)
            shift = value = 0
    return numbers


def _roles(nodes: Sequence[tuple[str, list[str], list[str]]]) -> Mapping[str, Kind]:
    """Return the role of each constant in the operator that reads it, by name."""
    roles: dict[str, Kind] = {}
    sources = {
        outputs[0]: inputs[0]
        for op, inputs, outputs in nodes
        if op in _PASS_THROUGH and inputs and outputs
    }
    fused_inputs = {inputs[0] for op, inputs, _ in nodes if op in _FUSED and inputs}
    for operator, inputs, outputs in nodes:
        role: Kind = "other"
        if operator in _PRODUCTS | _DENSE and len(inputs) > 1:
            is_plain_gemm = operator == "Gemm" and not fused_inputs.intersection(outputs)
            role, name = ("linear" if operator in _PRODUCTS or is_plain_gemm else "head"), inputs[1]
        elif operator == "Gather" and inputs:
            role, name = "embedding", inputs[0]
        if role != "other":
            for _ in range(len(_PASS_THROUGH)):
                name = sources.get(name, name)
            roles.setdefault(name, role)
    return roles


def _as_layer(tensor: CheckpointTensor) -> CheckpointTensor:
    """Return a weight as a matrix with one row per output feature (last axis for MatMul)."""
    if len(tensor.shape) < _MATRIX:
        return CheckpointTensor(
            tensor.name, tensor.dtype, tensor.shape, tensor.stored_bytes, "other"
        )
    if tensor.kind == "linear":
        rows, columns = tensor.shape[-1], math.prod(tensor.shape[:-1])
    else:
        rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    return CheckpointTensor(
        tensor.name, tensor.dtype, (rows, columns), tensor.stored_bytes, tensor.kind
    )
