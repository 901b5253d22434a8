# SPDX-License-Identifier: Apache-2.0
"""The judge of rollouts against optimal sequential tests, and on rollouts of an equal version.

    python benchmarks/rollout/judge.py power | rare [N] | same [N] | faults [N] | slower [N] |
        holds [N]   [--slow-seconds SECONDS] [--worlds WORD ...]

slower: how long it takes until a slower release is found, at one share of the users. holds: whole
rollouts by how long a step holds, of equal releases and of one of 2 x TTFT. No server: time is
simulated, a request of it takes no time. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean

import numpy as np

import simulated
from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.project.rollout import Rollout, Tolerated
from tritonctl.rollout.judge import SHARES, DecisionStatus, Judge
from tritonctl.rollout.latency_test import LatencyTest, log_midpoints
from tritonctl.rollout.sequential import FailureTest

RATE = 0.01  # of false rollbacks
REQUESTS = 20  # a second
SHARE = (0.01, 0.05, 0.25, 0.5)
# Spread of the logarithm of times, and how long a version may be slow by itself.
TTFT = ((0.2, 0.0), (0.3, 0.0), (0.5, 0.0), (0.3, 120.0))
WARM_UP = 20  # seconds, in which stable's times are known and the candidate's do not count
RUNS = 400
HOLDS = (60, 120, 300, 600)  # seconds of each step
LONGEST = 20_000  # seconds of a rollout
_WATCHED = 1800  # seconds, in which a slower release is to be found
_REAL = "as on real servers"
_WORLDS = {  # where none are said
    "faults": ["all but own phases"],
    "slower": ["calm", "all but own phases", _REAL],
    "holds": ["calm", _REAL],
}


@dataclass(frozen=True)
class Needed:
    """Candidate's requests until a test is decided, on average."""

    judge: float  # at its share of the rate
    same_rate: float  # the same test with the whole rate for itself
    two_sample: float  # SPRT that knows the fault, and not how stable does
    known: float  # SPRT that knows the fault and how stable does, in advance

    def row(self, name: str) -> str:
        """Of a table."""
        numbers = (self.judge, self.same_rate, self.two_sample, self.known)
        ratios = (
            self.judge / self.two_sample,
            self.same_rate / self.two_sample,
            self.judge / self.known,
            self.same_rate / self.known,
        )
        cells = [f"{number:.0f}" for number in numbers] + [f"{ratio:.2f}" for ratio in ratios]
        return f"| {name} | " + " | ".join(cells) + " |"


def failures(share: float, healthy: float, faulty: float, seed: int) -> tuple[float, ...]:
    """One run: requests until each of the four tests is decided."""
    random = np.random.default_rng(seed)
    rivals = Rivals(healthy, faulty)
    test, limits = FailureTest(), (1 / RATE / SHARES["failures"], 1 / RATE)
    found: list[float] = [math.nan] * 4
    requests = 0
    for mine, others in _traffic(random, share):
        failed = int(random.binomial(mine, faulty))
        stable_failed = int(random.binomial(others, healthy))
        test.update((failed, mine), (stable_failed, others))
        rivals.update((failed, mine), (stable_failed, others))
        requests += mine
        reached = (*(test.evidence >= limit for limit in limits), *rivals.decided)
        found = [
            requests if now and math.isnan(before) else before
            for before, now in zip(found, reached, strict=True)
        ]
        if not any(math.isnan(one) for one in found):
            break
    return tuple(found)


