# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint's schedule: stalls, servers, a queue, batches.

All times are computed, not measured: a server that is free since 1.000 s takes the next request at
1.000 s, even if the process wakes up late. So lag does not accumulate, and c servers behave as an
M/G/c queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from loadlib.mock_behaviour import Batching, Stall


class MockQueueFullError(Exception):
    """The mock endpoint's queue is full."""


class MockStalls:
    """Pauses of all work. Times are seconds of the clock passed to `set_origin`."""

    def __init__(self, stalls: Iterable[Stall]) -> None:
        self._stalls = sorted(stalls, key=lambda stall: stall.at)
        self._origin: float | None = None

    def set_origin(self, now: float) -> None:
        """Count stalls from the first request's arrival; later calls have no effect."""
        if self._origin is None:
            self._origin = now

    def end_time(self, start: float, work: float) -> float:
        """Return when `work` seconds of work that start at `start` end."""
        end = start + work
        for stall in self._stalls if self._origin is not None else ():
            stall_start = (self._origin or 0.0) + stall.at
            stall_end = stall_start + stall.seconds
            if start < stall_end and end > stall_start:
                end += stall_end - max(start, stall_start)
        return end


@dataclass(eq=False)
class QueueSlot:
    """A request's slot: waiting, or in a batch of `size` on a server since `start`."""

    arrival: float
    batchable: bool
    granted: asyncio.Future[None]
    start: float = 0.0
    size: int = 1
    batch: list[QueueSlot] = field(default_factory=list)


class MockServers:
    """`count` servers behind one FIFO queue; None: no limit.

    With batching a server takes all waiting batchable requests, up to the maximum batch.
    Further requests are refused while `max_waiting` wait.
    """

    def __init__(
        self, count: int | None, max_waiting: int | None = None, batching: Batching | None = None
    ) -> None:
        self._free: list[float] | None = None if count is None else [0.0] * count
        self._waiting: deque[QueueSlot] = deque()
        self._max_waiting = max_waiting
        self._largest = batching.max_size if batching else 1

    @property
    def waiting(self) -> int:
        """The number of requests in the queue, without cancelled ones."""
        return sum(not slot.granted.cancelled() for slot in self._waiting)

    async def enter(self, arrival: float, batchable: bool = False) -> QueueSlot:
        """Wait for a server; `leave` returns it. Raises MockQueueFullError."""
        slot = QueueSlot(arrival, batchable, asyncio.get_running_loop().create_future())
        if self._free is None:
            slot.start = arrival
            return slot
        full = self._max_waiting is not None and self.waiting >= self._max_waiting
        if not self._free and full:
            raise MockQueueFullError
        self._waiting.append(slot)
        self._assign_servers()
        try:
            await slot.granted
        except asyncio.CancelledError:
            self._abandon(slot)
            raise
        return slot

    def leave(self, slot: QueueSlot, at: float) -> None:
        """Finish a request at time `at`; the last one of a batch frees the server."""
        if self._free is None:
            return
        slot.batch.remove(slot)
        if not slot.batch:
            self._free.append(at)
            self._assign_servers()

    def _abandon(self, slot: QueueSlot) -> None:
        if slot in self._waiting:
            self._waiting.remove(slot)
        elif slot.batch:
            self.leave(slot, asyncio.get_running_loop().time())

    def _assign_servers(self) -> None:
        while self._free:
            if any(slot.granted.cancelled() for slot in self._waiting):
                self._waiting = deque(p for p in self._waiting if not p.granted.cancelled())
            if not self._waiting:
                return
            free_since = min(self._free)
            self._free.remove(free_since)
            start = max(free_since, self._waiting[0].arrival)
            batch = self._take_batch(start)
            for slot in batch:
                slot.start, slot.size, slot.batch = start, len(batch), batch
                slot.granted.set_result(None)

    def _take_batch(self, start: float) -> list[QueueSlot]:
        batch = [self._waiting.popleft()]
        while (
            batch[0].batchable
            and len(batch) < self._largest
            and self._waiting
            and self._waiting[0].batchable
            and self._waiting[0].arrival <= start
        ):
            batch.append(self._waiting.popleft())
        return batch
