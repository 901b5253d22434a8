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

from tritonctl.rollout.sequential import Wealth

# How the stake is spread over how much longer the candidate takes, in standard deviations.
_SHIFTS = ((0.35, 0.4), (0.7, 0.35), (1.8, 0.25))
_FURTHEST = 3.0  # standard deviations from the middle: a time that is odder counts as that odd
_MOST_BETS, _MOST_BESIDE = 32, 96  # of the candidate's and stable's times of a moment
_LEAST = 10  # times of stable, before its spread is known


class Slower:
    """One bet each moment, on the sum of the candidate's times, given all of the moment's.

    `tolerated`: the chance of the candidate's time to be the longer one of two, beyond 1/2, that is
    no fault. Spread: of stable's times within moments so far.

    A slow phase of the candidate alone is one event, not as many as it has requests: by as much as
    the past shows requests to go together, each one's gain or loss counts less (`Clumping`).
    """

    KEPT = ("_wealth", "_clumping", "_spread")

    def __init__(self, tolerated: float = 0.005) -> None:
        self._tolerated = math.sqrt(2) * NormalDist().inv_cdf(0.5 + tolerated)
        self._wealth = Wealth([share for _, share in _SHIFTS])
        self._clumping = Clumping()
        self._spread = [0.0, 0.0]  # degrees of freedom, sum of squares

    @property
    def evidence(self) -> float:
        """An e-value against "no slower than stable"."""
        return self._wealth.evidence

    @property
    def clumping(self) -> float:
        """How many requests tell as much as one would alone, as last found."""
        return self._clumping.value

    def learn(self, stable: Sequence[int], places: Sequence[float]) -> None:
        """How much stable's times vary within a moment; of a moment that nothing is bet on."""
        total = sum(stable)
        if not total:
            return
        mean = sum(n * place for n, place in zip(stable, places, strict=True)) / total
        squares = (n * (place - mean) ** 2 for n, place in zip(stable, places, strict=True))
        self._spread = [self._spread[0] + total - 1, self._spread[1] + sum(squares)]

    def update(
        self, candidate: Sequence[int], stable: Sequence[int], places: Sequence[float]
    ) -> None:
        """How many requests of each group ended in each bucket of time, shortest first.

        places: of the buckets, as `places_of` gives them. Call it for moments without requests,
        too: they are time between those that have some.
        """
        requests, others = _buckets(candidate), _buckets(stable)
        if not others:
            requests = []
        # Any order will do; this one is the same in a process that goes on with the test.
        order = random.Random(self._clumping.moments)  # noqa: S311
        some = order.sample(requests, min(len(requests), _MOST_BETS))
        beside = order.sample(others, min(len(others), _MOST_BESIDE))
        power = 1 / self._clumping.of(len(some))
        if some and self._spread[0] >= _LEAST:
            times = self._standardised([places[bucket] for bucket in some + beside], places)
            fair = _gain(times, len(some), self._tolerated)
            self._wealth.settle(
                [
                    math.exp(power * (_gain(times, len(some), self._tolerated + shift) - fair))
                    for shift, _ in _SHIFTS
                ]
            )
        self._clumping.add(ranks(some, stable))
        self.learn(stable, places)

    def _standardised(self, times: Sequence[float], places: Sequence[float]) -> list[float]:
        """In standard deviations from their middle; within a bucket they vary, too."""
        width = (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else 1.0
        spread = math.sqrt(self._spread[1] / self._spread[0] + width * width / 12)
        middle = sorted(times)[len(times) // 2]
        return [max(-_FURTHEST, min(_FURTHEST, (time - middle) / spread)) for time in times]


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


class Clumping:
    """By how much sums of values over some time vary more than if each were by itself; 1 or more.

    Estimated from the past, over batches of 1 to 32 moments (the largest counts), and taken
    downwards by half its error: values that are independent have about 1. What clumps in time
    clumps more when there is more of it, so the excess is in proportion to the values of a moment.
    """

    KEPT = ("_excess", "moments", "_values", "_total", "_squares", "_open", "_sums")
    _SIZES = (1, 2, 4, 8, 16, 32)
    _LEAST_BATCHES, _CAUTION = 6, 0.5

    def __init__(self) -> None:
        self.value = 1.0
        self._excess = 0.0  # for each value of a moment
        self.moments = self._values = 0
        self._total = self._squares = 0.0
        self._open = [(0.0, 0)] * len(self._SIZES)  # sum and values of a batch under way
        self._sums = [[0.0] * 4 for _ in self._SIZES]  # batches, sum^2, sum * values, values^2

    def of(self, values: int) -> float:
        """For a moment of so many values, before they are known."""
        usual = self._values / self.moments if self.moments else 0.0
        self.value = 1 + self._excess * max(values, usual)
        return self.value

    def add(self, values: Sequence[float]) -> None:
        """A moment's."""
        self.moments += 1
        self._values += len(values)
        self._total += sum(values)
        self._squares += sum(value * value for value in values)
        for place, size in enumerate(self._SIZES):
            total, count = self._open[place]
            total, count = total + sum(values), count + len(values)
            self._open[place] = total, count
            if self.moments % size == 0:
                terms = (1.0, total * total, total * count, float(count * count))
                kept = self._sums[place]
                self._sums[place] = [old + new for old, new in zip(kept, terms, strict=True)]
                self._open[place] = 0.0, 0
        if values:
            self._excess = self._estimate()

    def _estimate(self) -> float:
        mean = self._total / self._values
        alone = self._squares - self._values * mean * mean
        if alone <= 0:
            return 0.0
        largest = 1.0
        for size, (batches, squares, products, counts) in zip(self._SIZES, self._sums, strict=True):
            if batches < self._LEAST_BATCHES:
                break
            together = squares - 2 * mean * products + mean * mean * counts
            part = batches * size / self.moments  # of the values that are in whole batches
            ratio = together / (alone * part)
            largest = max(largest, ratio * (1 - self._CAUTION * math.sqrt(2 / batches)))
        return (largest - 1) * self.moments / self._values


def ranks(requests: Sequence[int], stable: Sequence[int]) -> list[float]:
    """Of each request's bucket among stable's and those before it: 0 at the median, up to 1/2.

    stable: requests in each bucket, one or more. If all are drawn alike, each rank is as likely as
    any other whatever those before it are; equal ones share theirs.
    """
    pool, total = list(stable), sum(stable)
    found = []
    for bucket in requests:
        faster = sum(pool[:bucket]) + pool[bucket] / 2
        found.append(faster / total - 0.5)
        pool[bucket] += 1
        total += 1
    return found
