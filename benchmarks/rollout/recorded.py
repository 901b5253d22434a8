# SPDX-License-Identifier: Apache-2.0
"""Rollouts of an equal version, over streams that were recorded: how often is one rolled back?

Each rollout gives every user of the recording a place on the line anew, begins at another second
of it, and shows the judge, second by second, what two versions would have counted. Real times, real
pauses of the machine, real users; only who is whose is drawn. A recording that comes round again
has other users: the same ones would meet the same pauses by the same version, chance for chance.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from load import Asked
from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.project.rollout import ALL, Rollout
from tritonctl.rollout.judge import DecisionStatus, Judge
from tritonctl.rollout.metrics import Counters, Histogram, Scrape

_BOUNDS = tuple(0.001 * 1.15**step for step in range(75))
_LONGEST = 3600


@dataclass(frozen=True)
class Ended:
    """How one ended."""

    rolled_back: bool
    seconds: float
    requests: int
    reason: str


class _Version:
    """Counts of one of the two."""

    def __init__(self) -> None:
        self.requests = self.failures = 0
        self._buckets = [0] * (len(_BOUNDS) + 1)

    def take(self, asked: Asked) -> None:
        self.requests += 1
        self.failures += asked.failed
        if asked.first is not None:
            self._buckets[bisect_left(_BOUNDS, asked.first - asked.sent)] += 1

    def counters(self) -> Counters:
        times = {"ttft": Histogram(_BOUNDS, tuple(self._buckets))}
        return Counters(self.requests, self.failures, times, 1 << 30)


def by_second(asked: Sequence[Asked]) -> list[list[Asked]]:
    """Those that ended in each second, from the first to the last whole one."""
    begin, end = int(min(a.end for a in asked)) + 1, int(max(a.end for a in asked))
    seconds: list[list[Asked]] = [[] for _ in range(end - begin)]
    for each in asked:
        if begin <= each.end < end:
            seconds[int(each.end) - begin].append(each)
    return seconds


def rollout(seconds: Sequence[Sequence[Asked]], settings: Rollout, seed: int) -> Ended:
    """One rollout, to its end."""
    draw = random.Random(seed)
    places: dict[tuple[str, int], float] = {}
    first = draw.randrange(len(seconds))
    versions = [_Version(), _Version()]
    judge = Judge(settings, 0.0, times=("ttft",), shadowed=False)
    step, share = 0, settings.steps[0]
    for at in range(_LONGEST):
        round_, second = divmod(first + at, len(seconds))
        for asked in seconds[second]:
            place = places.setdefault((asked.user, round_), draw.uniform(0, ALL))
            versions[place < share].take(asked)
        stable, candidate = (version.counters() for version in versions)
        scrape = Scrape(float(at), stable, candidate, sent=candidate.requests)
        decision = judge.observe(scrape)
        if decision.status is DecisionStatus.ROLLBACK:
            return Ended(True, at, candidate.requests, decision.reason)
        if decision.status is DecisionStatus.PROMOTE_STEP:
            step += 1
            if step == len(settings.steps):
                return Ended(False, at, candidate.requests, "")
            share = settings.steps[step]
            judge.begin_step(step, float(at))
    return Ended(False, _LONGEST, candidate.requests, "it has not come to its end")


def table(asked: Sequence[Asked], n: int, settings: Rollout) -> Iterator[str]:
    """False rollbacks, with their interval."""
    seconds = by_second(asked)
    with ProcessPoolExecutor() as pool:
        runs = list(pool.map(partial(rollout, seconds, settings), range(n), chunksize=10))
    wrong = [run for run in runs if run.rolled_back]
    low, high = share_bounds(len(wrong), n)
    yield "| recorded | rollouts | rolled back | 95 % interval | stated | why |"
    yield "|--:|--:|--:|--:|--:|---|"
    reasons = Counter(run.reason for run in wrong)
    why = "; ".join(f"{reason} ({many})" for reason, many in reasons.items())
    yield (
        f"| {len(asked):,} requests in {len(seconds)} s | {n} "
        f"| {len(wrong)} = {len(wrong) / n:.1%} | {low:.1%} to {high:.1%} "
        f"| {settings.false_rollback_rate:.1%} | {why} |"
    )
