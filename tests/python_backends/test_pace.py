# SPDX-License-Identifier: Apache-2.0
"""When a stream may send: its first response, its last, and those between, on a clock of ours."""

from __future__ import annotations

import numpy as np
import pytest
from textlib.scheduling.client_departures import ClientDepartures
from textlib.scheduling.decoder_stream import DecoderStream, OutgoingResponse
from textlib.scheduling.response_pacing import RESPONSES_PER_CORE, UNPACED, ResponsePacing
from textlib.scheduling.send_order import RECEIPT_POLL_SECONDS, SendQueue
from textlib.tokens.token_chunk import FinishReason, TokenChunk
from textlib.triton.request_tensors import GenerationRequest
from textlib.triton.sampling import SamplingParams

INTERVAL = 0.01
PACED = ResponsePacing(INTERVAL, max_responses_per_second=1000.0)


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class _Sink:
    def send(self, chunk: TokenChunk) -> None:
        raise AssertionError(chunk)

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)

    def is_cancelled(self) -> bool:
        return False


class _Receipts(ClientDepartures):
    """The detokenizer has not received the last response of streams in `unread`."""

    def __init__(self) -> None:
        super().__init__(None)
        self.unread: set[int] = set()

    def in_flight(self, stream: DecoderStream) -> int:
        return int(stream.stream_id in self.unread)


class _Line:
    """Streams that take turns: what the loop does, without its threads."""

    def __init__(self, pace: ResponsePacing, streams: int = 1, live: int | None = None) -> None:
        self.clock = _Clock()
        self.receipts = _Receipts()
        self.turns = SendQueue(self.receipts, pace, self.clock)
        self.live = live or streams
        request = GenerationRequest(np.array([1], np.int32), SamplingParams(max_tokens=9), True)
        self.streams = [DecoderStream(number, request, _Sink()) for number in range(streams)]

    def make(self, stream: DecoderStream, *ids: int) -> bool:
        """The engine has made ids; whether the sender is woken for them."""
        stream.receive(ids)
        return self.turns.add(stream, self.live)

    def sent(self) -> list[list[int]]:
        """What goes out now, one response after another."""
        self.turns.release_held()
        sent = []
        while stream := self.turns.pop_ready():
            sent.append(self._send(stream))
        return sent

    def _send(self, stream: DecoderStream) -> list[int]:
        stream.queued = False
        outgoing: OutgoingResponse = stream.next_response()
        stream.last_response_at = self.clock.now
        assert outgoing.chunk is not None
        return list(outgoing.chunk.token_ids)


def test_first_at_once_then_once_an_interval() -> None:
    """The first token waits for nothing; later ones gather until 10 ms have passed."""
    line = _Line(PACED)
    (stream,) = line.streams
    assert line.make(stream, 1)
    assert line.sent() == [[1]]

    for token in (2, 3, 4):
        line.clock.now += 0.003
        line.make(stream, token)
        assert line.sent() == []
    assert line.turns.seconds_to_release() == pytest.approx(0.001)
    line.clock.now += 0.0011
    assert line.sent() == [[2, 3, 4]]


def test_a_slow_engine_is_never_held() -> None:
    """Steps that take longer than the interval: every token goes alone, at once."""
    line = _Line(PACED)
    (stream,) = line.streams
    for token in range(5):
        assert line.make(stream, token)
        assert line.sent() == [[token]]
        line.clock.now += INTERVAL


def test_an_end_is_not_held() -> None:
    """The last tokens go at once, and the sender is woken for them."""
    line = _Line(PACED)
    (stream,) = line.streams
    line.make(stream, 1)
    line.sent()
    line.make(stream, 2)
    assert line.sent() == []
    stream.receive([3])
    stream.outcome = FinishReason.STOP
    assert line.turns.add(stream, 1)
    assert line.sent() == [[2, 3]]


def test_many_streams_send_less_often() -> None:
    """128 streams on a host that bears 1,000 responses a second: one each 128 ms."""
    line = _Line(PACED, live=128)
    (stream,) = line.streams
    line.make(stream, 1)
    line.sent()
    line.clock.now += 0.127
    line.make(stream, 2)
    assert line.sent() == []
    line.clock.now += 0.002
    assert line.sent() == [[2]]


def test_the_sender_sleeps_while_all_are_held() -> None:
    """Only the first held stream, and one that is due sooner, changes when it must look."""
    line = _Line(PACED, streams=3)
    early, middle, late = line.streams
    for stream in (early, middle, late):
        line.make(stream, 1)
        assert line.sent() == [[1]]
        line.clock.now += 0.001
    assert line.make(middle, 2)
    assert not line.make(late, 2)
    assert not line.make(late, 3)
    assert line.make(early, 2)
    line.clock.now += INTERVAL
    assert line.sent() == [[2], [2, 3], [2]]
    assert line.turns.seconds_to_release() == float("inf")


def test_what_was_made_while_it_sent_waits_its_time() -> None:
    """A stream queued as ready is looked at again when its turn comes."""
    line = _Line(UNPACED)
    (stream,) = line.streams
    line.make(stream, 1)
    line.receipts.unread.add(0)
    assert line.sent() == []
    assert line.turns.seconds_to_release() == pytest.approx(RECEIPT_POLL_SECONDS)
    line.receipts.unread.clear()
    line.clock.now += RECEIPT_POLL_SECONDS
    assert line.sent() == [[1]]


def test_unpaced_streams_send_each_token() -> None:
    """`stream_interval_ms: 0`."""
    line = _Line(ResponsePacing.from_milliseconds(0))
    (stream,) = line.streams
    for token in range(3):
        line.make(stream, token)
        assert line.sent() == [[token]]


def test_the_host_sets_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores: 4,000 responses a second."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert ResponsePacing.from_milliseconds(10) == ResponsePacing(0.01, 4 * RESPONSES_PER_CORE)
