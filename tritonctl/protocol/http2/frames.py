# SPDX-License-Identifier: Apache-2.0
"""HTTP/2's frames (RFC 9113) and the headers of a request, as bytes.

A frame has a head of nine bytes: its payload's length (24 bits), kind, flags, stream (31 bits).
Headers go out as they are, unindexed: there is nothing to be saved in a few hundred bytes a
request, and nothing of a key stays in a table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

HEAD = struct.Struct(">HBBBL")  # the length's upper 16 bits, its lower 8, kind, flags, stream
HEAD_BYTES = HEAD.size
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
# Flags; what the first means depends on the kind.
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
STREAM = 0x7FFFFFFF  # the bits of a stream's number, and the highest window
# What we accept, as nobody has told otherwise.
MOST_FRAME_BYTES = 16_384
WINDOW_BYTES = 65_535
REFUSED_STREAM, CANCEL = 7, 8  # error codes of RST_STREAM
# Numbers of settings.
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 2, 3, 4, 5

_LONG = struct.Struct(">L")
_SETTING = struct.Struct(">HL")
_NEVER_INDEXED = b"\x10"  # a literal, whose name is one, too
_SHORT = 127  # lengths below fit into a byte


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """One frame; its payload has at most the peer's MAX_FRAME_SIZE."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def window_update(stream: int, size: int) -> bytes:
    """The peer may send so many bytes more; stream 0: on the whole connection."""
    return frame(WINDOW_UPDATE, 0, stream, _LONG.pack(size))


def reset(stream: int, code: int) -> bytes:
    """The end of a stream that has not ended by itself."""
    return frame(RST_STREAM, 0, stream, _LONG.pack(code))


def number(payload: bytes, at: int = 0) -> int:
    """32 bits of a payload. Raises struct.error when they are not there."""
    return int(_LONG.unpack_from(payload, at)[0])


def settings(payload: bytes) -> Iterable[tuple[int, int]]:
    """Number and value of each. Raises struct.error for a part of one."""
    return _SETTING.iter_unpack(payload)


# A client's first bytes. The connection's window is as wide as may be: streams have their own.
PREFACE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0, _SETTING.pack(ENABLE_PUSH, 0))
    + window_update(0, STREAM - WINDOW_BYTES)
)


def unpadded(flags: int, payload: bytes) -> bytes:
    """The payload of DATA or HEADERS without padding and priority. Raises ValueError."""
    start, end = 0, len(payload)
    if flags & PADDED:
        start, end = 1, end - (payload[0] if payload else 0)
    if flags & WITH_PRIORITY:
        start += 5
    if start > end:
        raise ValueError("a frame is shorter than its padding")
    return payload[start:end]


def literals(headers: Iterable[tuple[str, str]]) -> bytes:
    """A header block (RFC 7541); names in lower case."""
    return b"".join(
        _NEVER_INDEXED + _text(name.encode("ascii")) + _text(value.encode("latin-1"))
        for name, value in headers
    )


def _text(value: bytes) -> bytes:
    size = len(value)
    if size < _SHORT:
        return bytes((size,)) + value
    digits, rest = bytearray((_SHORT,)), size - _SHORT
    while rest > _SHORT:
        digits.append(rest & _SHORT | 0x80)
        rest >>= 7
    digits.append(rest)
    return bytes(digits) + value
