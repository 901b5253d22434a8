# SPDX-License-Identifier: Apache-2.0
"""Test whether the candidate's times are longer than stable's, by permutations within an interval.

All times of an interval, of both versions together, show what was usual just then. If the versions
are equal, every assignment of times to versions is equally likely: load that slows both cancels,
and no distribution is assumed. If the candidate is slower by a factor and logarithms of times are
normal, an assignment is likelier by exp(theta * sum of the candidate's logarithms), in standard
deviations. The test bets on that for several theta: the optimal bet if stable's times are unknown.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

from tritonctl.rollout.drift_model import DriftModel, Mean
from tritonctl.rollout.sequential import Wealth
from tritonctl.rollout.slow_spell_budget import SlowSpellBudget, SlowSpellDetector

# The candidate's slowdown in standard deviations, and the share of the stake bet on it.
_SHIFTS = ((0.35, 0.4), (0.7, 0.35), (1.8, 0.25))
_SHARES = tuple(share for _, share in _SHIFTS)
# Beyond drift of a usual size: the reference shift, and two larger shifts to bet on.
_WANDERS, _FAR = 0.7, (1.2, 1.8)
_MEMORY_TIMES = 2000.0  # times of stable in the spread: it varies more at first
_MAX_DEVIATION = 3.0  # standard deviations from the median; larger ones are clipped
_MAX_CANDIDATE_TIMES, _MAX_STABLE_TIMES = 32, 96  # sampled per interval
_MIN_FREEDOM = 10  # degrees of freedom before stable's spread counts as known


class LatencyTest:
    """One bet per interval, on the sum of the candidate's times given all times of the interval.

    tolerated: the tolerated probability, above 1/2, that the candidate's time is the longer of two.
    slow_seconds: how long a version may be slow by itself; 0: not at all. Spread: of stable's times
    within the intervals so far.

    A slow spell of the candidate is one event, however many requests it hits. So the bet must also
    win without the slowest spells of that length (`SlowSpellBudget`). For frequent, moderate drift,
    the drift must be refuted (`DriftModel`), or the candidate must exceed it outside of slow
    spells, or it must have been slow for too long.
    """

    PERSISTED = ("_wealth", "_phases", "_stretches", "_far", "_suspicion", "_spread", "_moments")

    def __init__(self, tolerated: float = 0.005, slow_seconds: float = 15.0) -> None:
        self._tolerated = math.sqrt(2) * NormalDist().inv_cdf(0.5 + tolerated)
        self._wealth = Wealth(_SHARES)
        self._phases = DriftModel(slow_seconds)
        self._stretches = SlowSpellBudget(_SHARES, slow_seconds)
        self._far = SlowSpellBudget((0.5, 0.5), slow_seconds)
        self._suspicion = SlowSpellDetector(_SHARES, slow_seconds)
        self._spread = [0.0, 0.0]  # degrees of freedom, sum of squares
        self._moments = 0

    @property
    def evidence(self) -> float:
        """An e-value against "no slower than stable", the minimum over all kinds of drift."""
        beyond = min(self.evidence_without_slow_phases, self._stretches.evidence)
        if self._suspicion.is_lasting:
            return beyond
        return min(beyond, (self._phases.evidence + self._far.evidence) / 2)

    @property
    def slow_for(self) -> int:
        """The intervals for which the candidate has been slow until now; 0: it is not slow."""
        return self._suspicion.slow_intervals

    @property
    def evidence_without_slow_phases(self) -> float:
        """An e-value against "no slower than stable, without drift"."""
        return self._wealth.evidence

    def learn(
        self,
        stable: Sequence[int],
        places: Sequence[float],
        effective_counts: tuple[int, int] | None = None,
    ) -> None:
        """Learn stable's spread in an interval without a bet."""
        self._advance([], [])
        self._update_drift([0] * len(places), stable, places, effective_counts)
        self._update_spread(stable, places)

    def update(
        self,
        candidate: Sequence[int],
        stable: Sequence[int],
        places: Sequence[float],
        effective_counts: tuple[int, int] | None = None,
    ) -> None:
        """Add an interval: the requests of each version per time bucket, shortest first.

        places: of the buckets, as `log_midpoints` returns them. Call this for intervals without
        requests, too: they count as time. effective_counts: the number of independent times of each
        version, at least one; None: all are independent.
        """
        candidate_buckets, stable_buckets = _buckets(candidate), _buckets(stable)
        factors: list[float] = []
        far: list[float] = []
        if candidate_buckets and stable_buckets and self._knows_spread:
            # The seed makes the order the same in a process that continues the test.
            order = random.Random(self._moments)  # noqa: S311
            candidate_sample = order.sample(
                candidate_buckets, min(len(candidate_buckets), _MAX_CANDIDATE_TIMES)
            )
            stable_sample = order.sample(
                stable_buckets, min(len(stable_buckets), _MAX_STABLE_TIMES)
            )
            times = self._standardised(
                [places[bucket] for bucket in candidate_sample + stable_sample], places
            )
            fair = _log_gain(times, len(candidate_sample), self._tolerated)
            gains = {
                shift: _log_gain(times, len(candidate_sample), self._tolerated + shift)
                for shift in {*_FAR, _WANDERS, *(shift for shift, _ in _SHIFTS)}
            }
            factors = [math.exp(gains[shift] - fair) for shift, _ in _SHIFTS]
            far = [math.exp(gains[shift] - gains[_WANDERS]) for shift in _FAR]
            self._wealth.settle(factors)
        self._advance(factors, far)
        self._update_drift(candidate, stable, places, effective_counts)
        self._update_spread(stable, places)

    def min_difference(self, places: Sequence[float]) -> float:
        """Return the smallest log difference that is bet on; infinite without a spread."""
        if not self._knows_spread:
            return math.inf
        return (self._tolerated + _SHIFTS[0][0]) * math.sqrt(self._variance(places))

    @property
    def _knows_spread(self) -> bool:
        """Whether stable's spread is known."""
        return self._spread[0] >= _MIN_FREEDOM

    def _variance(self, places: Sequence[float]) -> float:
        """The variance of stable's times, including that within a bucket."""
        width = (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else 1.0
        return self._spread[1] / self._spread[0] + width * width / 12

    def _standardised(self, times: Sequence[float], places: Sequence[float]) -> list[float]:
        """The times in standard deviations from their median, clipped."""
        spread = math.sqrt(self._variance(places))
        middle = sorted(times)[len(times) // 2]
        return [
            max(-_MAX_DEVIATION, min(_MAX_DEVIATION, (time - middle) / spread)) for time in times
        ]

    def _advance(self, factors: Sequence[float], far: Sequence[float]) -> None:
        """Pass an interval's betting factors on; empty without a bet."""
        self._stretches.update(factors)
        self._far.update(far)
        self._suspicion.update(factors)

    def _update_drift(
        self,
        candidate: Sequence[int],
        stable: Sequence[int],
        places: Sequence[float],
        effective_counts: tuple[int, int] | None,
    ) -> None:
        if not self._knows_spread:
            return
        variance = self._variance(places)
        stable_buckets = _buckets(stable)
        if not stable_buckets:
            self._phases.update(None, None, variance)
            return
        middle, furthest = (
            places[stable_buckets[len(stable_buckets) // 2]],
            _MAX_DEVIATION * math.sqrt(variance),
        )
        near = [max(middle - furthest, min(middle + furthest, place)) for place in places]
        max_counts = effective_counts or (sum(candidate), sum(stable))
        self._phases.update(
            _capped(mean_of(candidate, near), max_counts[0]),
            _capped(mean_of(stable, near), max_counts[1]),
            variance,
        )

    def _update_spread(self, stable: Sequence[int], places: Sequence[float]) -> None:
        """Update stable's spread within intervals."""
        self._moments += 1
        if (mean_and_count := mean_of(stable, places)) is None:
            return
        mean, total = mean_and_count
        max_square = _MAX_DEVIATION**2 * self._variance(places) if self._knows_spread else math.inf
        squares = (
            n * min(max_square, (place - mean) ** 2)
            for n, place in zip(stable, places, strict=True)
        )
        decay = max(0.0, 1 - (total - 1) / _MEMORY_TIMES)
        freedom, sum_of_squares = self._spread
        self._spread = [decay * freedom + total - 1, decay * sum_of_squares + sum(squares)]


def log_midpoints(bounds: Sequence[float]) -> list[float]:
    """Return the logarithm of each bucket's middle, including the bucket beyond the last bound."""
    if not bounds:
        return [0.0]
    edges = [math.log(max(bound, 1e-9)) for bound in bounds]
    steps = [high - low for low, high in pairwise(edges)] or [1.0]
    edges = [edges[0] - steps[0], *edges, edges[-1] + steps[-1]]
    return [(low + high) / 2 for low, high in pairwise(edges)]


def rebucket(
    first: tuple[Sequence[float], Sequence[int]], second: tuple[Sequence[float], Sequence[int]]
) -> tuple[list[float], list[int], list[int]]:
    """Return the common bounds and both counts between them: releases may differ in buckets."""
    bounds = sorted({*first[0]} & {*second[0]})
    return bounds, _merged(*first, bounds), _merged(*second, bounds)


def _merged(bounds: Sequence[float], counts: Sequence[int], shared: Sequence[float]) -> list[int]:
    merged = [0] * (len(shared) + 1)
    for bound, count in zip([*bounds, math.inf], counts, strict=True):
        merged[bisect_left(shared, bound)] += count
    return merged


def mean_of(counts: Sequence[int], places: Sequence[float]) -> Mean | None:
    """Return the mean logarithm of the times in these buckets and their number; None if empty."""
    if not (total := sum(counts)):
        return None
    return sum(n * place for n, place in zip(counts, places, strict=True)) / total, total


def _capped(mean: Mean | None, max_count: int) -> Mean | None:
    return None if mean is None else (mean[0], min(mean[1], max(1, max_count)))


def _buckets(counts: Sequence[int]) -> list[int]:
    return [bucket for bucket, count in enumerate(counts) for _ in range(count)]


def _log_gain(times: Sequence[float], candidate_count: int, shift: float) -> float:
    """Return the log gain of a bet on this shift; the candidate has the first `candidate_count`.

    It is the likelihood of their sum relative to the mean over all choices of as many times.
    """
    weights = [math.exp(shift * time) for time in times]
    return shift * sum(times[:candidate_count]) - math.log(_mean_product(weights, candidate_count))


def _mean_product(weights: Sequence[float], chosen: int) -> float:
    """Return the mean product of `chosen` weights over all ways to choose them."""
    means = [1.0] + [0.0] * chosen
    for seen, weight in enumerate(weights, start=1):
        for size in range(min(seen, chosen), 0, -1):
            part = size / seen
            means[size] = means[size] * (1 - part) + means[size - 1] * weight * part
    return means[chosen]
