# SPDX-License-Identifier: Apache-2.0
"""Read protobuf's wire format field by field from a file, skipping large fields.

https://protobuf.dev/programming-guides/encoding/. The file is read in windows and never mapped: a
mapped file that shrinks kills the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from tritonctl.formats.graph_file import BrokenFileError, UndecidedFileError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIRES = (VARINT, FIXED64, BYTES, FIXED32)
_WINDOW = 1 << 16
_SMALL = 1 << 20
_MAX_NAME_BYTES = 1 << 12
# Ten times as many as the largest graphs have; crafted files could otherwise take hours.
_MAX_FIELDS = 300_000
# A number has at most ten bytes of seven bits.
_MAX_VARINT_BITS = 70


class _Bytes(Protocol):
    def __getitem__(self, index: int, /) -> int: ...


class WireFile:
    """Bytes of a file by position: a small file is read at once, a large one in windows."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._window = b""
        self._start = 0
        self.remaining_fields = _MAX_FIELDS
        self.bytes: _Bytes = self
        if size <= _SMALL:
            self.bytes = content = os.pread(descriptor, size, 0)
            if len(content) < size:
                raise BrokenFileError("it shrinks while it is read")

    def __getitem__(self, index: int) -> int:
        offset = index - self._start
        if not 0 <= offset < len(self._window):
            self._window = os.pread(self._descriptor, _WINDOW, index)
            self._start, offset = index, 0
            if not self._window:
                raise BrokenFileError("it shrinks while it is read")
        return self._window[offset]

    def text(self, start: int, stop: int) -> str:
        """Return the text of a byte range, truncated to the maximum length of a name."""
        length = min(stop - start, _MAX_NAME_BYTES)
        return os.pread(self._descriptor, length, start).decode("utf-8", "replace")


def messages(file: WireFile, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the length-delimited fields of a message: number, start, end."""
    return ((n, a, b) for n, wire, a, b in fields(file, start, stop) if wire == BYTES)


def fields(file: WireFile, position: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, wire type, start and end; for a varint value and 0."""
    data = file.bytes
    while position < stop:
        file.remaining_fields -= 1
        if file.remaining_fields < 0:
            raise UndecidedFileError("its graph is too large to be read here")
        field_start = position
        key, position = _varint(data, position, stop)
        number, wire = key >> 3, key & 7
        if number == 0 or wire not in _WIRES:
            raise BrokenFileError(f"it is not protobuf at byte {field_start}")
        if wire == VARINT:
            value, position = _varint(data, position, stop)
            yield number, wire, value, 0
            continue
        if wire == BYTES:
            length, position = _varint(data, position, stop)
        else:
            length = 4 if wire == FIXED32 else 8
        if length > stop - position:
            raise BrokenFileError(
                f"it is cut off: the field at byte {field_start} has {length} bytes"
            )
        yield number, wire, position, position + length
        position += length


def _varint(data: _Bytes, at: int, stop: int) -> tuple[int, int]:
    if at < stop and (byte := data[at]) & 0x80 == 0:
        return byte, at + 1  # almost all of them
    value = shift = 0
    while at < stop and shift < _MAX_VARINT_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte & 0x80 == 0:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise BrokenFileError(f"it is not protobuf, or cut off, at byte {at}")
