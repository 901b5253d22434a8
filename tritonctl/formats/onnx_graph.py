# SPDX-License-Identifier: Apache-2.0
"""Read the inputs and outputs of an ONNX file from protobuf's wire format, without the weights.

https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tritonctl.formats.graph_file import (
    BrokenFileError,
    ExternalWeights,
    GraphTensor,
    ModelGraph,
    Shape,
    UndecidedFileError,
    whole_number,
)
from tritonctl.formats.wire import BYTES, VARINT, WireFile, fields, messages

# protobuf, and therefore ONNX Runtime, reads no larger message.
MAX_ONNX_BYTES = (1 << 31) - 1
_ORT_FORMAT = b"ORTM"

# onnx.proto: TensorProto.DataType, with Triton's name where it has the type.
TYPES: dict[int, tuple[str, str | None]] = {
    1: ("float", "TYPE_FP32"),
    2: ("uint8", "TYPE_UINT8"),
    3: ("int8", "TYPE_INT8"),
    4: ("uint16", "TYPE_UINT16"),
    5: ("int16", "TYPE_INT16"),
    6: ("int32", "TYPE_INT32"),
    7: ("int64", "TYPE_INT64"),
    8: ("string", "TYPE_STRING"),
    9: ("bool", "TYPE_BOOL"),
    10: ("float16", "TYPE_FP16"),
    11: ("double", "TYPE_FP64"),
    12: ("uint32", "TYPE_UINT32"),
    13: ("uint64", "TYPE_UINT64"),
    14: ("complex64", None),
    15: ("complex128", None),
    16: ("bfloat16", None),
}
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SPARSE = 5, 11, 12, 15
_TENSOR_NAME, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 8, 13, 14
_VALUE_NAME, _VALUE_TYPE, _TENSOR_TYPE = 1, 2, 1
_OTHER_TYPES = {4: "sequence", 5: "map", 7: "opaque", 8: "sparse tensor", 9: "optional"}


def read_onnx(path: Path) -> ModelGraph:
    """Read an ONNX file. Raises OSError, and UndecidedFileError for .ort files and huge graphs."""
    size = path.stat().st_size
    if path.suffix == ".ort":
        raise UndecidedFileError("it is in ONNX Runtime's own format")
    if size > MAX_ONNX_BYTES:
        return ModelGraph(path, "ONNX", read_error="it has over 2 GiB, more than protobuf reads")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if os.pread(descriptor, 4, 4) == _ORT_FORMAT:
            raise UndecidedFileError("it is in ONNX Runtime's own format")
        return _graph(path, WireFile(descriptor, size), size)
    except BrokenFileError as error:
        return ModelGraph(path, "ONNX", read_error=str(error))
    finally:
        os.close(descriptor)


def _graph(path: Path, file: WireFile, size: int) -> ModelGraph:
    inputs: list[GraphTensor] = []
    outputs: list[GraphTensor] = []
    values: set[str] = set()
    weights: dict[str, int] = {}
    graphs = [(a, b) for number, a, b in messages(file, 0, size) if number == _MODEL_GRAPH]
    if not graphs:
        raise BrokenFileError("it has no graph" if size else "it is empty")
    for start, stop in graphs:
        for number, a, b in messages(file, start, stop):
            if number == _GRAPH_INPUT:
                inputs.append(value_info(file, a, b))
            elif number == _GRAPH_OUTPUT:
                outputs.append(value_info(file, a, b))
            elif number == _GRAPH_INITIALIZER:
                values.add(_initializer(file, a, b, weights))
            elif number == _GRAPH_SPARSE:
                values.update(
                    _initializer(file, c, d, weights)
                    for inner, c, d in messages(file, a, b)
                    if inner == 1
                )
    return ModelGraph(
        path,
        "ONNX",
        inputs=tuple(tensor for tensor in inputs if tensor.name not in values),
        defaults=tuple(tensor for tensor in inputs if tensor.name in values),
        outputs=tuple(outputs),
        weights=tuple(ExternalWeights(location, length) for location, length in weights.items()),
    )


def value_info(file: WireFile, start: int, stop: int) -> GraphTensor:
    """Read a ValueInfoProto: an input, an output or an intermediate tensor."""
    name, kind, dtype, shape = "", "of no type", None, None
    is_tensor = True
    for number, a, b in messages(file, start, stop):
        if number == _VALUE_NAME:
            name = file.text(a, b)
        elif number == _VALUE_TYPE:
            for inner, c, d in messages(file, a, b):
                if inner == _TENSOR_TYPE:
                    kind, dtype, shape = _tensor_type(file, c, d)
                elif inner in _OTHER_TYPES:
                    kind, is_tensor = _OTHER_TYPES[inner], False
    return GraphTensor((name,), dtype, kind, shape, is_tensor)


class _TensorType(NamedTuple):
    kind: str  # ONNX's name of the data type
    dtype: str | None  # Triton's; None: Triton has none
    shape: Shape | None


def _tensor_type(file: WireFile, start: int, stop: int) -> _TensorType:
    element, shape = 0, None
    for number, wire, a, b in fields(file, start, stop):
        if (number, wire) == (1, VARINT):
            element = a
        elif (number, wire) == (2, BYTES):
            shape = tuple(_dimension(file, c, d) for n, c, d in messages(file, a, b) if n == 1)
    kind, dtype = TYPES.get(element, (f"type {element}", None))
    return _TensorType(kind, dtype, shape)


def _dimension(file: WireFile, start: int, stop: int) -> int | str:
    """Return a size, or the name of a variable one, which old exporters write as a size below 1."""
    size: int | str = "?"
    for number, wire, a, b in fields(file, start, stop):
        if (number, wire) == (1, VARINT):
            size = a if 0 < a < 1 << 63 else "?"
        elif (number, wire) == (2, BYTES):
            size = file.text(a, b) or "?"
    return size


def _initializer(file: WireFile, start: int, stop: int, weights: dict[str, int]) -> str:
    """Return the name of a constant; add the minimum length of its external file to `weights`."""
    name = ""
    outside: dict[str, str] = {}
    is_outside = False
    for number, wire, a, b in fields(file, start, stop):
        if (number, wire) == (_TENSOR_NAME, BYTES):
            name = file.text(a, b)
        elif (number, wire) == (_TENSOR_EXTERNAL, BYTES):
            texts = {n: file.text(c, d) for n, c, d in messages(file, a, b)}
            outside[texts.get(1, "")] = texts.get(2, "")
        elif (number, wire) == (_TENSOR_LOCATION, VARINT):
            is_outside = a == 1
    location = outside.get("location")
    if is_outside and location:
        end = (whole_number(outside.get("offset", "")) or 0) + (
            whole_number(outside.get("length", "")) or 0
        )
        weights[location] = max(weights.get(location, 0), end)
    return name