def times(
    share: float, slower: float, spread: float, slow_seconds: float, seed: int
) -> tuple[float, ...]:
    """One run, as for failures. The SPRT of two samples knows the law and not where it lies."""
    random = np.random.default_rng(seed)
    shift = math.log(slower) / spread
    test, limits = LatencyTest(slow_seconds=slow_seconds), (1 / RATE / SHARES["ttft"], 1 / RATE)
    found: list[float] = [math.nan] * 4
    known = pair = 0.0
    requests = 0
    target = math.log(1 / RATE)
    edges = np.log(np.array(simulated.BOUNDS) / 100) / spread
    places = log_midpoints(simulated.BOUNDS)
    for _ in range(WARM_UP):
        test.learn(_counts(edges, random.normal(size=REQUESTS)), places)
    for mine, others in _traffic(random, share):
        requests += mine
        candidate, stable = random.normal(size=mine) + shift, random.normal(size=others)
        test.update(_counts(edges, candidate), _counts(edges, stable), places)
        known += float(np.sum(shift * candidate - shift * shift / 2))
        if mine and others:
            variance = 1 / mine + 1 / others
            gap = float(candidate.mean() - stable.mean())
            pair += (shift * gap - shift * shift / 2) / variance
        reached = (
            test.evidence >= limits[0],
            test.evidence >= limits[1],
            pair >= target,
            known >= target,
        )
        found = [
            requests if now and math.isnan(before) else before
            for before, now in zip(found, reached, strict=True)
        ]
        if not any(math.isnan(one) for one in found):
            break
    return tuple(found)


def _counts(edges: np.ndarray, drawn: np.ndarray) -> list[int]:
    return list(np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1).tolist())


def _traffic(random: np.random.Generator, share: float) -> Iterator[tuple[int, int]]:
    for _ in range(LONGEST * 10):
        yield int(random.poisson(REQUESTS * share)), int(random.poisson(REQUESTS * (1 - share)))


def power() -> Iterator[str]:
    """The curve: each fault at each share."""
    yield (
        "| fault, share of the candidate | judge | its test alone | SPRT, two samples | "
        "SPRT, stable known | judge / two samples | alone / two samples | judge / known | "
        "alone / known |"
    )
    yield "|---" + "|--:" * 8 + "|"
    cases: list[tuple[str, Callable[..., tuple[float, ...]], tuple[float, ...]]] = []
    for every in (50, 200):
        for share in SHARE:
            name = f"1 in {every} fails beside 1 in 1000, {share:.0%}"
            cases.append((name, failures, (share, 0.001, 0.001 + 1 / every)))
    for spread, slow_seconds in TTFT:
        for share in SHARE:
            name = f"1.2 x TTFT, spread {spread}, `slow_seconds: {slow_seconds:g}`, {share:.0%}"
            cases.append((name, times, (share, 1.2, spread, slow_seconds)))
    with ProcessPoolExecutor() as pool:
        for name, run, arguments in cases:
            columns = [[argument] * RUNS for argument in arguments]
            runs = np.array(list(pool.map(run, *columns, range(RUNS), chunksize=20)))
            yield Needed(*(float(value) for value in runs.mean(axis=0))).row(name)


def rare(n: int) -> Iterator[str]:
    """The curve of 1 request in 200 that fails: of rollouts, how many find it, by their holds.

    Each step lasts so long, and until the candidate has had 50 requests in it.
    """
    names = ("judge", "its test alone", "SPRT, two samples", "SPRT, stable known")
    yield "| each step holds | requests beside stable | " + " | ".join(names) + " |"
    yield "|--:" * (2 + len(names)) + "|"
    with ProcessPoolExecutor() as pool:
        for hold in HOLDS:
            runs = np.array(list(pool.map(_rare, [hold] * n, range(n), chunksize=50)))
            found = [f"{share:.0%}" for share in (runs[:, 1:]).mean(axis=0)]
            beside = runs[:, 0].mean()
            yield f"| {hold} s | {beside:,.0f} | " + " | ".join(found) + " |"


def _rare(hold: int, seed: int) -> tuple[float, ...]:
    """One rollout: requests of the candidate beside stable, and whether each test found it."""
    random = np.random.default_rng(seed)
    healthy, faulty = 0.001, 0.006
    rivals, test = Rivals(healthy, faulty), FailureTest()
    requests, found = 0, np.zeros(4, bool)
    for share in SHARE:
        in_step = 0
        for second, (mine, others) in enumerate(_traffic(random, share)):
            if second >= hold and in_step >= Rollout().minimum_requests:
                break
            failed = int(random.binomial(mine, faulty))
            stable_failed = int(random.binomial(others, healthy))
            test.update((failed, mine), (stable_failed, others))
            rivals.update((failed, mine), (stable_failed, others))
            requests, in_step = requests + mine, in_step + mine
            limits = 1 / RATE / SHARES["failures"], 1 / RATE
            found |= [*(test.evidence >= limit for limit in limits), *rivals.decided]
    return float(requests), *map(float, found)


