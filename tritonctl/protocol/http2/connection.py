# SPDX-License-Identifier: Apache-2.0
"""One connection of HTTP/2 as its client: frames in and out, calls by their stream's number."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import hpack

from tritonctl.protocol.http2 import frames
from tritonctl.protocol.http2.call import Call

_MOST_HEADER_BYTES = 65_536
_MOST_STREAM = frames.STREAM - 1
# Of received bytes, after which the connection's window is made as wide as it was.
_CREDIT_BYTES = 1 << 30
_BAD = (ValueError, IndexError, struct.error, hpack.HPACKError)
_INDEXED = 0x80  # of a header: it stands in a table already
_MOST_BLOCKS = 64  # that are remembered


class Http2Connection(asyncio.Protocol):
    """Calls begin with `begin` and learn everything else by themselves.

    `usable`: whether another call may begin on it. What a server does against the protocol
    ends the connection, and its calls are UNAVAILABLE. `changed`: called when the server has said
    that it speaks HTTP/2, when a call has ended, or the connection. `is_opening`: until the first
    or the last of these. `why`: the connection has ended.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self.is_opening = True
        self.why = ""
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Stream] = {}
        self._blocked: dict[int, _Stream] = {}  # whose request waits for a window
        self._decoder = hpack.Decoder(max_header_list_size=_MOST_HEADER_BYTES)
        self._blocks: dict[bytes, dict[str, str]] = {}  # decoded, as long as the table is the same
        self._rest = b""
        self._block = b""  # of headers, before a CONTINUATION
        self._block_of = (0, 0)  # its stream, its flags
        self._next = 1
        self._received = 0
        self._window = self._first_window = frames.WINDOW_BYTES
        self._most_frame = frames.MOST_FRAME_BYTES
        self._most_calls = frames.STREAM
        self._leaving = False

    @property
    def usable(self) -> bool:
        """Whether it takes one call more."""
        return (
            self._transport is not None
            and not self._leaving
            and len(self._calls) < self._most_calls
            and self._next <= _MOST_STREAM
        )

    @property
    def is_idle(self) -> bool:
        """Whether it has no calls."""
        return not self._calls

    @property
    def gone(self) -> bool:
        """Whether it will never take one again."""
        return self._transport is None or self._leaving or self._next > _MOST_STREAM

    def begin(self, call: Call, headers: bytes, message: bytes) -> None:
        """Send a request of one message; only while it is `usable`."""
        number, self._next = self._next, self._next + 2
        stream = self._calls[number] = _Stream(self, number, call, self._first_window)
        call.stream = stream
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, number, headers)
        if call.window > frames.WINDOW_BYTES:
            head += frames.window_update(number, call.window - frames.WINDOW_BYTES)
        size = len(message)
        if size <= min(self._window, stream.window, self._most_frame):  # as is usual: one packet
            self._window -= size
            stream.window -= size
            body = frames.frame(frames.DATA, frames.END_STREAM, number, message)
            self.send(head + body)
            return
        self.send(head)
        stream.body = memoryview(message)
        self._send_body(stream)

    def close(self) -> None:
        """Now; calls under way are cancelled."""
        for stream in list(self._calls.values()):
            stream.call.cancel()
        self._break("the connection was closed")

    def send(self, data: bytes) -> None:
        """Frames."""
        if self._transport is not None:
            self._transport.write(data)

    def forget(self, stream: _Stream) -> None:
        """It has ended."""
        self._calls.pop(stream.number, None)
        self._blocked.pop(stream.number, None)
        if self._leaving and not self._calls and self._transport is not None:
            self._transport.close()
        self._changed()

    # Of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we accept."""
        self._transport = transport  # type: ignore[assignment] # uvloop's is none by its class
        self.send(frames.PREFACE)

    def eof_received(self) -> None:
        """The server has closed it."""
        self._break("Socket closed")

    def connection_lost(self, exc: Exception | None) -> None:
        """Calls under way end with it."""
        self._break("Socket closed" if exc is None else f"Socket closed: {exc}")

    def data_received(self, data: bytes) -> None:
        """Frames, as many as have come."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        unpack, head_bytes = frames.HEAD.unpack_from, frames.HEAD_BYTES
        while end - at >= head_bytes:
            high, low, kind, flags, number = unpack(data, at)
            size = high << 8 | low
            if size > frames.MOST_FRAME_BYTES:
                self._break(f"the server sent a frame of {size} bytes")
                return
            start = at + head_bytes
            if start + size > end:
                break
            at = start + size
            if kind == frames.DATA and not flags:  # a response, as is usual
                self._received += size
                stream = self._calls.get(number)
                if stream is not None:
                    stream.call.data(data[start:at])
                continue
            try:
                self._frame(kind, flags, number & frames.STREAM, data[start:at])
            except _BAD as error:
                self._break(f"the server does not speak HTTP/2: {error}")
                return
        self._rest = data[at:]
        if self._received >= _CREDIT_BYTES:
            self.send(frames.window_update(0, self._received))
            self._received = 0

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block_of[0] and kind != frames.CONTINUATION:
            raise ValueError("headers were interrupted")
        take = _FRAMES.get(kind)
        if take is not None:  # others are to be ignored
            take(self, flags, number, payload)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        self._received += len(payload)
        stream = self._calls.get(number)
        if stream is None:  # left; it was told so
            return
        stream.call.data(frames.unpadded(flags & frames.PADDED, payload))
        if flags & frames.END_STREAM:
            stream.call.headers({}, last=True)
            self.forget(stream)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        self._block, self._block_of = frames.unpadded(flags, payload), (number, flags)
        self._end_block(flags)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block_of[0] != number:
            raise ValueError("headers went on elsewhere")
        self._block += payload
        if len(self._block) > _MOST_HEADER_BYTES:
            raise ValueError("headers are too long")
        self._end_block(flags)

    def _end_block(self, flags: int) -> None:
        """Decode it when it is whole, also of a stream that was left: the table is for all."""
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
        """Names and values. A block that only points into the table leaves it as it is."""
        headers = {
            bytes(name).decode("latin-1"): bytes(value).decode("latin-1")
            for name, value in self._decoder.decode(block, raw=True)
        }
        if min(block, default=0) < _INDEXED or len(self._blocks) >= _MOST_BLOCKS:
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
                stream.call.unseen(f"Received RST_STREAM with error code {code}")
            else:
                stream.call.was_reset(code)

    def _settings(self, flags: int, _: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        for number, value in frames.settings(payload):
            if number == frames.MAX_CONCURRENT_STREAMS:
                self._most_calls = value
            elif number == frames.MAX_FRAME_SIZE:
                self._most_frame = value
            elif number == frames.INITIAL_WINDOW_SIZE:
                for stream in self._calls.values():
                    stream.window += value - self._first_window
                self._first_window = value
        self.send(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._send_blocked()
        self.is_opening = False
        self._changed()

    def _ping(self, flags: int, _: int, payload: bytes) -> None:
        if not flags & frames.ACK:
            self.send(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, _: int, __: int, payload: bytes) -> None:
        """No new calls; those that the server has not seen may go elsewhere."""
        self._leaving = True
        last = frames.number(payload) & frames.STREAM
        for stream in [each for each in self._calls.values() if each.number > last]:
            self.forget(stream)
            stream.call.unseen("GOAWAY received")
        if not self._calls and self._transport is not None:
            self._transport.close()

    def _window_update(self, _: int, number: int, payload: bytes) -> None:
        size = frames.number(payload) & frames.STREAM
        if not number:
            self._window += size
            self._send_blocked()
        elif stream := self._calls.get(number):
            stream.window += size
            self._send_body(stream)

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise ValueError("it pushes, which nobody allowed")

    def _send_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            self._send_body(stream)

    def _send_body(self, stream: _Stream) -> None:
        """As much of a request as the windows have room for."""
        while stream.body:
            room = min(self._window, stream.window, self._most_frame)
            if room <= 0:
                self._blocked[stream.number] = stream
                return
            piece, stream.body = stream.body[:room], stream.body[room:]
            self._window -= len(piece)
            stream.window -= len(piece)
            flags = 0 if stream.body else frames.END_STREAM
            self.send(frames.frame(frames.DATA, flags, stream.number, piece))
        self._blocked.pop(stream.number, None)

    def _break(self, why: str) -> None:
        transport, self._transport = self._transport, None
        streams = list(self._calls.values())
        self._calls.clear()
        self._blocked.clear()
        if transport is not None:
            transport.abort()
        self.is_opening, self.why = False, self.why or why
        for stream in streams:
            stream.call.lost(why)
        self._changed()


class _Stream:
    """A call on its connection."""

    __slots__ = ("body", "call", "connection", "number", "window")

    def __init__(self, connection: Http2Connection, number: int, call: Call, window: int) -> None:
        self.connection, self.number, self.call = connection, number, call
        self.window = window  # bytes of the request that the server takes now
        self.body = memoryview(b"")  # of the request, what has not been sent

    def credit(self, size: int) -> None:
        """As Stream."""
        self.connection.send(frames.window_update(self.number, size))

    def leave(self) -> None:
        """As Stream."""
        if self.number in self.connection._calls:
            self.connection.send(frames.reset(self.number, frames.CANCEL))
            self.connection.forget(self)


_FRAMES: dict[int, Callable[[Http2Connection, int, int, bytes], None]] = {
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
