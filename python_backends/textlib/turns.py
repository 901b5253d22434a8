# SPDX-License-Identifier: Apache-2.0
"""Whose response goes next: streams take turns, oldest waiting first.

In an ensemble, a stream whose detokenizer has not received its last response is *held*: what it
makes meanwhile goes into one response. So a backlog gathers here, as ids, and not in Triton's
queues, where each response would cost the server its whole price.
"""

from collections import deque

from textlib.decoder_stream import Stream
from textlib.departures import Departures

MOST_UNDER_WAY = 1


class Turns:
    """Every method is called with the loop's lock held."""

    def __init__(self, departures: Departures) -> None:
        self._departures = departures
        self._ready: deque[Stream] = deque()
        self._held: deque[Stream] = deque()

    @property
    def waiting(self) -> bool:
        """A stream may want to send."""
        return bool(self._ready)

    @property
    def holding(self) -> bool:
        """A stream is held."""
        return bool(self._held)

    def add(self, stream: Stream) -> None:
        """Queue a stream that wants to send, unless it is queued."""
        if stream.wants_sending and not stream.queued:
            stream.queued = True
            self._ready.append(stream)

    def release(self) -> None:
        """Held streams that may send go first: they have waited longest."""
        held, self._held = self._held, deque()
        for stream in reversed(held):
            if self._may_send(stream):
                self._ready.appendleft(stream)
            else:
                self._held.appendleft(stream)

    def take(self) -> Stream | None:
        """The stream whose turn it is; None if all that wait are held."""
        while self._ready:
            stream = self._ready.popleft()
            if self._may_send(stream):
                return stream
            self._held.append(stream)
        return None

    def _may_send(self, stream: Stream) -> bool:
        # An end is sent at once: a client that has gone acknowledges nothing.
        return stream.outcome is not None or self._departures.under_way(stream) < MOST_UNDER_WAY