@dataclass
class Rivals:
    """Wald's tests of failures, which know the fault; `known`: and how stable does."""

    healthy: float
    faulty: float
    pair: float = 0.0
    known: float = 0.0

    @property
    def decided(self) -> tuple[bool, bool]:
        """Of two samples, and with stable known."""
        target = math.log(1 / RATE)
        return self.pair >= target, self.known >= target

    def update(self, candidate: tuple[int, int], stable: tuple[int, int]) -> None:
        """Failures and requests of each, of a moment."""
        (failed, mine), (stable_failed, others) = candidate, stable
        healthy, faulty = self.healthy, self.faulty
        odds = faulty / (1 - faulty) / (healthy / (1 - healthy))
        self.known += failed * math.log(faulty / healthy)
        self.known += (mine - failed) * math.log((1 - faulty) / (1 - healthy))
        if mine and others and failed + stable_failed:
            part = mine / (mine + others)
            base = math.log(part * odds + 1 - part)
            self.pair += failed * (math.log(odds) - base) - stable_failed * base


@dataclass(frozen=True)
class Outcome:
    """How a rollout ended. requests: that the candidate had."""

    rolled_back: bool
    step: int
    seconds: float
    requests: int
    reason: str


def rollout(
    world: simulated.World, candidate: simulated.Candidate, asked: Rollout, seed: int
) -> Outcome:
    """One whole rollout, from its first step to its last decision."""
    traffic = simulated.Traffic(world, candidate, seed, asked.shadow)
    judge = Judge(asked, 0.0, times=("ttft",))
    step = 0
    traffic.share = asked.steps[0]
    for scrape in traffic.scrapes():
        decision = judge.observe(scrape)
        requests = decision.figures["candidate"]["requests"]
        if decision.status is DecisionStatus.ROLLBACK:
            return Outcome(True, step, scrape.at, requests, decision.reason)
        if decision.status is DecisionStatus.PROMOTE_STEP:
            step += 1
            if step == len(asked.steps):
                break
            traffic.share = asked.steps[step]
            judge.begin_step(step, scrape.at)
        if scrape.at > LONGEST:
            break
    return Outcome(False, step, scrape.at, requests, "")


def _outcomes(
    world: simulated.World, candidate: simulated.Candidate, asked: Rollout, n: int
) -> list[Outcome]:
    with ProcessPoolExecutor() as pool:
        return list(
            pool.map(rollout, [world] * n, [candidate] * n, [asked] * n, range(n), chunksize=5)
        )


def same(n: int, tolerated: Tolerated, worlds: Sequence[str]) -> Iterator[str]:
    """Rollouts of the version that serves already, with a cold start, by what happens meanwhile."""
    yield "| what happens meanwhile | rollouts | rolled back | 95 % interval | minutes |"
    yield "|---|--:|--:|--:|--:|"
    asked = Rollout(shadow=0.05, tolerated=tolerated)
    for world in worlds:
        runs = _outcomes(simulated.WORLDS[world], simulated.Candidate(cold=True), asked, n)
        wrong = [run for run in runs if run.rolled_back]
        low, high = share_bounds(len(wrong), n)
        why = sorted({run.reason for run in wrong})
        yield (
            f"| {world} | {n} | {len(wrong)} = {len(wrong) / n:.2%} | {low:.2%} to {high:.2%} "
            f"| {mean(run.seconds for run in runs) / 60:.1f} |" + "".join(f" {one};" for one in why)
        )


