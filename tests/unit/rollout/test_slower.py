# SPDX-License-Identifier: Apache-2.0
"""Whose are a moment's long times: fair where the versions are alike, won where they are not."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from tritonctl.rollout.latency_test import LatencyTest, log_midpoints, rebucket

PLACES = [0.0, 1.0, 2.0, 3.0]
USUAL = [5, 8, 5, 1]
LIMIT = 100 / 0.32  # of the test of first tokens, in a rollout


def learned(
    places: Sequence[float] = PLACES, tolerated: float = 0.005, slow_seconds: float = 120.0
) -> LatencyTest:
    """A test that knows how much times vary."""
    test = LatencyTest(tolerated, slow_seconds)
    test.learn([*USUAL, *[0] * (len(places) - len(USUAL))], places)
    return test


@pytest.mark.parametrize("tolerated", [0, 0.1])
@pytest.mark.parametrize("times", [(0, 1, 2, 3, 4, 5), (0, 0, 1, 3, 3, 4), (1, 1, 1, 1, 1, 2)])
def test_times_are_a_fair_bet(times: tuple[int, ...], tolerated: float) -> None:
    """Of all orders of the same times, the last two of which are the candidate's."""
    wealth = []
    for order in itertools.permutations(times):
        test = learned(range(6), tolerated)
        candidate, stable = order[4:], order[:4]
        counts = [[group.count(bucket) for bucket in range(6)] for group in (candidate, stable)]
        test.update(counts[0], counts[1], range(6))
        wealth.append(test.evidence_without_slow_phases)
        assert test.evidence <= test.evidence_without_slow_phases
    mean = sum(wealth) / len(wealth)
    assert mean <= 1 + 1e-9
    assert mean == pytest.approx(1) or tolerated
    assert min(wealth) < max(wealth)


def test_places_of_buckets() -> None:
    """Logarithms of their middles; the first and the last are as wide as their neighbours."""
    found = log_midpoints([0.1, 0.2, 0.4, 0.8])
    assert [math.exp(place) for place in found] == pytest.approx(
        [0.1 / 2**0.5 * 2**place for place in range(5)]
    )
    assert len(log_midpoints([1.0])) == 2


@pytest.mark.parametrize(("slow_seconds", "found"), [(0, 8), (30, 40), (120, 130)])
def test_twice_the_time(slow_seconds: float, found: int) -> None:
    """A few requests that each take longer than most of stable's: once no phase is that long."""
    test = learned(slow_seconds=slow_seconds)
    moments = 0
    while test.evidence < LIMIT and moments < 200:
        test.update([0, 0, 0, 1], USUAL, PLACES)
        moments += 1
    assert slow_seconds < moments <= found
    assert test.slow_for >= moments - 5
    assert test.evidence_without_slow_phases >= test.evidence


def test_a_phase_of_its_own() -> None:
    """Three times as long for two minutes, and as usual before and after: held, no evidence."""
    draw = random.Random(5)  # noqa: S311 - a seeded experiment
    bounds = [0.05 * 1.1**step for step in range(40)]
    places, test, slow = log_midpoints(bounds), LatencyTest(slow_seconds=120), []
    for second in range(300):
        groups = [[0] * 41, [0] * 41]
        for group, requests in zip(groups, (2, 18), strict=True):
            for _ in range(requests):
                took = draw.lognormvariate(math.log(0.1), 0.3)
                took *= 3 if group is groups[0] and 60 <= second < 180 else 1
                group[sum(took > bound for bound in bounds)] += 1
        test.update(groups[0], groups[1], places)
        assert test.evidence < 1.1
        slow += [second] if test.slow_for else []
    assert test.evidence_without_slow_phases > LIMIT
    assert {*range(65, 180)} <= {*slow} <= {*range(60, 270)}


def test_nothing_is_bet_before_the_spread_is_known() -> None:
    """Nor where stable has no requests, or the candidate none."""
    test = LatencyTest()
    test.update([0, 0, 0, 1], [1, 1, 1, 0], PLACES)
    assert test.evidence == 1
    test = learned()
    test.update([0, 0, 0, 1], [0, 0, 0, 0], PLACES)
    test.update([0, 0, 0, 0], USUAL, PLACES)
    assert test.evidence == 1


def test_faster_is_no_fault() -> None:
    """The wealth of the bet is lost, but for what is kept for later."""
    test = learned()
    for _ in range(60):
        test.update([1, 0, 0, 0], USUAL, PLACES)
    assert test.evidence < 1


def test_what_slows_both_is_no_evidence() -> None:
    """Every time is three times as long for two minutes, of both: as before."""
    draw = random.Random(4)  # noqa: S311 - a seeded experiment
    places = log_midpoints([0.05 * 1.25**step for step in range(16)])
    test, highest = LatencyTest(), 0.0
    for second in range(300):
        groups = [[0] * 17, [0] * 17]
        for group, requests in zip(groups, (2, 18), strict=True):
            for _ in range(requests):
                took = draw.lognormvariate(math.log(0.1), 0.3) * (3 if 60 <= second < 180 else 1)
                group[sum(took > 0.05 * 1.25**step for step in range(16))] += 1
        test.update(groups[0], groups[1], places)
        highest = max(highest, test.evidence)
    assert highest < 100


def test_releases_with_other_buckets() -> None:
    """What both can tell is compared; with no bound in common, nothing is."""
    fine = ([1, 1.25, 1.6, 2, 4], [1, 2, 3, 4, 5, 6])
    coarse = ([1, 2, 3, 4], [1, 9, 2, 3, 6])
    assert rebucket(fine, coarse) == ([1, 2, 4], [1, 9, 5, 6], [1, 9, 5, 6])
    assert rebucket(fine, fine) == (list(fine[0]), fine[1], fine[1])
    assert rebucket(fine, ([7.0], [1, 2])) == ([], [21], [3])
    test = learned()
    test.update([21], [3], log_midpoints([]))
    assert test.evidence <= test.evidence_without_slow_phases == 1
