# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 by hand: what a server may send, byte by byte, and what it may not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.http2 import frames
from tritonctl.http2.call import CallError, GrpcCall
from tritonctl.http2.channel import AsyncCall
from tritonctl.http2.connection import Http2Connection

OK = (("grpc-status", "0"),)
HEAD = ((":status", "200"), ("content-type", "application/grpc"))
CODES = grpc.StatusCode


def message(content: bytes, *, compressed: bool = False) -> bytes:
    """As gRPC sends one."""
    return struct.pack(">BL", compressed, len(content)) + content


@dataclass
class Server:
    """What writes to a connection, and keeps what comes back: a transport."""

    connection: Http2Connection = field(default_factory=Http2Connection)
    encoder: hpack.Encoder = field(default_factory=hpack.Encoder)
    again: list[GrpcCall] = field(default_factory=list)  # calls that want another connection
    got: bytes = b""
    closed: bool = False

    def __post_init__(self) -> None:
        """Connect, and read the preface."""
        self.connection.connection_made(cast("Any", self))
        assert self.got.startswith(b"PRI * HTTP/2.0")
        self.got = self.got.partition(b"SM\r\n\r\n")[2]

    def write(self, data: bytes) -> None:
        """As a transport's."""
        self.got += data

    def abort(self) -> None:
        """As a transport's."""
        self.closed = True

    close = abort

    def call(self, request: bytes = b"request", **bounds: int) -> AsyncCall:
        """A call that has begun; its responses are the bytes that came."""

        call = AsyncCall(bytes, self.again.append, **bounds)
        self.connection.start_call(call, b"", message(request))
        return call

    def send(self, *pieces: bytes) -> None:
        """Frames."""
        self.connection.data_received(b"".join(pieces))

    def headers(self, stream: int, *headers: tuple[str, str], last: bool = False) -> bytes:
        """A whole block in a frame."""
        flags = frames.END_HEADERS | (frames.END_STREAM if last else 0)
        return frames.frame(frames.HEADERS, flags, stream, self.encoder.encode(headers))

    def sent(self, kind: int) -> list[tuple[int, int, bytes]]:
        """Flags, stream, payload of all frames of a kind that came from the client."""
        at, found = 0, []
        while at < len(self.got):
            high, low, this, flags, stream = frames.HEAD.unpack_from(self.got, at)
            start = at + frames.HEAD_BYTES
            at = start + (high << 8 | low)
            if this == kind:
                found.append((flags, stream, self.got[start:at]))
        return found


def data(stream: int, content: bytes, flags: int = 0) -> bytes:
    """A frame of DATA."""
    return frames.frame(frames.DATA, flags, stream, content)


def trailers(server: Server, stream: int, *headers: tuple[str, str]) -> bytes:
    """The end of an answer."""
    return server.headers(stream, *(headers or OK), last=True)


async def read(call: AsyncCall) -> list[bytes]:
    """All responses."""
    return [response async for response in call]


async def failure(call: AsyncCall) -> CallError:
    """How a call fails."""
    with pytest.raises(CallError) as caught:
        await read(call)
    return caught.value


def run(test: Callable[[Server], Awaitable[None]]) -> None:
    """A test in an event loop."""

    async def inside() -> None:
        await test(Server())

    asyncio.run(inside())


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_bytes_come_as_they_like(contents: list[bytes], draw: st.DataObject) -> None:
    """Messages are whole, whatever frames and reads they were cut into."""

    async def test(server: Server) -> None:
        call = server.call()
        body = b"".join(map(message, contents))
        size = draw.draw(st.integers(1, 20), "bytes of a frame")
        framed = b"".join(data(1, body[at : at + size]) for at in range(0, len(body), size))
        stream = server.headers(1, *HEAD) + framed + trailers(server, 1)
        size = draw.draw(st.integers(1, 50), "bytes of a read")
        for at in range(0, len(stream), size):
            server.send(stream[at : at + size])
        assert await read(call) == contents

    run(test)


def test_streams_share_a_connection() -> None:
    """Each has its own responses; numbers are odd and rise."""

    async def test(server: Server) -> None:
        first, second = server.call(), server.call()
        assert [stream for _, stream, _ in server.sent(frames.HEADERS)] == [1, 3]
        server.send(server.headers(3, *HEAD), server.headers(1, *HEAD))
        server.send(data(1, message(b"a")), data(3, message(b"b")), data(1, message(b"c")))
        server.send(trailers(server, 1), trailers(server, 3))
        assert await read(first) == [b"a", b"c"]
        assert await read(second) == [b"b"]

    run(test)


