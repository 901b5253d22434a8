# SPDX-License-Identifier: Apache-2.0
"""When the mock endpoint works on which request: stalls, a number of servers, a queue, batches.

All times are computed, not measured: a request's work ends where it must, and a server that is
free since 1.000 s takes the next request at 1.000 s, even where the process itself wakes up late.
So lag does not add up, and c servers behave as the M/G/c queue they stand for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from loadlib.mock_behaviour import Batching, Stall


class QueueFullError(Exception):
    """The queue is full."""


class Stalls:
    """Work stands still while one lasts; times are seconds of the same clock as `begin`'s."""

    def __init__(self, stalls: Iterable[Stall]) -> None:
        self._stalls = sorted(stalls, key=lambda stall: stall.at)
        self._origin: float | None = None

    def begin(self, now: float) -> None:
        """The first request has come: stalls count from now on."""
        if self._origin is None:
            self._origin = now

    def end_of(self, start: float, work: float) -> float:
        """When `work` seconds of work that begin at `start` are done."""
        end = start + work
        for stall in self._stalls if self._origin is not None else ():
            begins = (self._origin or 0.0) + stall.at
            ends = begins + stall.seconds
            if start < ends and end > begins:
                end += ends - max(start, begins)
        return end


@dataclass(eq=False)
class Place:
    """A request's place: waiting, or with a server since `start` in a batch of `size`."""

    arrival: float
    batchable: bool
    granted: asyncio.Future[None]
    start: float = 0.0
    size: int = 1
    batch: list[Place] = field(default_factory=list)


class Servers:
    """`count` servers behind one queue, first come first served; None: no limit.

    With batching a server takes all that wait, up to the largest batch, if they are batchable.
    `waiting_most`: more are refused.
    """

    def __init__(
        self, count: int | None, waiting_most: int | None = None, batching: Batching | None = None
    ) -> None:
        self._free: list[float] | None = None if count is None else [0.0] * count
        self._waiting: deque[Place] = deque()
        self._waiting_most = waiting_most
        self._largest = batching.most if batching else 1

    @property
    def waiting(self) -> int:
        """Requests in the queue, without the cancelled ones."""
        return sum(not place.granted.cancelled() for place in self._waiting)

    async def enter(self, arrival: float, batchable: bool = False) -> Place:
        """Wait for a server. Raises QueueFullError; `leave` gives the server back."""
        place = Place(arrival, batchable, asyncio.get_running_loop().create_future())
        if self._free is None:
            place.start = arrival
            return place
        full = self._waiting_most is not None and self.waiting >= self._waiting_most
        if not self._free and full:
            raise QueueFullError
        self._waiting.append(place)
        self._hand_out()
        try:
            await place.granted
        except asyncio.CancelledError:
            self._give_up(place)
            raise
        return place

    def leave(self, place: Place, at: float) -> None:
        """The request was done at that time; its server is free when its whole batch is."""
        if self._free is None:
            return
        place.batch.remove(place)
        if not place.batch:
            self._free.append(at)
            self._hand_out()

    def _give_up(self, place: Place) -> None:
        if place in self._waiting:
            self._waiting.remove(place)
        elif place.batch:
            self.leave(place, asyncio.get_running_loop().time())

    def _hand_out(self) -> None:
        while self._free:
            if any(place.granted.cancelled() for place in self._waiting):
                self._waiting = deque(p for p in self._waiting if not p.granted.cancelled())
            if not self._waiting:
                return
            free_since = min(self._free)
            self._free.remove(free_since)
            start = max(free_since, self._waiting[0].arrival)
            batch = self._take(start)
            for place in batch:
                place.start, place.size, place.batch = start, len(batch), batch
                place.granted.set_result(None)

    def _take(self, start: float) -> list[Place]:
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
