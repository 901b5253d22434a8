# SPDX-License-Identifier: Apache-2.0
"""Protobuf's wire format, read field by field from a file; large fields are skipped.

https://protobuf.dev/programming-guides/encoding/. The file is read in windows and never mapped: one
that shrinks while it is mapped kills the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from tritonctl.formats.graph_file import BrokenFileError, UnjudgedError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIRES = (VARINT, FIXED64, BYTES, FIXED32)
_WINDOW = 1 << 16
_SMALL = 1 << 20
_LONGEST_NAME = 1 << 12
# Ten times as many as the largest graphs have: a file may be made to take hours.
_MOST_FIELDS = 300_000
# A number has at most ten bytes of seven bits.
_MOST_BITS = 70


class _Bytes(Protocol):
    def __getitem__(self, index: int, /) -> int: ...


class WireFile:
    """A file by position: a small one as a whole, a large one a window at a time."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._window = b""
        self._start = 0
        self.fields_left = _MOST_FIELDS
        self.bytes: _Bytes = self
        if size <= _SMALL:
            self.bytes = whole = os.pread(descriptor, size, 0)
            if len(whole) < size:
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
        """The text there, cut where it is too long for a name."""
        length = min(stop - start, _LONGEST_NAME)
        return os.pread(self._descriptor, length, start).decode("utf-8", "replace")


def messages(file: WireFile, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message that have a length: number, start, end."""
    return ((n, a, b) for n, wire, a, b in fields(file, start, stop) if wire == BYTES)


def fields(file: WireFile, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, start and end; of a varint its value and 0."""
    data = file.bytes
    while at < stop:
        file.fields_left -= 1
        if file.fields_left < 0:
            raise UnjudgedError
        begin = at
        key, at = _varint(data, at, stop)
        number, wire = key >> 3, key & 7
        if number == 0 or wire not in _WIRES:
            raise BrokenFileError(f"it is not protobuf at byte {begin}")
        if wire == VARINT:
            value, at = _varint(data, at, stop)
            yield number, wire, value, 0
            continue
        if wire == BYTES:
            length, at = _varint(data, at, stop)
        else:
            length = 4 if wire == FIXED32 else 8
        if length > stop - at:
            raise BrokenFileError(f"it is cut off: the field at byte {begin} has {length} bytes")
        yield number, wire, at, at + length
        at += length


def _varint(data: _Bytes, at: int, stop: int) -> tuple[int, int]:
    if at < stop and (byte := data[at]) & 0x80 == 0:
        return byte, at + 1  # almost all of them
    value = shift = 0
    while at < stop and shift < _MOST_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte & 0x80 == 0:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise BrokenFileError(f"it is not protobuf, or cut off, at byte {at}")