def test_what_may_surround_data_and_headers() -> None:
    """Padding, priority, headers in several frames, kinds of frames that nobody knows."""

    async def test(server: Server) -> None:
        call = server.call()
        block = server.encoder.encode(HEAD)
        first = b"\x02" + bytes(5) + block[:3] + bytes(2)
        server.send(
            frames.frame(frames.HEADERS, frames.PADDED | frames.WITH_PRIORITY, 1, first),
            frames.frame(frames.CONTINUATION, 0, 1, block[3:7]),
            frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[7:]),
            frames.frame(frames.PRIORITY, 0, 1, bytes(5)),
            frames.frame(0xEE, 0xFF, 1, b"new"),
            data(1, b"\x03" + message(b"a") + bytes(3), frames.PADDED),
            trailers(server, 1),
        )
        assert await read(call) == [b"a"]

    run(test)


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ((("grpc-status", "3"), ("grpc-message", "f%C3%BCr %")), CODES.INVALID_ARGUMENT, "für %"),
        ((("grpc-status", "99"),), CODES.UNKNOWN, ""),
        (((":status", "503"), ("content-type", "text/html")), CODES.UNAVAILABLE, "HTTP status 503"),
        (((":status", "401"),), CODES.UNAUTHENTICATED, "HTTP status 401"),
        (((":status", "200"),), CODES.UNKNOWN, "HTTP status 200"),
    ],
    ids=str,
)
def test_an_end_by_headers_alone(
    headers: tuple[tuple[str, str], ...], code: grpc.StatusCode, words: str
) -> None:
    """The status and its words; where gRPC's is missing, what HTTP's means."""

    async def test(server: Server) -> None:
        call = server.call()
        server.send(trailers(server, 1, *headers))
        error = await failure(call)
        assert error.code() is code
        assert words in error.details()

    run(test)


def test_an_answer_of_something_else_is_left() -> None:
    """A page of HTML is not read: the stream is reset."""

    async def test(server: Server) -> None:
        call = server.call()
        server.send(server.headers(1, (":status", "200"), ("content-type", "text/html")))
        assert (await failure(call)).code() is CODES.UNKNOWN
        assert [stream for _, stream, _ in server.sent(frames.RST_STREAM)] == [1]
        server.send(data(1, b"<html>"), data(1, b"", frames.END_STREAM))
        assert not server.closed

    run(test)


@pytest.mark.parametrize(
    ("number", "code"),
    [(0, CODES.INTERNAL), (7, CODES.UNAVAILABLE), (8, CODES.CANCELLED), (77, CODES.INTERNAL)],
)
def test_a_reset(number: int, code: grpc.StatusCode) -> None:
    """What came before it is read; the words are those of gRPC, by which a break is known."""

    async def test(server: Server) -> None:
        call = server.call()
        reset = frames.reset(1, number)
        server.send(server.headers(1, *HEAD), data(1, message(b"a")), reset)
        assert await anext(call) == b"a"
        error = await failure(call)
        assert error.code() is code
        assert error.details() == f"Received RST_STREAM with error code {number}"

    run(test)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (message(b"x", compressed=True), CODES.INTERNAL),
        (struct.pack(">BL", 0, 1001), CODES.RESOURCE_EXHAUSTED),
    ],
    ids=["compressed", "too long"],
)
def test_messages_that_are_not_taken(content: bytes, code: grpc.StatusCode) -> None:
    """The call ends, and its stream is reset; the connection goes on."""

    async def test(server: Server) -> None:
        call = server.call(max_message_bytes=1000)
        server.send(server.headers(1, *HEAD), data(1, content))
        assert (await failure(call)).code() is code
        assert [stream for _, stream, _ in server.sent(frames.RST_STREAM)] == [1]
        assert server.connection.usable

    run(test)


def test_half_a_message_at_the_end() -> None:
    """It is an error, not an answer that is cut."""

    async def test(server: Server) -> None:
        call = server.call()
        server.send(server.headers(1, *HEAD), data(1, message(b"abc")[:-1]), trailers(server, 1))
        assert (await failure(call)).code() is CODES.INTERNAL

    run(test)


