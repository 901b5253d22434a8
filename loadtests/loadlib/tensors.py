# SPDX-License-Identifier: Apache-2.0
"""Values as the raw bytes of KServe's datatypes, little-endian."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

from loadlib.schema import nearest, refused

FORMATS = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


def triton_type(values: list[Any]) -> str:
    """A datatype for values of a tensor that the model does not declare."""
    first = values[0] if values else 0
    if isinstance(first, bool):
        return "BOOL"
    if isinstance(first, str):
        return "BYTES"
    return "INT32" if all(isinstance(value, int) for value in values) else "FP32"


def packed(datatype: str, values: Any, where: str) -> bytes:
    """The raw content; Refusal for a value that does not fit."""
    flat = list(_flat(values))
    if datatype == "BYTES":
        texts = [str(value).encode("utf-8", "surrogatepass") for value in flat]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    if datatype not in FORMATS:
        raise refused(
            where, f"unknown datatype {datatype!r}", nearest(datatype, [*FORMATS, "BYTES"])
        )
    try:
        return struct.pack(f"<{len(flat)}{FORMATS[datatype]}", *flat)
    except (struct.error, OverflowError, TypeError) as error:
        raise refused(
            where, f"{values!r} does not fit into {datatype}: {error}", "give values that fit"
        ) from error


def check_tensor(tensor: dict[str, Any], where: str) -> None:
    """Refusal where {shape, datatype, data} contradict each other."""
    shape = tensor["shape"]
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise refused(f"{where}.shape", f"{shape!r} is not a shape", "give a list of whole numbers")
    packed(tensor["datatype"], tensor["data"], where)
    count = sum(1 for _ in _flat(tensor["data"]))
    if count != math.prod(shape):
        raise refused(where, f"{count} values for shape {shape}", "give one value for each element")


def _flat(values: Any) -> Iterator[Any]:
    """Nested lists row by row."""
    if isinstance(values, list):
        for value in values:
            yield from _flat(value)
    else:
        yield values