def faults(n: int, tolerated: Tolerated, worlds: Sequence[str]) -> Iterator[str]:
    """Faults in the candidate, through whole rollouts."""
    yield "| fault | found | step, per cent | seconds, median (P90) | its requests, median | by |"
    yield "|---|--:|--:|--:|--:|---|"
    for name, (candidate, shadow) in simulated.FAULTS.items():
        asked = Rollout(shadow=shadow, tolerated=tolerated)
        runs = _outcomes(simulated.WORLDS[worlds[0]], candidate, asked, n)
        places = sorted({run.step for run in runs if run.rolled_back})
        reasons = [run.reason for run in runs if run.rolled_back]
        why = max(reasons, key=reasons.count, default="–")
        found, seconds, requests = _found(runs)
        shares = ", ".join(f"{asked.steps[one]:g}" for one in places)
        yield f"| {name} | {found} | {shares} | {seconds} | {requests} | {why} |"


def slower(n: int, tolerated: Tolerated, worlds: Sequence[str]) -> Iterator[str]:
    """A slower release, at one share of the users all the time."""
    yield "| world | TTFT | its users | requests/s | found | seconds (P90) | its requests |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for world, factor, rate, share in product(worlds, (2.0, 1.5, 1.2), (20, 2), (5, 25, 50)):
        asked = Rollout(steps=[share, 100], hold_seconds=_WATCHED, tolerated=tolerated)
        here = replace(simulated.WORLDS[world], rate=rate)
        runs = _outcomes(here, simulated.Candidate(slower=factor), asked, n)
        cells = [world, f"{factor:g} x", f"{share} %", f"{rate}", *_found(runs)]
        yield "| " + " | ".join(cells) + " |"


def holds(n: int, tolerated: Tolerated, worlds: Sequence[str]) -> Iterator[str]:
    """Whole rollouts, by how long a step holds."""
    yield (
        "| world | holds | requests/s | equal: rolled back | minutes | 2 x TTFT: found | seconds "
        "(P90) | its requests |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for world, hold, rate in product(worlds, (10, 30, 60, 300), (20, 2)):
        asked = Rollout(
            steps=[5, 25, 50, 100],
            hold_seconds=hold,
            minimum_requests=30,
            warm_up_seconds=10,
            tolerated=tolerated,
        )
        here = replace(simulated.WORLDS[world], rate=rate)
        equal = _outcomes(here, simulated.Candidate(), asked, n)
        wrong, minutes = sum(one.rolled_back for one in equal), [one.seconds / 60 for one in equal]
        found = _found(_outcomes(here, simulated.Candidate(slower=2.0), asked, n))
        cells = [world, f"{hold} s", f"{rate}", f"{wrong} of {n}", f"{mean(minutes):.1f}", *found]
        yield "| " + " | ".join(cells) + " |"


def _found(runs: Sequence[Outcome]) -> tuple[str, str, str]:
    """How many, the seconds (P90), the candidate's requests; medians of those that were found."""
    found = [run for run in runs if run.rolled_back]
    if not found:
        return f"0 of {len(runs)}", "–", "–"
    seconds = [run.seconds for run in found]
    return (
        f"{len(found)} of {len(runs)}",
        f"{np.median(seconds):.0f} ({np.percentile(seconds, 90):.0f})",
        f"{np.median([run.requests for run in found]):,.0f}",
    )


def main() -> None:
    """As the docstring says."""
    arguments = argparse.ArgumentParser(description=__doc__)
    tables = {"same": same, "faults": faults, "slower": slower, "holds": holds}
    arguments.add_argument("what", choices=("power", "rare", *tables))
    arguments.add_argument("n", type=int, nargs="?", default=200, help="rollouts of each kind")
    longest = Tolerated().slow_seconds
    arguments.add_argument("--slow-seconds", type=float, default=longest)
    arguments.add_argument("--worlds", nargs="*", choices=list(simulated.WORLDS), default=[])
    asked = arguments.parse_args()
    tolerated = Tolerated(slow_seconds=asked.slow_seconds)
    worlds = asked.worlds or _WORLDS.get(asked.what, list(simulated.WORLDS))
    if asked.what in tables:
        lines = tables[asked.what](asked.n, tolerated, worlds)
    else:
        lines = power() if asked.what == "power" else rare(asked.n)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