@pytest.mark.parametrize(
    "content",
    [
        frames.HEAD.pack(0xFFFF, 0, frames.DATA, 0, 1),
        frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        frames.frame(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 1, b"\x09"),
        frames.frame(frames.HEADERS, 0, 1, b"") + frames.frame(frames.PING, 0, 0, bytes(8)),
        frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, b""),
        frames.frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, bytes(4)),
        frames.frame(frames.SETTINGS, 0, 0, b"abc"),
        frames.frame(frames.RST_STREAM, 0, 1, b"a"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=range(9),
)
def test_what_is_no_http2(content: bytes) -> None:
    """The connection is given up, its calls are UNAVAILABLE."""

    async def test(server: Server) -> None:
        call = server.call()
        server.send(content)
        assert (await failure(call)).code() is CODES.UNAVAILABLE
        assert server.closed
        assert server.connection.is_closing

    run(test)


def test_headers_without_end() -> None:
    """They are bounded."""

    async def test(server: Server) -> None:
        call = server.call()
        server.send(frames.frame(frames.HEADERS, 0, 1, bytes(1000)))
        for _ in range(100):
            server.send(frames.frame(frames.CONTINUATION, 0, 1, bytes(1000)))
        assert (await failure(call)).code() is CODES.UNAVAILABLE

    run(test)


def test_a_request_waits_for_windows() -> None:
    """No more bytes than the server's windows have, in frames that are not too long."""

    async def test(server: Server) -> None:
        first = frames.frame(frames.SETTINGS, 0, 0, struct.pack(">HL", 4, 20_000))
        server.send(first)
        assert server.sent(frames.SETTINGS)[-1][0] == frames.ACK
        server.call(bytes(100_000))

        def sent() -> int:
            pieces = server.sent(frames.DATA)
            assert max(len(piece) for _, _, piece in pieces) <= frames.MAX_FRAME_BYTES
            return sum(len(piece) for _, _, piece in pieces)

        assert sent() == 20_000
        server.send(frames.window_update(1, 60_000))
        assert sent() == frames.WINDOW_BYTES  # the connection's
        server.send(frames.window_update(0, 1_000_000))
        assert sent() == 80_000
        server.send(frames.frame(frames.SETTINGS, 0, 0, struct.pack(">HL", 4, 40_005)))
        assert sent() == 100_005
        assert server.sent(frames.DATA)[-1][0] == frames.END_STREAM

    run(test)


