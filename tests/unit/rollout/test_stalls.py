# SPDX-License-Identifier: Apache-2.0
"""Requests that stand still: three of a candidate's are evidence, those of both are none."""

from __future__ import annotations

import math
import random

import pytest

from tritonctl.rollout.stalls import StallTest

MOST = 0.0002
ENOUGH = 100 / 0.13


def played(
    seconds: int, rate: int, share: float, stalls: tuple[float, float], seed: int = 0
) -> tuple[float, int, int]:
    """The highest evidence; the candidate's requests until it was enough, and all of them."""
    draw = random.Random(seed)  # noqa: S311 - a seeded experiment
    test, highest, until, requests = StallTest(), 0.0, 0, 0
    for _ in range(seconds):
        mine = sum(draw.random() < share for _ in range(rate))
        requests += mine
        groups = [
            (sum(draw.random() < chance for _ in range(n)), n)
            for chance, n in zip(stalls, (mine, rate - mine), strict=True)
        ]
        test.update(groups[0], groups[1], MOST)
        highest = max(highest, test.evidence)
        if highest >= ENOUGH and not until:
            until = requests
    return highest, until, requests


@pytest.mark.parametrize("share", [0.03, 0.3, 1.0])
def test_a_window_is_a_fair_bet(share: float) -> None:
    """Of all that may happen in one, the mean wealth is what it was, or less."""
    requests, others = round(100 * share), round(100 * (1 - share))
    mean, chance = 0.0, MOST
    for mine in range(3):
        for theirs in range(3):
            test = StallTest()
            for moment in range(10):  # the first window says what is usual
                stalled = (mine, theirs) if moment == 9 else (0, 0)
                test.update((stalled[0], requests), (stalled[1], others), MOST)
            before = StallTest()
            for _ in range(5):
                before.update((0, requests), (0, others), MOST)
            weight = math.prod(
                math.comb(5 * n, k) * chance**k * (1 - chance) ** (5 * n - k)
                for n, k in ((requests, mine), (others, theirs))
            )
            mean += weight * test.evidence / before.evidence
    assert mean <= 1.001


@pytest.mark.parametrize(("share", "most"), [(0.02, 1200), (0.5, 2200), (1.0, 2200)])
def test_one_in_two_hundred(share: float, most: int) -> None:
    """Found within some such requests, at any share of them."""
    found = [played(4 * int(most / 20 / share), 20, share, (0.005, 0), seed) for seed in range(8)]
    untils = [until or whole for _, until, whole in found]
    assert sorted(untils)[6] <= most


def test_what_holds_up_both() -> None:
    """A slow service, or a machine that stands still for seconds: nobody's fault."""
    assert played(600, 20, 0.05, (0.01, 0.01))[0] < 100
    test = StallTest()
    for second in range(60):
        pause = second % 20 == 10
        test.update((1 if pause else 0, 1), (19 if pause else 0, 19), MOST)
    assert test.evidence < 3


def test_one_pause_is_no_evidence_enough() -> None:
    """All requests of seven seconds stand still, once: one bet or two."""
    test = StallTest()
    for second in range(120):
        test.update((20, 20) if 50 <= second < 57 else (0, 20), (0, 0), MOST)
    assert test.evidence < ENOUGH


def test_no_requests_no_bet() -> None:
    """Nothing is known of a candidate without any."""
    test = StallTest()
    for _ in range(30):
        test.update((0, 0), (1, 20), MOST)
    assert test.evidence == pytest.approx(1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("share", [0.01, 0.05, 0.25, 1.0])
def test_alarms_where_nothing_is_wrong(share: float) -> None:
    """As many as tolerated stall: evidence of 20 comes up in at most one of 20 runs."""
    alarms = sum(played(600, 20, share, (MOST, MOST), seed)[0] >= 20 for seed in range(600))
    assert alarms <= 600 / 20 * 1.3
