# SPDX-License-Identifier: Apache-2.0
"""A generator notices that it did not get to run."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest
from hdrh.histogram import HdrHistogram
from loadlib.clock import Clock
from loadlib.heartbeat import PERIOD_US, Heartbeat
from loadlib.progress import Meter


class SetClock(Clock):
    """A run's time as the test sets it, in microseconds; the alarms that were set for it."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.now = 0
        self.alarms: list[int] = []

    def now_us(self) -> int:
        """That time."""
        return self.now

    def monotonic_ns(self, at_us: int) -> int:
        """Long past: whatever is set rings at once."""
        self.alarms.append(at_us)
        return 1


@pytest.fixture
def clock() -> SetClock:
    """A run that has just begun."""
    return SetClock()


@pytest.fixture
def meter() -> Meter:
    """Of the only worker."""
    return Meter(0)


@pytest.fixture
def heart(clock: SetClock, meter: Meter) -> Iterator[Heartbeat]:
    """Its first beat is due after a period."""
    made = Heartbeat(meter, clock)
    yield made
    made.close()


def woke(meter: Meter, clock: Clock) -> dict[int, int]:
    """How often it was late by how many microseconds since the last call."""
    histogram = HdrHistogram.decode(meter.line(clock.now_us())["woke"])
    return {
        int(item.value_iterated_to): int(item.count_added_in_this_iter_step)
        for item in histogram.get_recorded_iterator()
    }


def test_missed_beats_count_each(heart: Heartbeat, clock: SetClock, meter: Meter) -> None:
    """A loop that stood still for 4.2 beats: each is late by its own part, none is left out."""
    clock.now = 4 * PERIOD_US + 200
    heart.beat()
    assert [round(late, -2) for late in woke(meter, clock)] == [200, 10_200, 20_200, 30_200]
    assert woke(meter, clock) == {}
    assert clock.alarms == [PERIOD_US, 5 * PERIOD_US]


def test_a_beat_in_time(heart: Heartbeat, clock: SetClock, meter: Meter) -> None:
    """Late by nothing counts as the least there is; one that comes early counts nothing."""
    clock.now = PERIOD_US - 1
    heart.beat()
    assert woke(meter, clock) == {}
    clock.now = PERIOD_US
    heart.beat()
    assert sum(woke(meter, clock).values()) == 1
    assert clock.alarms == [PERIOD_US, PERIOD_US, 2 * PERIOD_US]


def test_before_the_run_there_is_nothing_to_miss(clock: SetClock, meter: Meter) -> None:
    """Its time is below 0 until it begins: the first beat is a period later."""
    clock.now = -7 * PERIOD_US
    heart = Heartbeat(meter, clock)
    clock.now = PERIOD_US // 2
    heart.beat()
    heart.close()
    assert woke(meter, clock) == {}
    assert clock.alarms == [PERIOD_US, PERIOD_US]


def test_the_alarm_wakes_the_loop(heart: Heartbeat, clock: SetClock) -> None:
    """Its descriptor becomes readable; a beat sets it anew."""
    for _ in range(2):
        assert select.select([heart.fd], [], [], 60)[0]
        clock.now += PERIOD_US
        heart.beat()


@pytest.mark.parametrize(
    ("count", "told"), [(1, 1), (50, 50), (99, 99), (100, 100), (101, 100), (200, 199), (1000, 991)]
)
def test_the_lag_of_sending(count: int, told: int, meter: Meter) -> None:
    """The 99th percentile of the second, rather one too late than one too early; then anew."""
    for lag in range(count, 0, -1):
        meter.count_sent(lag)
    assert meter.line(1_000_000)["lag_p99_us"] == told
    assert meter.line(2_000_000)["lag_p99_us"] is None


def test_nothing_is_sent_before_its_time(meter: Meter) -> None:
    """Clocks that differ by a few microseconds must not make a lag below zero."""
    meter.count_sent(-7)
    assert meter.line(1_000_000)["lag_p99_us"] == 0
