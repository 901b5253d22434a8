# SPDX-License-Identifier: Apache-2.0
"""A client's HTTP/2 connection: frames in and out, calls by stream number."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import hpack

from tritonctl.http2 import frames
from tritonctl.http2.call import GrpcCall

_MAX_HEADER_BYTES = 65_536
_MAX_STREAM = frames.STREAM - 1
# Received bytes after which the connection's window is extended.
_CREDIT_BYTES = 1 << 30
_BAD = (ValueError, IndexError, struct.error, hpack.HPACKError)
_INDEXED = 0x80  # a header that a table contains
_MAX_CACHED_BLOCKS = 64  # decoded header blocks


class Http2Connection(asyncio.Protocol):
    """A connection for many calls. `start_call` starts a call; the connection reports to it.

    A protocol error of the server ends the connection, and its calls become UNAVAILABLE.
    `on_change`: called when the server's settings have arrived, a call has ended, or the connection
    has ended.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.is_opening = True  # until the server's settings arrive, or the connection ends
        self.end_reason = ""
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Stream] = {}
        self._blocked: dict[int, _Stream] = {}  # whose requests wait for a window
        self._decoder = hpack.Decoder(max_header_list_size=_MAX_HEADER_BYTES)
        self._blocks: dict[
            bytes, dict[str, str]
        ] = {}  # decoded blocks, valid until the table changes
        self._buffer = b""
        self._block = b""  # an incomplete header block
        self._block_of = (0, 0)  # its stream, its flags
        self._next = 1
        self._received = 0
        self._window = self._first_window = frames.WINDOW_BYTES
        self._max_frame_bytes = frames.MAX_FRAME_BYTES
        self._max_calls = frames.STREAM
        self._leaving = False
        self._is_finished = False  # ignores further frames

    @property
    def usable(self) -> bool:
        """Whether another call can start."""
        return (
            self._transport is not None
            and not self._leaving
            and len(self._calls) < self._max_calls
            and self._next <= _MAX_STREAM
        )

    @property
    def is_idle(self) -> bool:
        """Whether no calls are running."""
        return not self._calls

    @property
    def is_closing(self) -> bool:
        """Whether no further call can ever start."""
        return self._transport is None or self._leaving or self._next > _MAX_STREAM

    def start_call(self, call: GrpcCall, headers: bytes, message: bytes) -> None:
        """Send a request of one message. Call only while `usable`."""
        number, self._next = self._next, self._next + 2
        stream = self._calls[number] = _Stream(self, number, call, self._first_window)
        call.stream = stream
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, number, headers)
        if call.window > frames.WINDOW_BYTES:
            head += frames.window_update(number, call.window - frames.WINDOW_BYTES)
        size = len(message)
        if size <= min(self._window, stream.window, self._max_frame_bytes):  # usually: one packet
            self._window -= size
            stream.window -= size
            body = frames.frame(frames.DATA, frames.END_STREAM, number, message)
            self.send(head + body)
            return
        self.send(head)
        stream.body = memoryview(message)
        self._send_body(stream)

    def close(self) -> None:
        """Close at once and cancel running calls."""
        for stream in list(self._calls.values()):
            stream.call.cancel()
        self._break("the connection was closed")

    def send(self, data: bytes) -> None:
        """Send encoded frames."""
        if self._transport is not None:
            self._transport.write(data)

    def forget(self, stream: _Stream) -> None:
        """Remove a finished stream."""
        self._calls.pop(stream.number, None)
        self._blocked.pop(stream.number, None)
        self._close_if_drained()
        self._on_change()

    # Of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface with our settings."""
        self._transport = transport  # type: ignore[assignment] # uvloop's has another class
        self.send(frames.PREFACE)

    def eof_received(self) -> None:
        """End the connection: the server has closed it."""
        self._break("Socket closed")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the running calls."""
        self._break("Socket closed" if exc is None else f"Socket closed: {exc}")

    def data_received(self, data: bytes) -> None:
        """Handle all complete frames."""
        if self._buffer:
            data = self._buffer + data
        at, end = 0, len(data)
        unpack, head_bytes = frames.HEAD.unpack_from, frames.HEAD_BYTES
        while not self._is_finished and end - at >= head_bytes:
            high, low, kind, flags, number = unpack(data, at)
            size = high << 8 | low
            if size > frames.MAX_FRAME_BYTES:
                self._break(f"the server sent a frame of {size} bytes")
                return
            start = at + head_bytes
            if start + size > end:
                break
            at = start + size
            number &= frames.STREAM
            # A response is the usual case.
            if kind == frames.DATA and not flags and number and not self._block_of[0]:
                self._received += size
                stream = self._calls.get(number)
                if stream is not None:
                    stream.call.data(data[start:at])
                continue
            try:
                self._frame(kind, flags, number, data[start:at])
            except _BAD as error:
                self._break(f"the server does not speak HTTP/2: {error}")
                return
        self._buffer = b"" if self._is_finished else data[at:]
        if self._received >= _CREDIT_BYTES:
            self.send(frames.window_update(0, self._received))
            self._received = 0

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block_of[0] and kind != frames.CONTINUATION:
            raise ValueError("headers were interrupted")
        if number == 0 and kind in _STREAM_FRAMES:
            raise ValueError(f"a frame of kind {kind} belongs to no stream")
        handler = _FRAME_HANDLERS.get(kind)
        if handler is not None:  # unknown kinds must be ignored
            handler(self, flags, number, payload)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        self._received += len(payload)
        stream = self._calls.get(number)
        if stream is None:  # the reader has left, and the server knows
            return
        content = frames.unpadded(flags & frames.PADDED, payload)
        stream.call.data(content, padding=len(payload) - len(content))
        if flags & frames.END_STREAM:
            stream.call.headers({}, last=True)
            self.forget(stream)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        self._block, self._block_of = frames.unpadded(flags, payload), (number, flags)
        self._end_block(flags)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block_of[0] != number:
            raise ValueError("received CONTINUATION for another stream")
        self._block += payload
        if len(self._block) > _MAX_HEADER_BYTES:
            raise ValueError("headers are too long")
        self._end_block(flags)

    def _end_block(self, flags: int) -> None:
        """Decode a complete block, also of a stream whose reader left: all share the table."""
        if not flags & frames.END_HEADERS:
            return
        block, self._block = self._block, b""
        (number, first_flags), self._block_of = self._block_of, (0, 0)
        headers = self._blocks.get(block) or self._decoded(block)
        stream = self._calls.get(number)
        if stream is None:
            return
        last = bool(first_flags & frames.END_STREAM)
        stream.call.headers(headers, last=last)
        if last:
            unsent = bool(stream.body)
            self.forget(stream)
            if unsent:
                self.send(frames.reset(number, frames.CANCEL))

    def _decoded(self, block: bytes) -> dict[str, str]:
        """Return names and values. A block of table references does not change the table."""
        headers = {
            bytes(name).decode("latin-1"): bytes(value).decode("latin-1")
            for name, value in self._decoder.decode(block, raw=True)
        }
        if min(block, default=0) < _INDEXED or len(self._blocks) >= _MAX_CACHED_BLOCKS:
            self._blocks.clear()
        else:
            self._blocks[block] = headers
        return headers

    def _reset(self, _: int, number: int, payload: bytes) -> None:
        code = frames.number(payload)
        stream = self._calls.get(number)
        if stream is not None:
            self.forget(stream)
            if code == frames.REFUSED_STREAM:
                stream.call.not_processed(f"Received RST_STREAM with error code {code}")
            else:
                stream.call.was_reset(code)

    def _settings(self, flags: int, _: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        for number, value in frames.settings(payload):
            if number == frames.MAX_CONCURRENT_STREAMS:
                self._max_calls = value
            elif number == frames.MAX_FRAME_SIZE:
                if not frames.MAX_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES_LIMIT:
                    raise ValueError(f"it accepts frames of {value} bytes")
                self._max_frame_bytes = value
            elif number == frames.INITIAL_WINDOW_SIZE:
                if value > frames.STREAM:
                    raise ValueError(f"it starts with a window of {value} bytes")
                for stream in self._calls.values():
                    stream.window += value - self._first_window
                self._first_window = value
        self.send(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._send_blocked()
        self.is_opening = False
        self._on_change()

    def _ping(self, flags: int, _: int, payload: bytes) -> None:
        if len(payload) != frames.PING_BYTES:
            raise ValueError(f"a ping has {len(payload)} bytes")
        if not flags & frames.ACK:
            self.send(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, _: int, __: int, payload: bytes) -> None:
        """Accept no new calls; restart those that the server has not processed."""
        self._leaving = True
        last = frames.number(payload) & frames.STREAM
        for stream in [each for each in self._calls.values() if each.number > last]:
            self.forget(stream)
            stream.call.not_processed("GOAWAY received")
        self._close_if_drained()

    def _window_update(self, _: int, number: int, payload: bytes) -> None:
        size = frames.number(payload) & frames.STREAM
        if not number:
            self._window = frames.widened(self._window, size)
            self._send_blocked()
        elif stream := self._calls.get(number):
            stream.window = frames.widened(stream.window, size)
            self._send_body(stream)

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise ValueError("it pushes although we disabled it")

    def _send_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            self._send_body(stream)

    def _send_body(self, stream: _Stream) -> None:
        """Send as much of a request as the windows allow."""
        while stream.body:
            room = min(self._window, stream.window, self._max_frame_bytes)
            if room <= 0:
                self._blocked[stream.number] = stream
                return
            piece, stream.body = stream.body[:room], stream.body[room:]
            self._window -= len(piece)
            stream.window -= len(piece)
            flags = 0 if stream.body else frames.END_STREAM
            self.send(frames.frame(frames.DATA, flags, stream.number, piece))
        self._blocked.pop(stream.number, None)

    def _close_if_drained(self) -> None:
        """Close after a GOAWAY, once the last call has ended."""
        if self._leaving and not self._calls and self._transport is not None:
            self._is_finished = True
            self._transport.close()

    def _break(self, reason: str) -> None:
        self._is_finished = True
        transport, self._transport = self._transport, None
        streams = list(self._calls.values())
        self._calls.clear()
        self._blocked.clear()
        if transport is not None:
            transport.abort()
        self.is_opening, self.end_reason = False, self.end_reason or reason
        for stream in streams:
            stream.call.lost(reason)
        self._on_change()


class _Stream:
    """A call's stream on its connection."""

    __slots__ = ("body", "call", "connection", "number", "window")

    def __init__(
        self, connection: Http2Connection, number: int, call: GrpcCall, window: int
    ) -> None:
        self.connection, self.number, self.call = connection, number, call
        self.window = window  # request bytes that the server accepts now
        self.body = memoryview(b"")  # the unsent part of the request

    def credit(self, size: int) -> None:
        """As Stream."""
        self.connection.send(frames.window_update(self.number, size))

    def leave(self) -> None:
        """As Stream."""
        if self.number in self.connection._calls:
            self.connection.send(frames.reset(self.number, frames.CANCEL))
            self.connection.forget(self)


_STREAM_FRAMES = (frames.DATA, frames.HEADERS, frames.RST_STREAM, frames.CONTINUATION)
_FRAME_HANDLERS: dict[int, Callable[[Http2Connection, int, int, bytes], None]] = {
    frames.DATA: Http2Connection._data,
    frames.HEADERS: Http2Connection._headers,
    frames.RST_STREAM: Http2Connection._reset,
    frames.SETTINGS: Http2Connection._settings,
    frames.PUSH_PROMISE: Http2Connection._push_promise,
    frames.PING: Http2Connection._ping,
    frames.GOAWAY: Http2Connection._goaway,
    frames.WINDOW_UPDATE: Http2Connection._window_update,
    frames.CONTINUATION: Http2Connection._continuation,
}
