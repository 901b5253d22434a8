# SPDX-License-Identifier: Apache-2.0
"""Any bytes from a server: no crash, no stall, bounded memory, the same events however cut.

A server sends frames, some of them damaged, to a connection with three calls, whose readers sleep
or take each response. The tests count windows from the bytes on the wire alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import hpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import at_full_size
from tritonctl.http2 import frames
from tritonctl.http2.call import GrpcCall
from tritonctl.http2.connection import Http2Connection

STREAMS = (1, 3, 5)
REQUEST_BYTES = 100_000  # more than the first window
MAX_MESSAGE_BYTES = 20_000
EDGES = (0, 1, 100, 16_383, 16_384, 65_535, 65_536, (1 << 24) - 1, 1 << 24, (1 << 31) - 1, 1 << 31)
HEADERS = (
    ((":status", "200"), ("content-type", "application/grpc")),
    (("grpc-status", "0"),),
    (("grpc-status", "14"), ("grpc-message", "%e2%82%ac%ff gone")),
    ((":status", "503"), ("content-type", "text/html")),
    ((":status", "9" * 5000),),
    (("grpc-status", "²"), ("x", "y" * 300)),
)
EXAMPLES = settings(max_examples=500 if at_full_size() else 20)
Frame = tuple[int, int, int, bytes]  # kind, flags, stream, payload


class RecordedCall(GrpcCall):
    """A call that counts its wake-ups and its restarts."""

    def __init__(self) -> None:
        super().__init__(bytes, max_message_bytes=MAX_MESSAGE_BYTES)
        self.taken: list[bytes] = []
        self.restarts = 0

    @property
    def retained_bytes(self) -> int:
        """What is in memory for its reader."""
        return sum(5 + len(message) for message in self._messages) + len(self._buffer)

    def read(self) -> None:
        """Take all responses."""
        while self._messages:
            self.taken.append(self.take())

    def _wake(self) -> None:
        pass

    def _restart(self) -> None:
        self.restarts += 1


@dataclass
class Wire:
    """The transport of a connection with a call for each stream; it keeps what the client sends."""

    connection: Http2Connection = field(default_factory=Http2Connection)
    calls: list[RecordedCall] = field(default_factory=lambda: [RecordedCall() for _ in STREAMS])
    sent: bytearray = field(default_factory=bytearray)
    closed: bool = False

    def __post_init__(self) -> None:
        """Connect and send the requests."""
        self.connection.connection_made(cast("Any", self))
        for call in self.calls:
            self.connection.start_call(call, b"", b"r" * REQUEST_BYTES)

    def write(self, data: bytes) -> None:
        """As a transport's."""
        self.sent += data

    def abort(self) -> None:
        """As a transport's."""
        self.closed = True

    close = abort

    def receive(self, content: bytes, cuts: Sequence[int], *, reading: bool = False) -> None:
        """Bytes of the server, in pieces; as asyncio, none after the connection was closed."""
        places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
        for start, end in pairwise(places):
            if self.closed:
                return
            self.connection.data_received(content[start:end])
            self.check_memory()
            for call in self.calls if reading else ():
                call.read()

    def check_memory(self) -> None:
        """Bounds of what a server can make a client keep."""
        connection = self.connection
        if not self.closed:
            assert len(connection._buffer) < frames.MAX_FRAME_BYTES + frames.HEAD_BYTES
        assert len(connection._block) <= 65_536 + frames.MAX_FRAME_BYTES
        assert len(connection._blocks) <= 64
        assert connection._window >= 0
        for call in self.calls:
            window = frames.WINDOW_BYTES
            assert call.retained_bytes <= 2 * window + MAX_MESSAGE_BYTES

    @property
    def frames_sent(self) -> list[Frame]:
        """What the client has sent, without the preface."""
        return list(split(bytes(self.sent).partition(b"SM\r\n\r\n")[2]))

    @property
    def events(self) -> list[Any]:
        """What the readers get, and what the server gets."""
        calls = [
            (call.taken + list(call._messages), call.status, call._details, call.restarts)
            for call in self.calls
        ]
        return [calls, bytes(self.sent), self.connection.end_reason, self.connection.usable]


def split(content: bytes) -> Iterator[Frame]:
    """The frames of whole bytes."""
    at = 0
    while at < len(content):
        high, low, kind, flags, stream = frames.HEAD.unpack_from(content, at)
        start = at + frames.HEAD_BYTES
        at = start + (high << 8 | low)
        yield kind, flags, stream, content[start:at]
    assert at == len(content)


def message(content: bytes) -> bytes:
    return struct.pack(">BL", 0, len(content)) + content


def padded(flags: int, payload: bytes, padding: int) -> bytes:
    return bytes((padding,)) + payload + bytes(padding) if flags & frames.PADDED else payload


