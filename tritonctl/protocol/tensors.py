# SPDX-License-Identifier: Apache-2.0
"""Convert NumPy arrays to an inference request of Triton's gRPC protocol, and back.

`TritonClient.infer` imports this lazily: NumPy would delay a command that streams text by 0.1 s.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from tritonctl.errors import RequestRejectedError
from tritonctl.protocol.datatypes import NUMPY_OF, TABLE

Array = NDArray[Any]

_BYTES = "BYTES"
_WIRE = {row.numpy: row.wire for row in TABLE if row.numpy}
_LENGTH = struct.Struct("<I")


def infer_request(model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Any:
    """Build a ModelInferRequest. outputs: names; all outputs when empty.

    Raises RequestRejectedError for an array whose type Triton does not support.
    """
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        wire = _wire(name, array)
        request.inputs.add(name=name, datatype=wire, shape=array.shape)
        request.raw_input_contents.append(raw_content(array, wire))
    for name in outputs:
        request.outputs.add(name=name)
    return request


def _wire(name: str, array: Array) -> str:
    if array.dtype.kind in "OSU":
        return _BYTES
    if array.dtype.name not in _WIRE:
        raise RequestRejectedError(
            f"input {name}: Triton has no data type for arrays of {array.dtype}",
            remedy="convert it, for example with array.astype('float32')",
        )
    return _WIRE[array.dtype.name]


def raw_content(array: Array, wire: str) -> bytes:
    """Encode an array for a tensor of type `wire`."""
    if wire != _BYTES:
        return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    texts = (item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1))
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def infer_response(response: Any) -> dict[str, Array]:
    """Return the outputs of a ModelInferResponse by name; texts are arrays of bytes objects."""
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _array(output, raw) for output, raw in pairs}


def _array(output: Any, raw: bytes) -> Array:
    shape = tuple(output.shape)
    if output.datatype == _BYTES:
        return np.array(texts_of(raw), dtype=object).reshape(shape)
    kind = NUMPY_OF.get(output.datatype)
    if kind is None:  # BF16: NumPy has no such type, so return the bits
        return np.frombuffer(raw, dtype="<u2").reshape(shape)
    return np.frombuffer(raw, dtype=np.dtype(kind).newbyteorder("<")).reshape(shape)


def texts_of(raw: bytes) -> list[bytes]:
    """Decode the elements of a BYTES tensor. Raises struct.error for truncated data."""
    texts, start = [], 0
    while start < len(raw):
        (length,) = _LENGTH.unpack_from(raw, start)
        start += _LENGTH.size
        texts.append(raw[start : start + length])
        start += length
    return texts