def test_a_slow_reader_holds_its_server_up() -> None:
    """Its window is widened only as far as it reads."""

    async def test(server: Server) -> None:
        call, piece = server.call(), message(bytes(995))
        server.send(server.headers(1, *HEAD))

        def room() -> int:
            grants = [payload for _, stream, payload in server.sent(frames.WINDOW_UPDATE) if stream]
            return frames.WINDOW_BYTES + sum(frames.number(payload) for payload in grants)

        sent = 0
        while room() - sent >= len(piece):
            server.send(data(1, piece))
            sent += len(piece)
        assert sent < 2 * frames.WINDOW_BYTES
        for _ in range(sent // len(piece)):
            await anext(call)
        assert room() - sent > frames.WINDOW_BYTES // 2

    run(test)


def test_a_message_longer_than_a_window() -> None:
    """It comes whole, though nobody can read a part of it."""

    async def test(server: Server) -> None:
        call, content = server.call(), bytes(range(256)) * 4096
        server.send(server.headers(1, *HEAD))
        body = message(content)
        for at in range(0, len(body), 10_000):
            server.send(data(1, body[at : at + 10_000]))
        grants = [payload for _, stream, payload in server.sent(frames.WINDOW_UPDATE) if stream]
        room = frames.WINDOW_BYTES + sum(map(frames.number, grants))
        assert room - len(body) > frames.WINDOW_BYTES // 2
        assert await anext(call) == content

    run(test)


def test_a_call_that_is_left() -> None:
    """The server learns it at once; what it had sent is nobody's, and headers still count."""

    async def test(server: Server) -> None:
        call, other = server.call(), server.call()
        server.send(server.headers(1, *HEAD), data(1, message(b"a")))
        call.cancel()
        call.cancel()
        assert [stream for _, stream, _ in server.sent(frames.RST_STREAM)] == [1]
        assert await call.code() is CODES.CANCELLED
        server.send(data(1, message(b"b")), trailers(server, 1, *OK, ("new", "in the table")))
        server.send(server.headers(3, *HEAD), trailers(server, 3, *OK, ("new", "in the table")))
        assert await read(other) == []

    run(test)


def test_a_server_that_is_about_to_go() -> None:
    """Calls that it has seen go on; later ones go elsewhere; no new ones."""

    async def test(server: Server) -> None:
        seen, unseen = server.call(), server.call()
        server.send(frames.frame(frames.GOAWAY, 0, 0, struct.pack(">LL", 1, 0) + b"bye"))
        assert server.again == [unseen]
        assert not server.connection.usable
        assert not server.closed
        server.send(server.headers(1, *HEAD), data(1, message(b"a")), trailers(server, 1))
        assert await read(seen) == [b"a"]
        assert server.closed

    run(test)


def test_a_refused_call_goes_elsewhere_once() -> None:
    """The server says that it has not looked at it; a second time it is an error."""

    async def test(server: Server) -> None:
        call, other = server.call(), server.call()
        server.send(frames.reset(1, frames.REFUSED_STREAM))
        assert server.again == [call]
        server.connection.start_call(call, b"", message(b"request"))
        server.send(frames.reset(5, frames.REFUSED_STREAM))
        error = await failure(call)
        assert error.code() is CODES.UNAVAILABLE
        assert error.details() == "Received RST_STREAM with error code 7"
        other.cancel()
        assert server.again == [call]

    run(test)


def test_headers_that_point_into_the_table() -> None:
    """They are decoded once, and again when the table has changed."""

    async def test(server: Server) -> None:
        for number, status in enumerate("0033303"):
            call = server.call()
            trailing = (("grpc-status", status), ("grpc-message", f"words {status}"))
            server.send(server.headers(2 * number + 1, *HEAD))
            server.send(trailers(server, 2 * number + 1, *trailing))
            if status == "0":
                assert await read(call) == []
            else:
                assert (await failure(call)).details() == "words 3"

    run(test)


def test_a_connection_is_open_when_the_server_says_so() -> None:
    """By its settings; one that hangs up before was never there."""

    async def test(server: Server) -> None:
        assert server.connection.is_opening
        server.send(frames.frame(frames.SETTINGS, 0, 0))
        assert (server.connection.is_opening, server.connection.end_reason) == (False, "")
        other = Server()
        other.connection.connection_lost(None)
        assert (other.connection.is_opening, other.connection.end_reason) == (
            False,
            "Socket closed",
        )

    run(test)


def test_room_for_one_long_response() -> None:
    """The window is wide from the first; the server is let go on at a quarter of it."""

    async def test(server: Server) -> None:
        call = server.call(window=1 << 20)
        granted = [(stream, frames.number(x)) for _, stream, x in server.sent(frames.WINDOW_UPDATE)]
        assert granted[1:] == [(1, (1 << 20) - frames.WINDOW_BYTES)]
        server.send(server.headers(1, *HEAD))
        body = message(bytes(700_000))
        for at in range(0, len(body), 10_000):
            server.send(data(1, body[at : at + 10_000]))
        assert len(server.sent(frames.WINDOW_UPDATE)) == 4
        assert await anext(call) == bytes(700_000)

    run(test)


def test_a_ping_is_answered() -> None:
    """With the same eight bytes, once."""

    async def test(server: Server) -> None:
        server.send(frames.frame(frames.PING, 0, 0, b"12345678"))
        server.send(frames.frame(frames.PING, frames.ACK, 0, b"87654321"))
        assert server.sent(frames.PING) == [(frames.ACK, 0, b"12345678")]

    run(test)


def test_so_many_calls_at_once() -> None:
    """As many as the server takes on a connection."""

    async def test(server: Server) -> None:
        server.send(frames.frame(frames.SETTINGS, 0, 0, struct.pack(">HL", 3, 2)))
        server.call()
        assert server.connection.usable
        server.call().cancel()
        server.call()
        assert not server.connection.usable
        assert not server.connection.is_closing

    run(test)


def test_headers_of_a_request() -> None:
    """Long ones, too, as anybody's decoder reads them."""
    headers = [(":path", "/a"), ("short", "x" * 126), ("long", "y" * 127), ("longest", "z" * 5000)]
    read = hpack.Decoder().decode(frames.literals(headers))
    assert [(str(name), str(value)) for name, value in read] == headers
