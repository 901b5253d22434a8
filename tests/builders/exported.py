# SPDX-License-Identifier: Apache-2.0
"""Safetensors read with numpy alone, and quantised weights turned back: nothing of the builder's.

Formats: https://github.com/huggingface/safetensors#format, and E4M3 of the OCP 8-bit
specification (bias 7, no infinities).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),
    "BF16": np.dtype("<u2"),
}


def header_of(path: Path) -> dict[str, Any]:
    """Name, type and shape of every tensor in a file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    return header


def tensors_of(path: Path) -> dict[str, Array]:
    """Every tensor of a file; FP8 as numbers, the packed ones as bytes."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, entry in header_of(path).items():
        first, last = (start + offset for offset in entry["data_offsets"])
        values: Array = np.frombuffer(content[first:last], _TYPES[entry["dtype"]])
        if entry["dtype"] == "F8_E4M3":
            values = e4m3(values)
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        found[name] = values.reshape(entry["shape"])
    return found


def e4m3(codes: Array) -> Array:
    """The numbers of E4M3 codes."""
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 0xF).astype(float), (codes & 7) / 8
    normal = (1 + mantissa) * 2.0 ** (exponent - 7)
    return np.asarray(sign * np.where(exponent == 0, mantissa * 2.0**-6, normal))


def int4(packed: Array) -> Array:
    """The rows of packed 4-bit weights: a byte has one in its low half, the next in its high."""
    codes = packed.view(np.uint8)
    rows = np.stack((codes & 0xF, codes >> 4), axis=1).reshape(-1, packed.shape[1]).astype(float)
    return np.where(rows > 7, rows - 16, rows)


def by_block(scales: Array, columns: int) -> Array:
    """One scale for each weight, of scales for blocks of columns."""
    return np.repeat(scales, columns // scales.shape[1], axis=1)
