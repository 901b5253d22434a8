# SPDX-License-Identifier: Apache-2.0
"""Encode HTTP/2 frames (RFC 9113) and request headers.

A frame has a head of nine bytes: its payload's length (24 bits), kind, flags, stream (31 bits).
Headers are sent unindexed: a few hundred bytes per request are cheap, and no key stays in a table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

HEAD = struct.Struct(">HBBBL")  # the length's upper 16 bits, its lower 8, kind, flags, stream
HEAD_BYTES = HEAD.size
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
# Flags; the first one's meaning depends on the kind.
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
STREAM = 0x7FFFFFFF  # the bits of a stream's number, and the maximum window
# HTTP/2's defaults, which we accept.
MAX_FRAME_BYTES = 16_384
MAX_FRAME_BYTES_LIMIT = (1 << 24) - 1  # of a peer's MAX_FRAME_SIZE
WINDOW_BYTES = 65_535
REFUSED_STREAM, CANCEL = 7, 8  # error codes of RST_STREAM
PING_BYTES = 8
# Numbers of settings.
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 2, 3, 4, 5

_LONG = struct.Struct(">L")
_SETTING = struct.Struct(">HL")
_NEVER_INDEXED = b"\x10"  # a literal with a literal name
_SHORT = 127  # lengths below fit into a byte


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Encode one frame. The payload must not exceed the peer's MAX_FRAME_SIZE."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def window_update(stream: int, size: int) -> bytes:
    """Encode a frame that lets the peer send `size` more bytes; stream 0: connection-wide."""
    return frame(WINDOW_UPDATE, 0, stream, _LONG.pack(size))


def reset(stream: int, code: int) -> bytes:
    """Encode a frame that aborts a stream."""
    return frame(RST_STREAM, 0, stream, _LONG.pack(code))


def number(payload: bytes, at: int = 0) -> int:
    """Decode 32 bits of a payload. Raises struct.error if it is too short."""
    return int(_LONG.unpack_from(payload, at)[0])


def widened(window: int, size: int) -> int:
    """Add to a window. Raises ValueError if `size` is 0 or the window exceeds the maximum."""
    if not size or window + size > STREAM:
        raise ValueError(f"a window of {window} bytes cannot grow by {size}")
    return window + size


def settings(payload: bytes) -> Iterable[tuple[int, int]]:
    """Decode the number and value of each setting. Raises struct.error if incomplete."""
    return _SETTING.iter_unpack(payload)


# A client's first bytes. The connection's window is maximal, because streams have windows, too.
PREFACE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0, _SETTING.pack(ENABLE_PUSH, 0))
    + window_update(0, STREAM - WINDOW_BYTES)
)


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return the payload of DATA or HEADERS without padding and priority. Raises ValueError."""
    start, end = 0, len(payload)
    if flags & PADDED:
        start, end = 1, end - (payload[0] if payload else 0)
    if flags & WITH_PRIORITY:
        start += 5
    if start > end:
        raise ValueError("a frame is shorter than its padding")
    return payload[start:end]


def literals(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode a header block (RFC 7541); names in lower case."""
    return b"".join(
        _NEVER_INDEXED + _text(name.encode("ascii")) + _text(value.encode("latin-1"))
        for name, value in headers
    )


def _text(value: bytes) -> bytes:
    size = len(value)
    if size < _SHORT:
        return bytes((size,)) + value
    digits, remainder = bytearray((_SHORT,)), size - _SHORT
    while remainder > _SHORT:
        digits.append(remainder & _SHORT | 0x80)
        remainder >>= 7
    digits.append(remainder)
    return bytes(digits) + value
