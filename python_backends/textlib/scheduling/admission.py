# SPDX-License-Identifier: Apache-2.0
"""Admission control: requests get a place in the engine, wait for one, or are rejected.

First come, first served. At most `max_queue_size` requests wait; further ones are rejected at once.
With TRITON_DECIDES, Triton's queue decides (priorities, timeouts) and this module rejects nothing:
the loop accepts no further batch while all places are taken.
"""

from collections import deque
from collections.abc import Iterable

from textlib.scheduling.decoder_stream import DecoderStream

TRITON_DECIDES = -1


class Admission:
    """The queue in front of an engine.

    capacity: maximum streams in the engine. max_queue_size: maximum waiting streams; 0: unlimited.
    """

    def __init__(self, capacity: int, max_queue_size: int) -> None:
        self._capacity = capacity
        self._max_queue_size = max_queue_size
        self._waiting: deque[DecoderStream] = deque()  # used by the stepping thread only

    @property
    def has_waiting(self) -> bool:
        """Whether a stream waits for a place."""
        return bool(self._waiting)

    def accepts_batch(self, live_streams: int) -> bool:
        """Whether Triton may pass another batch while `live_streams` exist."""
        return self._max_queue_size != TRITON_DECIDES or live_streams < self._capacity

    def rejection_reason(self, live_streams: int) -> str | None:
        """Return why another stream is rejected; None if it is accepted."""
        waiting = live_streams - self._capacity
        if self._max_queue_size <= 0 or waiting < self._max_queue_size:
            return None
        return (
            f"the engine's queue is full: {waiting} requests wait behind {self._capacity} others "
            "(serving.queue.max_queue_size). Send the request again later."
        )

    def enqueue(self, streams: Iterable[DecoderStream]) -> None:
        """Queue these streams."""
        self._waiting.extend(streams)

    def pop_next(self, active_streams: int) -> DecoderStream | None:
        """Return the next stream for an engine with `active_streams`, or None."""
        while self._waiting and active_streams < self._capacity:
            stream = self._waiting.popleft()
            if stream.outcome is None:  # it has not ended while it waited
                return stream
        return None
