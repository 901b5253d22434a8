# SPDX-License-Identifier: Apache-2.0
"""Which requests get a place in the engine, wait for one, or are refused.

First come, first served; at most `max_queue_size` wait, one more is refused at once. Where Triton's
own queue decides (priorities, timeouts; TRITON_DECIDES), none is refused here: the loop takes no
further batch while all places are taken.
"""

from collections import deque
from collections.abc import Iterable

from textlib.decoder_stream import Stream

TRITON_DECIDES = -1


class Admission:
    """`capacity`: streams that the engine has at most. `max_queue_size`: 0 for any number."""

    def __init__(self, capacity: int, max_queue_size: int) -> None:
        self._capacity = capacity
        self._max_queue_size = max_queue_size
        self._waiting: deque[Stream] = deque()  # touched by the stepping thread only

    @property
    def waiting(self) -> bool:
        """A stream waits here."""
        return bool(self._waiting)

    def takes_a_batch(self, live: int) -> bool:
        """Whether Triton may hand over another batch while `live` streams live."""
        return self._max_queue_size != TRITON_DECIDES or live < self._capacity

    def refusal(self, live: int) -> str | None:
        """Why one stream more than `live` is too many; None if it is not."""
        waiting = live - self._capacity
        if self._max_queue_size <= 0 or waiting < self._max_queue_size:
            return None
        return (
            f"the engine's queue is full: {waiting} requests wait behind {self._capacity} others "
            "(serving.queue.max_queue_size). Send the request again later."
        )

    def arrive(self, streams: Iterable[Stream]) -> None:
        """Queue these streams."""
        self._waiting.extend(streams)

    def admit(self, active: int) -> Stream | None:
        """The next stream for an engine that has `active`; None without a place or stream."""
        while self._waiting and active < self._capacity:
            stream = self._waiting.popleft()
            if stream.outcome is None:  # it did not end while it waited
                return stream
        return None