@st.composite
def frame_lists(draw: st.DrawFn) -> list[bytes]:
    """Frames of a server, in sequence: mostly sensible, some against the protocol."""
    encoder = hpack.Encoder()
    numbers = st.sampled_from((*STREAMS, *STREAMS, 0, 2, 7))
    return [draw_frame(draw, encoder, draw(numbers)) for _ in range(draw(st.integers(0, 12)))]


def draw_frame(draw: st.DrawFn, encoder: hpack.Encoder, stream: int) -> bytes:
    kinds = (frames.DATA,) * 6 + (frames.HEADERS,) * 3 + (frames.WINDOW_UPDATE,) * 3
    kind = draw(st.sampled_from((*kinds, *range(12))))
    ending = draw(st.sampled_from((0, 0, 0, frames.END_STREAM)))
    if kind == frames.DATA:
        flags = draw(st.sampled_from((0, 0, ending, ending | frames.PADDED)))
        size = draw(st.sampled_from((0, 1, 5, 40, 3000, 16_000)))
        body = message(b"m" * size) * draw(st.sampled_from((1, 1, 1 + 300 // (size + 5))))
        return frames.frame(kind, flags, stream, padded(flags, body, draw(st.integers(0, 255))))
    if kind == frames.HEADERS:
        flags = ending | draw(st.sampled_from((frames.END_HEADERS,) * 5 + (0,)))
        return frames.frame(kind, flags, stream, encoder.encode(draw(st.sampled_from(HEADERS))))
    if kind in (frames.WINDOW_UPDATE, frames.RST_STREAM, frames.GOAWAY):
        value = draw(st.sampled_from((*EDGES, *STREAMS, frames.REFUSED_STREAM)))
        tail = b"\0\0\0\0" if kind == frames.GOAWAY else b""
        return frames.frame(kind, 0, stream, struct.pack(">L", value) + tail)
    if kind == frames.SETTINGS:
        pairs = draw(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(EDGES)), max_size=3))
        return frames.frame(kind, ending, 0, b"".join(struct.pack(">HL", *pair) for pair in pairs))
    if kind == frames.PING:
        return frames.frame(kind, ending, 0, b"12345678")
    return frames.frame(kind, draw(st.integers(0, 255)), stream, draw(st.binary(max_size=60)))


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytes:
    """Frames with bytes changed, left out and put in."""
    content = bytearray(b"".join(draw(frame_lists())) or b"\0")
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(content)))
        inserted = draw(st.binary(max_size=9))
        content[at : at + draw(st.integers(0, 9))] = inserted
    return bytes(content)


CUTS = st.lists(st.integers(0, 200_000), max_size=8)


@EXAMPLES
@given(st.one_of(damaged_bytes(), st.binary(max_size=400)), CUTS, st.booleans())
def test_no_bytes_crash_or_fill_a_client(content: bytes, cuts: list[int], reading: bool) -> None:
    """It never raises, keeps little, and tells every call when the connection ends."""
    wire = Wire()
    wire.receive(content, cuts, reading=reading)
    if not wire.connection.is_closing or wire.connection.end_reason == "":
        wire.connection.connection_lost(None)
    for call in wire.calls:
        assert (call.status is None) == bool(call.restarts), "a call without an end"
        assert call.restarts <= 1
    assert wire.connection.is_idle
    assert len(wire.frames_sent) >= len(STREAMS), "whole frames only"


@EXAMPLES
@given(st.one_of(frame_lists().map(b"".join), damaged_bytes()), CUTS)
@example(
    frames.frame(frames.GOAWAY, 0, 0, bytes(8)) + frames.frame(frames.PING, 0, 0, b"12345678"), [17]
)
@example(b"".join(frames.frame(frames.PING, 0, 0, b"12345678") for _ in range(3)), [1, 9, 17, 20])
def test_cuts_change_nothing(content: bytes, cuts: list[int]) -> None:
    """Messages, states and the client's own bytes are those of one single read."""
    whole, cut = Wire(), Wire()
    whole.receive(content, ())
    cut.receive(content, cuts)
    assert cut.events == whole.events


@EXAMPLES
@given(frame_lists())
def test_byte_by_byte_is_the_same(pieces: list[bytes]) -> None:
    """The smallest reads there are, of frames that are not long."""
    content = b"".join(piece for piece in pieces if len(piece) < 400)
    whole, cut = Wire(), Wire()
    whole.receive(content, ())
    cut.receive(content, range(len(content)))
    assert cut.events == whole.events


