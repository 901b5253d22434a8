# SPDX-License-Identifier: Apache-2.0
"""One inference with NumPy arrays: arrays to a request of Triton's gRPC protocol, and back.

`TritonClient.infer` imports this when it is called: NumPy costs a command that streams text 0.1 s.
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
    """A ModelInferRequest for these outputs, or for all without any.

    Raises RequestRejectedError for an array of a type that Triton does not have.
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
    """An array's bytes in the protocol's form, for a tensor of that type."""
    if wire != _BYTES:
        return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    texts = (item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1))
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def infer_response(response: Any) -> dict[str, Array]:
    """The outputs of a ModelInferResponse by name; texts as arrays of bytes objects."""
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _array(output, raw) for output, raw in pairs}


def _array(output: Any, raw: bytes) -> Array:
    shape = tuple(output.shape)
    if output.datatype == _BYTES:
        return np.array(texts_of(raw), dtype=object).reshape(shape)
    kind = NUMPY_OF.get(output.datatype)
    if kind is None:  # BF16: the bits, which NumPy has no type for
        return np.frombuffer(raw, dtype="<u2").reshape(shape)
    return np.frombuffer(raw, dtype=np.dtype(kind).newbyteorder("<")).reshape(shape)


def texts_of(raw: bytes) -> list[bytes]:
    """The elements of a BYTES tensor. Raises struct.error for one that is cut."""
    texts, start = [], 0
    while start < len(raw):
        (length,) = _LENGTH.unpack_from(raw, start)
        start += _LENGTH.size
        texts.append(raw[start : start + length])
        start += length
    return texts
