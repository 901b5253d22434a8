# SPDX-License-Identifier: Apache-2.0
"""The weights of an ONNX file: sizes, types, and what operator takes each. No weight is read."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonctl.engines.estimates.checkpoints import Kind, Tensor
from tritonctl.errors import ConfigurationError
from tritonctl.formats.graph_file import (
    BrokenFileError,
    GraphTensor,
    UnjudgedError,
    is_pointer,
)
from tritonctl.formats.onnx_graph import LARGEST, TYPES, value_info
from tritonctl.formats.wire import BYTES, VARINT, WireFile, fields, messages

_AGAIN = "copy, download or export the ONNX file again"
_MODEL_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT, _VALUE = 1, 5, 11, 12, 13
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_LOCATION = 1, 2, 8, 14
# float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
_TENSOR_DATA = {4, 5, 6, 7, 9, 10, 11}
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR = 1, 2, 4
# Bytes by ONNX's name of a type; a missing type (text) has no fixed size.
WIDTHS = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
_FLOATS = {"float", "float16", "bfloat16", "double"}
# A weight that reaches its operator through these is the same weight.
_PASSING = {"Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Transpose"}
_PRODUCTS = {"MatMul", "MatMulInteger", "FusedMatMul"}
_DENSE = {"Gemm", "Conv", "ConvTranspose"}
# ONNX Runtime fuses a Gemm with one of these; of others, dynamic INT8 makes a product.
_FUSED = {"Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign"}
_FUSED |= {"Tanh", "ThresholdedRelu"}
_MATRIX = 2


@dataclass(frozen=True)
class OnnxWeights:
    """An ONNX file: its constants, the bytes of all else in it, the tensors that flow.

    `inputs` are those that a request must have; `values` are all whose shape the file gives, inputs
    and outputs among them. `tensors` has numbers only; texts count as the graph's.
    """

    file: Path
    tensors: tuple[Tensor, ...]
    fixed: tuple[Tensor, ...]
    graph_bytes: int
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    values: tuple[GraphTensor, ...]


@dataclass
class _Graph:
    """What has been seen of a graph."""

    constants: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    inside: int = 0
    nodes: list[tuple[str, list[str], list[str]]] = field(default_factory=list)
    inputs: list[GraphTensor] = field(default_factory=list)
    outputs: list[GraphTensor] = field(default_factory=list)
    values: list[GraphTensor] = field(default_factory=list)


def read_weights(path: Path) -> OnnxWeights:
    """Read an ONNX file. Raises ConfigurationError for a missing or incomplete one."""
    if is_pointer(path):
        raise ConfigurationError(f"{path} is a Git LFS pointer", remedy="fetch it: `git lfs pull`")
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise BrokenFileError("it has over 2 GiB, more than protobuf reads")
        descriptor = os.open(path, os.O_RDONLY)
        try:
            graph = _read(WireFile(descriptor, size), size)
        finally:
            os.close(descriptor)
    except UnjudgedError as error:
        raise ConfigurationError(
            f"{path} has too many fields to plan with", remedy=_AGAIN
        ) from error
    except (OSError, BrokenFileError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}", remedy=_AGAIN) from error
    return _weights(path, size, graph)


def _weights(path: Path, size: int, graph: _Graph) -> OnnxWeights:
    roles = _roles(graph.nodes)
    constants = [
        Tensor(name, kind, shape, math.prod(shape) * WIDTHS.get(kind, 0), roles.get(name, "other"))
        for name, kind, shape in graph.constants
    ]
    names = {name for name, _, _ in graph.constants}
    inputs = tuple(one for one in graph.inputs if one.name not in names)
    return OnnxWeights(
        path,
        tuple(_as_layer(tensor) for tensor in constants if tensor.dtype in _FLOATS),
        tuple(tensor for tensor in constants if tensor.dtype not in _FLOATS),
        size - graph.inside,
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
    operator, taken, given = "", [], []
    for number, a, b in messages(file, start, stop):
        if number == _NODE_INPUT:
            taken.append(file.text(a, b))
        elif number == _NODE_OUTPUT:
            given.append(file.text(a, b))
        elif number == _NODE_OPERATOR:
            operator = file.text(a, b)
    return operator, taken, given


def _constant(file: WireFile, start: int, stop: int, graph: _Graph) -> None:
    name, kind = "", ""
    shape: list[int] = []
    inside = 0
    for number, wire, a, b in fields(file, start, stop):
        if number == _TENSOR_DIMS:
            shape += [a] if wire == VARINT else _packed(file, a, b)
        elif (number, wire) == (_TENSOR_TYPE, VARINT):
            kind = TYPES.get(a, (f"type {a}", None))[0]
        elif (number, wire) == (_TENSOR_NAME, BYTES):
            name = file.text(a, b)
        elif number in _TENSOR_DATA and wire == BYTES and kind in {*WIDTHS, ""}:
            inside += b - a
    graph.constants.append((name, kind, tuple(shape)))
    graph.inside += inside


def _packed(file: WireFile, start: int, stop: int) -> list[int]:
    """Numbers written one behind the other, as protobuf 3 does."""
    numbers, shift, value = [], 0, 0
    for at in range(start, stop):
        value |= (file.bytes[at] & 0x7F) << shift
        shift += 7
        if file.bytes[at] & 0x80 == 0:
            numbers.append(value)
            shift = value = 0
    return numbers


def _roles(nodes: Sequence[tuple[str, list[str], list[str]]]) -> Mapping[str, Kind]:
    """What the constants are to the operators that take them, by name."""
    roles: dict[str, Kind] = {}
    passed = {
        given[0]: taken[0] for op, taken, given in nodes if op in _PASSING and taken and given
    }
    fused = {taken[0] for op, taken, _ in nodes if op in _FUSED and taken}
    for operator, taken, given in nodes:
        role: Kind = "other"
        if operator in _PRODUCTS | _DENSE and len(taken) > 1:
            plain = operator == "Gemm" and not fused.intersection(given)
            role, name = ("linear" if operator in _PRODUCTS or plain else "head"), taken[1]
        elif operator == "Gather" and taken:
            role, name = "embedding", taken[0]
        if role != "other":
            for _ in range(len(_PASSING)):
                name = passed.get(name, name)
            roles.setdefault(name, role)
    return roles


def _as_layer(tensor: Tensor) -> Tensor:
    """As a matrix with a row per output feature, which a MatMul's weight has last."""
    if len(tensor.shape) < _MATRIX:
        return Tensor(tensor.name, tensor.dtype, tensor.shape, tensor.stored, "other")
    if tensor.kind == "linear":
        rows, columns = tensor.shape[-1], math.prod(tensor.shape[:-1])
    else:
        rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    return Tensor(tensor.name, tensor.dtype, (rows, columns), tensor.stored, tensor.kind)
