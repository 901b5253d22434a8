# SPDX-License-Identifier: Apache-2.0
"""Whether the candidate's times are longer than stable's: whose are the long ones of a moment?

All times of a moment, of both versions together, say what was usual just then. If the versions are
alike, each way to say whose they are is as likely: whatever slows both down cancels, and no law of
the times is assumed. If the candidate takes longer by a factor, and logarithms of times are normal,
a way is likelier by exp(theta * sum of the candidate's logarithms), in standard deviations: that is
what is bet, for several theta. It is the optimal bet for one who does not know how stable does.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

from tritonctl.rollout.phases import Mean, OwnPhases
from tritonctl.rollout.sequential import Wealth
from tritonctl.rollout.stretches import Stretches, Suspicion

# How the stake is spread over how much longer the candidate takes, in standard deviations.
_SHIFTS = ((0.35, 0.4), (0.7, 0.35), (1.8, 0.25))
_SHARES = tuple(share for _, share in _SHIFTS)
# What is further than phases of a usual size: by how much less it is not, and two bets.
_WANDERS, _FAR = 0.7, (1.2, 1.8)
_REMEMBERED = 2000.0  # times of stable that say how much they vary: in the beginning, it loads
_FURTHEST = 3.0  # standard deviations from the middle: a time that is odder counts as that odd
_MOST_BETS, _MOST_BESIDE = 32, 96  # of the candidate's and stable's times of a moment
_LEAST = 10  # times of stable, before its spread is known


class Slower:
    """One bet each moment, on the sum of the candidate's times, given all of the moment's.

    `tolerated`: the chance of the candidate's time to be the longer one of two, beyond 1/2, that is
    no fault. `slow_seconds`: how long a version may be slow by itself, which is no fault; 0: none
    is. Spread: of stable's times within moments so far.

    A slow phase of the candidate alone is one event, not as many as it has requests. So this bet
    must be won, and also without the slowest stretches of such a length (`Stretches`), however slow
    they are. Where phases come all the time and are moderate, they are refuted (`OwnPhases`), or
    the candidate is beyond them outside of such stretches, or it has been slow for too long.
    """

    KEPT = ("_wealth", "_phases", "_stretches", "_far", "_suspicion", "_spread", "_moments")

    def __init__(self, tolerated: float = 0.005, slow_seconds: float = 15.0) -> None:
        self._tolerated = math.sqrt(2) * NormalDist().inv_cdf(0.5 + tolerated)
        self._wealth = Wealth(_SHARES)
        self._phases = OwnPhases(slow_seconds)
        self._stretches = Stretches(_SHARES, slow_seconds)
        self._far = Stretches((0.5, 0.5), slow_seconds)
        self._suspicion = Suspicion(_SHARES, slow_seconds)
        self._spread = [0.0, 0.0]  # degrees of freedom, sum of squares
        self._moments = 0

    @property
    def evidence(self) -> float:
        """An e-value against "no slower than stable", with slow phases of its own or without.

        The lesser of those against each kind of phases.
        """
        beyond = min(self.alike, self._stretches.evidence)
        if self._suspicion.lasts:
            return beyond
        return min(beyond, (self._phases.evidence + self._far.evidence) / 2)

    @property
    def slow_for(self) -> int:
        """Moments that the candidate has been slow for, up to now; 0: it is not."""
        return self._suspicion.moments

    @property
    def alike(self) -> float:
        """An e-value against "no slower than stable, and no slow phases of its own"."""
        return self._wealth.evidence

    def learn(
        self,
        stable: Sequence[int],
        places: Sequence[float],
        alone: tuple[int, int] | None = None,
    ) -> None:
        """How stable's times vary, in a moment that nothing is bet on."""
        self._pass_by([], [])
        self._see_phases([0] * len(places), stable, places, alone)
        self._measure(stable, places)

    def update(
        self,
        candidate: Sequence[int],
        stable: Sequence[int],
        places: Sequence[float],
        alone: tuple[int, int] | None = None,
    ) -> None:
        """How many requests of each group ended in each bucket of time, shortest first.

        places: of the buckets, as `places_of` gives them. Call it for moments without requests,
        too: they are time between those that have some. alone: how many times of each tell as much
        as one that nothing goes together with, at least one; None: all.
        """
        requests, others = _buckets(candidate), _buckets(stable)
        factors: list[float] = []
        far: list[float] = []
        if requests and others and self._known:
            # Any order will do; this one is the same in a process that goes on with the test.
            order = random.Random(self._moments)  # noqa: S311
            some = order.sample(requests, min(len(requests), _MOST_BETS))
            beside = order.sample(others, min(len(others), _MOST_BESIDE))
            times = self._standardised([places[bucket] for bucket in some + beside], places)
            fair = _gain(times, len(some), self._tolerated)
            gains = {
                shift: _gain(times, len(some), self._tolerated + shift)
                for shift in {*_FAR, _WANDERS, *(shift for shift, _ in _SHIFTS)}
            }
            factors = [math.exp(gains[shift] - fair) for shift, _ in _SHIFTS]
            far = [math.exp(gains[shift] - gains[_WANDERS]) for shift in _FAR]
            self._wealth.settle(factors)
        self._pass_by(factors, far)
        self._see_phases(candidate, stable, places, alone)
        self._measure(stable, places)

    def noticeable(self, places: Sequence[float]) -> float:
        """The least difference of logarithms that is bet on; infinite while nothing is known."""
        if not self._known:
            return math.inf
        return (self._tolerated + _SHIFTS[0][0]) * math.sqrt(self._variance(places))

    @property
    def _known(self) -> bool:
        """Whether the spread is."""
        return self._spread[0] >= _LEAST

    def _variance(self, places: Sequence[float]) -> float:
        """Of stable's times; within a bucket they vary, too."""
        width = (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else 1.0
        return self._spread[1] / self._spread[0] + width * width / 12

    def _standardised(self, times: Sequence[float], places: Sequence[float]) -> list[float]:
        """In standard deviations from their middle."""
        spread = math.sqrt(self._variance(places))
        middle = sorted(times)[len(times) // 2]
        return [max(-_FURTHEST, min(_FURTHEST, (time - middle) / spread)) for time in times]

    def _pass_by(self, factors: Sequence[float], far: Sequence[float]) -> None:
        """A moment, and what its bets multiply; none where nothing is bet."""
        self._stretches.update(factors)
        self._far.update(far)
        self._suspicion.update(factors)

    def _see_phases(
        self,
        candidate: Sequence[int],
        stable: Sequence[int],
        places: Sequence[float],
        alone: tuple[int, int] | None,
    ) -> None:
        if not self._known:
            return
        variance = self._variance(places)
        others = _buckets(stable)
        if not others:
            self._phases.update(None, None, variance)
            return
        middle, furthest = places[others[len(others) // 2]], _FURTHEST * math.sqrt(variance)
        near = [max(middle - furthest, min(middle + furthest, place)) for place in places]
        most = alone or (sum(candidate), sum(stable))
        self._phases.update(
            _of_at_most(mean_of(candidate, near), most[0]),
            _of_at_most(mean_of(stable, near), most[1]),
            variance,
        )

    def _measure(self, stable: Sequence[int], places: Sequence[float]) -> None:
        """How much stable's times vary within a moment."""
        self._moments += 1
        if (found := mean_of(stable, places)) is None:
            return
        mean, total = found
        most = _FURTHEST**2 * self._variance(places) if self._known else math.inf
        squares = (
            n * min(most, (place - mean) ** 2) for n, place in zip(stable, places, strict=True)
        )
        kept = max(0.0, 1 - (total - 1) / _REMEMBERED)
        freedom, whole = self._spread
        self._spread = [kept * freedom + total - 1, kept * whole + sum(squares)]


def places_of(bounds: Sequence[float]) -> list[float]:
    """Of each bucket the logarithm of its middle, one beyond the last bound among them."""
    if not bounds:
        return [0.0]
    ends = [math.log(max(bound, 1e-9)) for bound in bounds]
    steps = [high - low for low, high in pairwise(ends)] or [1.0]
    ends = [ends[0] - steps[0], *ends, ends[-1] + steps[-1]]
    return [(low + high) / 2 for low, high in pairwise(ends)]


def in_shared_buckets(
    one: tuple[Sequence[float], Sequence[int]], other: tuple[Sequence[float], Sequence[int]]
) -> tuple[list[float], list[int], list[int]]:
    """The bounds that both have, and the counts between them: releases may have other buckets."""
    bounds = sorted({*one[0]} & {*other[0]})
    return bounds, _merged(*one, bounds), _merged(*other, bounds)


def _merged(bounds: Sequence[float], counts: Sequence[int], shared: Sequence[float]) -> list[int]:
    found = [0] * (len(shared) + 1)
    for bound, count in zip([*bounds, math.inf], counts, strict=True):
        found[bisect_left(shared, bound)] += count
    return found


def mean_of(counts: Sequence[int], places: Sequence[float]) -> Mean | None:
    """Of the times in these buckets, and how many they are; None without any."""
    if not (total := sum(counts)):
        return None
    return sum(n * place for n, place in zip(counts, places, strict=True)) / total, total


def _of_at_most(mean: Mean | None, most: int) -> Mean | None:
    return None if mean is None else (mean[0], min(mean[1], max(1, most)))


def _buckets(counts: Sequence[int]) -> list[int]:
    return [bucket for bucket, count in enumerate(counts) for _ in range(count)]


def _gain(times: Sequence[float], mine: int, shift: float) -> float:
    """Logarithm of what a bet on this shift makes of 1; the first `mine` times are the candidate's.

    By how much likelier it makes their sum than the mean over all ways to choose as many of them.
    """
    weights = [math.exp(shift * time) for time in times]
    return shift * sum(times[:mine]) - math.log(_mean_product(weights, mine))


def _mean_product(weights: Sequence[float], chosen: int) -> float:
    """Of `chosen` of the weights, multiplied, over all ways to choose them."""
    means = [1.0] + [0.0] * chosen
    for seen, weight in enumerate(weights, start=1):
        for size in range(min(seen, chosen), 0, -1):
            part = size / seen
            means[size] = means[size] * (1 - part) + means[size - 1] * weight * part
    return means[chosen]
