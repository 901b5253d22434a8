# SPDX-License-Identifier: Apache-2.0
"""Batching servers as a discrete-event simulation: exactly known, so that searches can be judged.

First come, first served; a free instance takes what waits, up to `max_batch`, or waits for more
until the oldest request is `delay` old. A batch of b takes S(b) = (fixed + each * b), less with
more threads, more when instances and their threads want more cores than there are.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tritonctl.tuning.trials import (
    TOLERATED_SHARE,
    Settings,
    TrialRequest,
    TuningTrial,
    Value,
    Verdict,
)


@dataclass(frozen=True)
class Knob:
    """A knob as the search sees it."""

    name: str
    values: Sequence[Value]
    base: Value


@dataclass(frozen=True)
class Machine:
    """The world: service times in seconds, an SLO in seconds."""

    fixed: float = 0.008
    each: float = 0.001
    cores: int = 4
    serial: float = 0.3  # Amdahl's share of a batch that threads do not help
    jitter: float = 0.1
    limit: float = 0.05

    def service(self, batch: int, settings: Settings) -> float:
        """Mean seconds of a batch."""
        threads, instances = int(settings.get("threads", 1)), int(settings["instances"])
        crowding = max(1.0, instances * threads / self.cores)
        speed = self.serial + (1 - self.serial) / threads
        return (self.fixed + self.each * batch) * speed * crowding


def response_times(
    machine: Machine, settings: Settings, arrivals: Sequence[float], noise: Iterator[float]
) -> list[float]:
    """Seconds from arrival to answer, in order of arrival."""
    most, delay = int(settings["max_batch"]), float(settings.get("delay_us", 0)) / 1e6
    free = [0.0] * int(settings["instances"])
    took: list[float] = []
    head, count = 0, len(arrivals)
    while head < count:
        idle = heapq.heappop(free)
        full = arrivals[head + most - 1] if head + most <= count else math.inf
        begin = max(idle, min(arrivals[head] + delay, full), arrivals[head])
        end = min(bisect.bisect_right(arrivals, begin, head), head + most)
        done = begin + machine.service(end - head, settings) * next(noise)
        took += [done - at for at in arrivals[head:end]]
        heapq.heappush(free, done)
        head = end
    return took


def poisson(rate: float, count: int, random: np.random.Generator) -> list[float]:
    """Arrival times."""
    times: list[float] = np.cumsum(random.exponential(1 / rate, count)).tolist()
    return times


def jitter(machine: Machine, random: np.random.Generator) -> Iterator[float]:
    """Factors on service times, mean near 1."""
    while True:
        yield from random.lognormal(0, machine.jitter, 512).tolist()


@dataclass
class Laboratory:
    """Measures the machine as a load test would: finite samples, another seed each, drift.

    drift: standard deviation of a factor on all service times of one measurement, which is what
    a shared machine does to it.
    """

    machine: Machine
    seed: int = 0
    drift: float = 0.0
    measured: list[TrialRequest] = field(default_factory=list)

    def __call__(self, asked: TrialRequest) -> TuningTrial:
        """Run a trial."""
        self.measured.append(asked)
        random = np.random.default_rng([self.seed, len(self.measured)])
        count = max(50, int(asked.rate * asked.seconds))
        slow = float(random.lognormal(0, self.drift)) if self.drift else 1.0
        noise = (slow * factor for factor in jitter(self.machine, random))
        arrivals = poisson(asked.rate, count, random)
        took = response_times(self.machine, asked.settings, arrivals, noise)
        over = sum(seconds > self.machine.limit for seconds in took)
        low, high = interval(over, count)
        return TuningTrial(
            asked, verdict(low, high), over / count, low, high, count, took_seconds=asked.seconds
        )


def interval(over: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    share, square = over / count, z * z / count
    middle = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def verdict(low: float, high: float) -> Verdict:
    """Of an interval."""
    if high <= TOLERATED_SHARE:
        return "met"
    return "missed" if low > TOLERATED_SHARE else "undecided"


def true_capacity(
    machine: Machine, settings: Settings, *, count: int = 12_000, precision: float = 0.02
) -> float:
    """The highest rate with at most 1 % over the limit: a long run for each, without drift."""

    def met(rate: float) -> bool:
        random = np.random.default_rng(7)
        arrivals = poisson(rate, count, random)
        took = response_times(machine, settings, arrivals, jitter(machine, random))
        return sum(seconds > machine.limit for seconds in took) <= TOLERATED_SHARE * count

    low, high = 1.0, 2.0
    if not met(low):
        return 0.0
    while met(high):
        low, high = high, high * 2
    while high / low > 1 + precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if met(middle) else (low, middle)
    return low


def swept(
    laboratory: Laboratory,
    grid: Sequence[Settings],
    start: float,
    *,
    precision: float = 0.05,
    requests: int = 600,
) -> Mapping[str, float]:
    """An exhaustive sweep: the capacity of every setting, bracketed and bisected, as measured."""
    found = {}
    for settings in grid:
        found[repr(settings)] = _measured_capacity(laboratory, settings, start, precision, requests)
    return found


def _measured_capacity(
    laboratory: Laboratory, settings: Settings, start: float, precision: float, requests: int
) -> float:
    def met(rate: float) -> bool:
        return laboratory(TrialRequest(settings, rate, max(0.5, requests / rate))).leans_met

    low = high = start
    if met(start):
        while met(high := high * 2):
            low = high
    else:
        while not met(low := low / 2):
            high = low
            if low < 0.05:
                return 0.0
    while high / low > 1 + precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if met(middle) else (low, middle)
    return low
