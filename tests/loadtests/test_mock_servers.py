# SPDX-License-Identifier: Apache-2.0
"""When the mock endpoint works on what: by computed times, so no clock is needed here."""

from __future__ import annotations

import asyncio
import heapq
import random

import pytest
from loadlib.mock_behaviour import Batching, Stall
from loadlib.mock_servers import MockQueueFullError, MockServers, MockStalls, QueueSlot


@pytest.mark.parametrize(
    ("start", "work", "end"),
    [
        (100.0, 4.0, 104.0),  # over before it begins
        (100.0, 6.0, 108.0),  # under way: the second that was left comes after it
        (105.5, 1.0, 108.0),  # came during it: all of its work comes after it
        (107.0, 1.0, 108.0),  # came when it ended
        (100.0, 12.0, 124.0),  # through both
    ],
)
def test_work_stands_still_during_a_stall(start: float, work: float, end: float) -> None:
    """Two stalls, 105 to 107 and 111 to 121."""
    stalls = MockStalls([Stall(11, 10), Stall(5, 2)])
    stalls.set_origin(100.0)
    stalls.set_origin(103.0)  # only the first request counts
    assert stalls.end_time(start, work) == pytest.approx(end)


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


def starts_by_recursion(arrivals: list[float], services: list[float], count: int) -> list[float]:
    """When c servers in order of arrival begin with each request: the textbook's recursion."""
    free = [0.0] * count
    starts = []
    for arrival, service in zip(arrivals, services, strict=True):
        start = max(arrival, heapq.heappop(free))
        starts.append(start)
        heapq.heappush(free, start + service)
    return starts


async def starts_by_servers(
    arrivals: list[float], services: list[float], count: int
) -> list[float]:
    """The same of `Servers`, events told in order of their times."""
    servers = MockServers(count)
    starts: dict[int, float] = {}
    events: list[tuple[float, int, QueueSlot | None]] = [
        (a, i, None) for i, a in enumerate(arrivals)
    ]
    heapq.heapify(events)
    tasks = {}
    while events:
        at, index, place = heapq.heappop(events)
        if place is None:
            tasks[index] = asyncio.create_task(servers.enter(at))
        else:
            servers.leave(place, at)
        await settle()
        for number in [number for number, task in tasks.items() if task.done()]:
            begun = tasks.pop(number).result()
            starts[number] = begun.start
            heapq.heappush(events, (begun.start + services[number], number, begun))
    return [starts[index] for index in range(len(arrivals))]


@pytest.mark.parametrize("count", [1, 3])
def test_servers_are_an_m_g_c_queue(count: int) -> None:
    """Every request begins exactly when the recursion says."""
    generator = random.Random(5)  # noqa: S311
    arrivals, now = [], 0.0
    for _ in range(400):
        now += generator.expovariate(count * 0.9)
        arrivals.append(now)
    services = [generator.choice([0.5, 0.5, 3.0]) for _ in arrivals]
    expected = starts_by_recursion(arrivals, services, count)
    assert max(s - a for s, a in zip(expected, arrivals, strict=True)) > 5  # there was a queue
    assert asyncio.run(starts_by_servers(arrivals, services, count)) == pytest.approx(expected)


def test_without_a_number_of_servers_nothing_waits() -> None:
    """Each begins when it comes."""

    async def run() -> list[float]:
        servers = MockServers(None)
        return [(await servers.enter(at)).start for at in (1.0, 1.0, 2.0)]

    assert asyncio.run(run()) == [1.0, 1.0, 2.0]


def test_a_batch_takes_what_waits_up_to_its_limit() -> None:
    """The first alone, then as many as fit; the server is free when the whole batch has left."""

    async def run() -> list[tuple[float, int]]:
        servers = MockServers(1, batching=Batching(10, 1, 3))
        tasks = [asyncio.create_task(servers.enter(float(i), True)) for i in range(6)]
        await settle()
        seen = []
        for at in (10.0, 20.0, 30.0):
            begun = [task.result() for task in tasks if task.done()]
            tasks = [task for task in tasks if not task.done()]
            seen += [(place.start, place.size) for place in begun]
            for place in begun:
                servers.leave(place, at)
            await settle()
        return seen

    assert asyncio.run(run()) == [(0.0, 1)] + [(10.0, 3)] * 3 + [(20.0, 2)] * 2


def test_a_full_queue_refuses_and_a_cancelled_request_makes_room() -> None:
    """One at work, one waiting, one refused; the waiting one gives up, the next may wait."""

    async def run() -> float:
        servers = MockServers(1, max_waiting=1)
        working = await servers.enter(0.0)
        waiting = asyncio.create_task(servers.enter(1.0))
        await settle()
        with pytest.raises(MockQueueFullError):
            await servers.enter(2.0)
        waiting.cancel()
        last = asyncio.create_task(servers.enter(3.0))  # before the cancelled task has run
        await settle()
        assert servers.waiting == 1
        servers.leave(working, 4.0)
        return (await last).start

    assert asyncio.run(run()) == 4.0