@EXAMPLES
@given(frame_lists(), st.booleans())
def test_windows_are_kept(pieces: list[bytes], reading: bool) -> None:
    """Never more request bytes than the server has allowed, counted from both sides' frames."""
    wire = Wire()
    allowed = {0: frames.WINDOW_BYTES, **dict.fromkeys(STREAMS, frames.WINDOW_BYTES)}
    first = frames.WINDOW_BYTES
    largest = frames.MAX_FRAME_BYTES
    counted = 0
    for piece in (b"", *pieces):
        for kind, flags, stream, payload in split(piece):
            if kind == frames.WINDOW_UPDATE and stream in allowed:
                allowed[stream] += frames.number(payload) & frames.STREAM
            if kind == frames.SETTINGS and not flags & frames.ACK:
                for number, value in frames.settings(payload):
                    if number == frames.INITIAL_WINDOW_SIZE:
                        for each in STREAMS:
                            allowed[each] += value - first
                        first = value
                    elif number == frames.MAX_FRAME_SIZE:
                        largest = value
        wire.receive(piece, (), reading=reading)
        if wire.closed:
            return
        sent = wire.frames_sent
        for kind, _, stream, payload in sent[counted:]:
            if kind == frames.DATA:
                assert len(payload) <= largest
                for window in (0, stream):
                    allowed[window] -= len(payload)
                    assert allowed[window] >= 0
        counted = len(sent)


def flood(wire: Wire, size: int, payload: Callable[[int], bytes]) -> int:
    """Send frames to the first stream until the client objects or gives no more credit."""
    granted, total = frames.WINDOW_BYTES, 0
    while wire.calls[0].status is None and total < size:
        piece = payload(total)
        wire.receive(frames.frame(frames.DATA, 0, 1, piece), ())
        total += len(piece)
        granted = frames.WINDOW_BYTES + sum(
            frames.number(p)
            for kind, _, stream, p in wire.frames_sent
            if kind == frames.WINDOW_UPDATE and stream == 1
        )
        if granted < total:
            assert wire.calls[0].status is not None
    return total


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_a_server_that_ignores_the_window_is_stopped(size: int) -> None:
    """Its stream is reset before memory fills up, even with messages that are empty."""
    wire = Wire()
    body = message(b"m" * size)
    total = flood(wire, 10 << 20, lambda _: body * max(1, 2000 // len(body)))
    assert total < 3 * frames.WINDOW_BYTES
    assert [s for kind, _, s, _ in wire.frames_sent if kind == frames.RST_STREAM] == [1]
    assert wire.calls[1].status is None, "the other calls go on"


def test_padding_is_credited() -> None:
    """Frames of little but padding do not use a window up for good."""
    wire = Wire()
    content = padded(frames.PADDED, message(b"x"), 255)
    for _ in range(1000):
        wire.receive(frames.frame(frames.DATA, frames.PADDED, 1, content), (), reading=True)
    assert len(wire.calls[0].taken) == 1000
    credit = sum(
        frames.number(p)
        for kind, _, stream, p in wire.frames_sent
        if kind == frames.WINDOW_UPDATE and stream == 1
    )
    assert 0 <= 1000 * len(content) - credit < frames.WINDOW_BYTES / 2


def test_responses_that_are_dropped_are_credited() -> None:
    """Who waits for the end only, and reads nothing, does not stop the server."""
    wire = Wire()
    for _ in range(500):
        wire.receive(frames.frame(frames.DATA, 0, 1, message(b"x" * 1000)), ())
        wire.calls[0].drop()
    assert wire.calls[0].status is None


def setting(number: int, value: int) -> bytes:
    return frames.frame(frames.SETTINGS, 0, 0, struct.pack(">HL", number, value))


@pytest.mark.parametrize(
    "bad",
    [
        setting(frames.MAX_FRAME_SIZE, 0),
        setting(frames.MAX_FRAME_SIZE, 1 << 24),
        setting(frames.INITIAL_WINDOW_SIZE, 1 << 31),
        frames.window_update(0, 0),
        frames.window_update(1, 0),
        frames.window_update(0, frames.STREAM) + frames.window_update(0, frames.STREAM),
        frames.window_update(1, frames.STREAM) + frames.window_update(1, frames.STREAM),
        frames.frame(frames.PING, 0, 0, b"short"),
        frames.frame(frames.DATA, 0, 0, b"x"),
        frames.frame(frames.HEADERS, frames.END_HEADERS, 0, b""),
        frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, b""),
        frames.frame(frames.HEADERS, 0, 1, b"") + frames.frame(frames.DATA, 0, 1, b"x"),
    ],
)
def test_what_the_protocol_forbids_ends_the_connection(bad: bytes) -> None:
    """Its calls fail at once; a limit of no bytes, for example, would leave them waiting."""
    wire = Wire()
    wire.receive(bad, ())
    assert wire.closed
    assert "the server does not speak HTTP/2" in wire.connection.end_reason
    assert all(call.status is not None for call in wire.calls)
