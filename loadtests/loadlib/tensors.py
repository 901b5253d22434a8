# SPDX-License-Identifier: Apache-2.0
"""Values as the raw bytes of KServe's datatypes, little-endian."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

from loadlib.schema import field_error, suggest

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
    """Return a datatype for the values of an undeclared tensor."""
    first = values[0] if values else 0
    if isinstance(first, bool):
        return "BOOL"
    if isinstance(first, str):
        return "BYTES"
    return "INT32" if all(isinstance(value, int) for value in values) else "FP32"


def pack_tensor(datatype: str, values: Any, location: str) -> bytes:
    """Return the raw bytes of values. Raises RunRefusedError for values that do not fit."""
    flat = list(_flatten(values))
    if datatype == "BYTES":
        texts = [str(value).encode("utf-8", "surrogatepass") for value in flat]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    if datatype not in FORMATS:
        raise field_error(
            location, f"unknown datatype {datatype!r}", suggest(datatype, [*FORMATS, "BYTES"])
        )
    try:
        return struct.pack(f"<{len(flat)}{FORMATS[datatype]}", *flat)
    except (struct.error, OverflowError, TypeError) as error:
        raise field_error(
            location, f"{values!r} does not fit into {datatype}: {error}", "give values that fit"
        ) from error


def check_tensor(tensor: dict[str, Any], location: str) -> None:
    """Raise RunRefusedError if shape, datatype and data contradict each other."""
    shape = tensor["shape"]
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise field_error(
            f"{location}.shape", f"{shape!r} is not a shape", "give a list of whole numbers"
        )
    pack_tensor(tensor["datatype"], tensor["data"], location)
    count = sum(1 for _ in _flatten(tensor["data"]))
    if count != math.prod(shape):
        raise field_error(
            location, f"{count} values for shape {shape}", "give one value for each element"
        )


def _flatten(values: Any) -> Iterator[Any]:
    """Yield the elements of nested lists in row-major order."""
    if isinstance(values, list):
        for value in values:
            yield from _flatten(value)
    else:
        yield values
