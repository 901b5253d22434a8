# SPDX-License-Identifier: Apache-2.0
"""The order of responses: streams take turns, the longest waiting first.

A stream is *held* until its send time (`response_pacing`) and, in an ensemble, until the
detokenizer has received its last response; ids generated meanwhile share one response. So a backlog
accumulates here as ids, and not in Triton's queues, where each response has its full cost.
"""

import math
from collections import deque
from collections.abc import Callable

from textlib.scheduling.client_departures import ClientDepartures
from textlib.scheduling.decoder_stream import DecoderStream
from textlib.scheduling.response_pacing import ResponsePacing

MAX_IN_FLIGHT = 1
# Receipts are polled: an arriving receipt does not wake the sender.
RECEIPT_POLL_SECONDS = 0.0005


class SendQueue:
    """The streams that want to send. Call every method with the loop's lock held.

    clock: the loop's clock, in seconds.
    """

    def __init__(
        self, departures: ClientDepartures, pace: ResponsePacing, clock: Callable[[], float]
    ) -> None:
        self._departures, self._pace, self._clock = departures, pace, clock
        self._ready: deque[DecoderStream] = deque()
        self._held: deque[DecoderStream] = deque()
        self._next_release = math.inf  # when a held stream may be ready
        self._live_streams = 0

    @property
    def has_ready(self) -> bool:
        """Whether a stream may send now."""
        return bool(self._ready)

    def add(self, stream: DecoderStream, live_streams: int) -> bool:
        """Queue a stream that has a response; True if the sender must check the queue."""
        self._live_streams = live_streams
        if not stream.has_response:
            return False
        if stream.queued:
            if stream.outcome is None:
                return False
            self._next_release = 0.0  # a final response is not held
            return True
        stream.queued = True
        earliest = self._next_release
        self._place(stream, self._clock())
        return bool(self._ready) or self._next_release < earliest

    def release_held(self) -> None:
        """Move due streams from held to the front: they have waited longest."""
        now = self._clock()
        if now < self._next_release:
            return
        held, ready = self._held, self._ready
        self._held, self._ready, self._next_release = deque(), deque(), math.inf
        for stream in held:
            self._place(stream, now)
        self._ready.extend(ready)

    def pop_ready(self) -> DecoderStream | None:
        """Return the next stream to send; None if all are held."""
        now = self._clock()
        while self._ready:
            stream = self._ready.popleft()
            due = self._send_time(stream, now)  # it may have been sending when it was queued
            if due <= now:
                return stream
            self._hold(stream, due)
        return None

    def seconds_to_release(self) -> float:
        """Return the seconds until a held stream may be ready; infinite if none is held."""
        return max(0.0, self._next_release - self._clock())

    def _place(self, stream: DecoderStream, now: float) -> None:
        due = self._send_time(stream, now)
        if due <= now:
            self._ready.append(stream)
        else:
            self._hold(stream, due)

    def _hold(self, stream: DecoderStream, due: float) -> None:
        self._held.append(stream)
        self._next_release = min(self._next_release, due)

    def _send_time(self, stream: DecoderStream, now: float) -> float:
        # Send a final response at once: a departed client acknowledges nothing.
        if stream.outcome is not None:
            return now
        if self._departures.in_flight(stream) >= MAX_IN_FLIGHT:
            return now + RECEIPT_POLL_SECONDS
        return self._pace.next_send_time(stream, self._live_streams)
