# SPDX-License-Identifier: Apache-2.0
"""Two versions behind one gateway, simulated second by second, as the judge sees them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritonctl.rollout.metrics import Counters, Distances, Histogram, Scrape

# Upper ends of buckets, ms: 10 % apart from 10 ms to 3 s.
BOUNDS = tuple(float(bound) for bound in 10 * 1.1 ** np.arange(60))


@dataclass(frozen=True)
class World:
    """What happens to both versions alike, and what chance does to each by itself.

    rate: requests a second of both. spread: sd of the logarithm of the time to the first token.
    phase: sd of a version's own slow and fast phases, in units of `spread`, and how many seconds
    they last. shared: the same, of phases that hit both. wave: of the rate, over 10 minutes.
    bursts: of failures, a second. slow_minute: both take 3 x as long for a minute.
    busy: the machine of one version is: its times so many times as long, for how many seconds, and
    on average how many seconds lie between two. loading: for so many seconds at first both take 10
    x as long, and vary more. lighter: how much shorter times are, as a logarithm, where a version
    has no requests than where it has all. odd: share of requests that take 30 x as long.
    """

    rate: float = 20.0
    spread: float = 0.3
    failing: float = 0.001
    stalling: float = 0.0001
    phase: tuple[float, float] = (0.0, 1.0)
    shared: tuple[float, float] = (0.0, 1.0)
    wave: float = 0.0
    bursts: float = 0.0
    slow_minute: bool = False
    busy: tuple[float, float, float] = (1.0, 0.0, math.inf)
    loading: float = 0.0
    lighter: float = 0.0
    odd: float = 0.0
    noise: float = 0.02  # share of questions that stable itself answers in two ways


@dataclass(frozen=True)
class Candidate:
    """How it differs from stable. cold: its first requests take 3 x as long, in its first 15 s."""

    failing: float = 0.0
    crash: bool = False
    slower: float = 1.0
    diverging: float = 0.0
    leak_mb: float = 0.0
    dead_metrics: bool = False
    hangs: float = 0.0  # share of requests, which stand still, and fail after 20 s
    cold: bool = False


HANG_SECONDS, STALL_SECONDS = 20, 5


class Traffic:
    """Of one rollout. `share`: per cent to the candidate, which the caller changes."""

    def __init__(self, world: World, candidate: Candidate, seed: int, shadow: float = 0.0) -> None:
        self.world, self.candidate = world, candidate
        self.share = 0.0
        self._shadow = shadow
        self._random = np.random.default_rng(seed)
        self._phases = [self._random.normal() for _ in range(3)]
        self._counts = [np.zeros(len(BOUNDS) + 1, np.int64) for _ in range(2)]
        self._requests, self._failures, self._sent = [0, 0], [0, 0], 0
        self._slow_from = int(self._random.integers(30, 500)) if world.slow_minute else -1000
        self._hung: dict[int, int] = {}
        self._stalls = [0, 0]
        self._memory = 1e9
        # Of each version, for how many seconds its machine is busy (< 0: idle) from now on.
        self._busy = [self._until_busy(long_ago=True) for _ in range(2)]

    def scrapes(self) -> Iterator[Scrape]:
        """One a second, without end."""
        second = 0
        while True:
            yield self._second(second)
            second += 1

    def _second(self, second: int) -> Scrape:
        world, random = self.world, self._random
        self._drift()
        rate = world.rate * (1 + world.wave * math.sin(2 * math.pi * second / 600))
        burst = 0.3 if random.random() < world.bursts else 0.0
        slow = math.log(3) if 0 <= second - self._slow_from < 60 else 0.0
        common = slow + self._phases[2] * world.shared[0] * world.spread
        answers = []
        for group, share in enumerate((1 - self.share / 100, self.share / 100)):
            requests = int(random.poisson(rate * share))
            failing = world.failing + burst
            times = common + self._phases[group] * world.phase[0] * world.spread
            times += math.log(world.busy[0]) * (self._busy[group] > 0) - world.lighter * (1 - share)
            if group:
                self._sent += requests
                failing += self.candidate.failing
                times += math.log(self.candidate.slower)
                if self.candidate.cold:
                    times += math.log(3) * math.exp(-second / 5) * (second < 15)
                if self.candidate.crash:
                    failing = 1.0
                answers = self._answers(requests)
            hung = int(random.binomial(requests, self.candidate.hangs)) if group else 0
            self._hung[second + HANG_SECONDS] = hung + self._hung.get(second + HANG_SECONDS, 0)
            self._stalls[group] += int(random.binomial(requests, world.stalling))
            if group:
                begun = second + HANG_SECONDS - STALL_SECONDS
                self._stalls[group] += self._hung.get(begun, 0)
            late = self._hung.pop(second, 0) if group else 0
            failed = int(random.binomial(requests - hung, min(1.0, failing)))
            done = requests - hung - failed
            loads = second < world.loading
            drawn = np.log(100) + times + (world.spread + loads) * random.normal(size=done)
            drawn += math.log(10) * loads + math.log(30) * (random.random(done) < world.odd)
            places = np.searchsorted(BOUNDS, np.exp(drawn))
            self._counts[group] += np.bincount(places, minlength=len(BOUNDS) + 1)
            self._requests[group] += done + failed + late
            self._failures[group] += failed + late
        # A question is two requests at stable, one at the candidate; engines leave its times out.
        self._requests[0] += 2 * len(answers)
        self._requests[1] += len(answers)
        self._memory += 1e6 * self.candidate.leak_mb * (self.share > 0)
        dead = self.candidate.dead_metrics and second > 5
        return Scrape(
            float(second),
            self._counters(0),
            None if dead else self._counters(1),
            sent=self._sent,
            answers=answers,
        )

    def _drift(self) -> None:
        """Phases go on as they are for about as long as they last."""
        for place, (_, seconds) in enumerate(
            (self.world.phase, self.world.phase, self.world.shared)
        ):
            keep = math.exp(-1 / seconds)
            step = math.sqrt(1 - keep * keep) * self._random.normal()
            self._phases[place] = keep * self._phases[place] + step
        for group in range(2):
            idle = self._busy[group] < 0
            self._busy[group] += 1 if idle else -1
            if abs(self._busy[group]) < 1:
                self._busy[group] = self.world.busy[1] if idle else self._until_busy()

    def _until_busy(self, *, long_ago: bool = False) -> float:
        """Less than 0. long_ago: also in the middle of a phase that began before the rollout."""
        _, seconds, between = self.world.busy
        if math.isinf(between):
            return -math.inf
        if long_ago and self._random.random() < seconds / (seconds + between):
            return float(self._random.uniform(1, seconds))
        return -1.0 - float(self._random.exponential(between))

    def _answers(self, requests: int) -> list[Distances]:
        """Of the questions that are shadowed, at the rate of all requests."""
        found = []
        for _ in range(self._random.poisson(self._shadow * self.world.rate) if requests else 0):
            odd = [self._random.random() < self.world.noise / 2 for _ in range(3)]
            odd[2] = odd[2] or self._random.random() < self.candidate.diverging
            noise = float(odd[0] != odd[1] or (odd[0] and odd[1]))
            mine = [float(odd[2] or one) for one in odd[:2]]
            found.append(Distances(noise, sum(mine) / 2))
        return found

    def _counters(self, group: int) -> Counters:
        histogram = Histogram(BOUNDS, tuple(self._counts[group].tolist()))
        memory = self._memory if group else 1e9
        return Counters(
            self._requests[group],
            self._failures[group],
            {"ttft": histogram},
            int(memory * (1 + 0.002 * self._random.normal())),
            self._stalls[group],
        )


def named(**changes: Any) -> World:
    """A world that is calm but for these."""
    return replace(World(), **changes)


WORLDS = {
    "calm": named(),
    "bursts of failures that hit both": named(bursts=0.02),
    "rate that doubles and halves": named(wave=0.6),
    "a minute in which both take 3 x as long": named(slow_minute=True),
    "phases of 30 s that hit both": named(shared=(1.0, 30.0)),
    "own phases of 5 s, half the spread": named(phase=(0.5, 5.0)),
    "own phases of 30 s, half the spread": named(phase=(0.5, 30.0)),
    "own phases of 120 s, half the spread": named(phase=(0.5, 120.0)),
    "all but own phases": named(bursts=0.02, wave=0.6, slow_minute=True, shared=(1.0, 30.0)),
    "all, own phases of 5 s": named(
        bursts=0.02, wave=0.6, slow_minute=True, shared=(1.0, 30.0), phase=(0.5, 5.0)
    ),
}
WORLDS |= {
    f"machine of one busy for {seconds} s, {factor} x TTFT": named(busy=(factor, seconds, 600.0))
    for factor in (2, 5)
    for seconds in (5, 30, 120)
}
WORLDS["as on real servers"] = named(
    loading=8, lighter=0.2, odd=0.002, shared=(0.5, 5.0), phase=(0.3, 5.0), busy=(2, 15, 300)
)
FAULTS = {
    "fails at once, always": (Candidate(crash=True), 0.0),
    "wrong text (shadow 10 %)": (Candidate(diverging=1.0), 0.1),
    "int4: 3 of 10 answers differ (shadow 10 %)": (Candidate(diverging=0.3), 0.1),
    "a penalty: 1 of 10 answers differs (shadow 10 %)": (Candidate(diverging=0.1), 0.1),
    "2 x TTFT": (Candidate(slower=2.0), 0.0),
    "1.2 x TTFT": (Candidate(slower=1.2), 0.0),
    "1 request in 50 fails": (Candidate(failing=0.02), 0.0),
    "1 request in 200 fails": (Candidate(failing=0.005), 0.0),
    "1 request in 200 hangs 20 s": (Candidate(hangs=0.005), 0.0),
    "memory grows by 3 MB/s of 1 GB": (Candidate(leak_mb=3), 0.0),
    "metrics die": (Candidate(dead_metrics=True), 0.0),
}
