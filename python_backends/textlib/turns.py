# SPDX-License-Identifier: Apache-2.0
"""Whose response goes next: streams take turns, oldest waiting first.

A stream is *held* until its time has come (`textlib/pace.py`) and, in an ensemble, until its
detokenizer has received its last response: what it makes meanwhile goes into one response. So a
backlog gathers here, as ids, and not in Triton's queues, where each response would cost the server
its whole price.
"""

import math
from collections import deque
from collections.abc import Callable

from textlib.decoder_stream import Stream
from textlib.departures import Departures
from textlib.pace import Pace

MOST_UNDER_WAY = 1
# Receipts are polled: nothing wakes the sender when one comes.
RECEIPT_POLL_SECONDS = 0.0005


class Turns:
    """Every method is called with the loop's lock held. `clock`: the loop's, seconds."""

    def __init__(self, departures: Departures, pace: Pace, clock: Callable[[], float]) -> None:
        self._departures, self._pace, self._clock = departures, pace, clock
        self._ready: deque[Stream] = deque()
        self._held: deque[Stream] = deque()
        self._look = math.inf  # when a held stream may be ready
        self._streams = 0

    @property
    def waiting(self) -> bool:
        """A stream may send now."""
        return bool(self._ready)

    def add(self, stream: Stream, streams: int) -> bool:
        """Queue one of so many live streams if it wants to send; True if the sender must look."""
        self._streams = streams
        if not stream.wants_sending:
            return False
        if stream.queued:
            if stream.outcome is None:
                return False
            self._look = 0.0  # an end is not held
            return True
        stream.queued = True
        earliest = self._look
        self._place(stream, self._clock())
        return bool(self._ready) or self._look < earliest

    def release(self) -> None:
        """Held streams whose time has come go first: they have waited longest."""
        now = self._clock()
        if now < self._look:
            return
        held, ready = self._held, self._ready
        self._held, self._ready, self._look = deque(), deque(), math.inf
        for stream in held:
            self._place(stream, now)
        self._ready.extend(ready)

    def take(self) -> Stream | None:
        """The stream whose turn it is; None if all that wait are held."""
        now = self._clock()
        while self._ready:
            stream = self._ready.popleft()
            due = self._due(stream, now)  # it may have been sending when it was queued
            if due <= now:
                return stream
            self._hold(stream, due)
        return None

    def patience(self) -> float:
        """Seconds until a held stream may be ready; infinite if none is held."""
        return max(0.0, self._look - self._clock())

    def _place(self, stream: Stream, now: float) -> None:
        due = self._due(stream, now)
        if due <= now:
            self._ready.append(stream)
        else:
            self._hold(stream, due)

    def _hold(self, stream: Stream, due: float) -> None:
        self._held.append(stream)
        self._look = min(self._look, due)

    def _due(self, stream: Stream, now: float) -> float:
        # An end is sent at once: a client that has gone acknowledges nothing.
        if stream.outcome is not None:
            return now
        if self._departures.under_way(stream) >= MOST_UNDER_WAY:
            return now + RECEIPT_POLL_SECONDS
        return self._pace.due(stream, self._streams)
