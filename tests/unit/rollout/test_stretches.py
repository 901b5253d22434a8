# SPDX-License-Identifier: Apache-2.0
"""Stretches of time that are excused: what is left without them, and what is slow just now."""

from __future__ import annotations

import itertools
import random

import pytest

from tritonctl.rollout.sequential import AT_ONCE, LATER
from tritonctl.rollout.stretches import Stretches, Suspicion

BLOCK = 5  # moments


def least(factors: list[float], credit: int) -> float:
    """Of all ways to excuse blocks, each tried."""
    blocks = [factors[at : at + BLOCK] for at in range(0, len(factors), BLOCK)]
    found = []
    for excused in itertools.product([False, True], repeat=len(blocks)):
        left, wealth, kept = float(credit), AT_ONCE, 1 - AT_ONCE
        for block, out in zip(blocks, excused, strict=True):
            for factor in block:
                more = kept * LATER
                kept -= more
                wealth = (wealth + more) * (1 if out else factor)
            left = left - 1 if out else min(credit, left + 0.5)
            if left < 0:
                break
        else:
            found.append(wealth + kept)
    return min(found)


@pytest.mark.parametrize("credit", [0, 1, 3])
@pytest.mark.parametrize("moments", [3, 5, 22, 40])
def test_the_least_of_all_ways(credit: int, moments: int) -> None:
    """As if each had been tried; also amid a block, which any way with credit may excuse."""
    draw = random.Random(credit + moments)  # noqa: S311 - a seeded experiment
    factors = [draw.choice([0.5, 0.9, 1.1, 3.0]) for _ in range(moments)]
    test = Stretches((1.0,), credit * BLOCK)
    for factor in factors:
        test.update([factor])
    assert test.evidence == pytest.approx(least(factors, credit))


def fed(test: Stretches, stretches: list[tuple[float, int]]) -> float:
    """The evidence after stretches of (factor, moments)."""
    for factor, moments in stretches:
        for _ in range(moments):
            test.update([factor])
    return test.evidence


def test_stretches_that_credit_pays_for() -> None:
    """However large they are, from the first moment on, and again after twice as long."""
    assert fed(Stretches((1.0,), 30), [(1e6, 30)]) <= 1
    assert fed(Stretches((1.0,), 30), [(1e6, 30), (0.99, 60), (1e6, 30)]) <= 1
    assert fed(Stretches((1.0,), 30), [(0.99, 7), (1e6, 23), (0.99, 60), (1e6, 25)]) <= 1
    assert fed(Stretches((1.0,), 30), [(1e6, 30), (0.99, 5), (1e6, 30)]) > 1e6


def test_what_stays_slow_is_found() -> None:
    """As soon as the credit is spent; without any, at once."""
    assert fed(Stretches((1.0,), 30), [(4.0, 30)]) <= 1
    assert fed(Stretches((1.0,), 30), [(4.0, 36)]) > 300
    assert fed(Stretches((1.0,), 0), [(4.0, 6)]) > 300
    assert fed(Stretches((0.5, 0.5), 30), []) == pytest.approx(1)


@pytest.mark.parametrize("every", [2, 8, 30])
def test_moments_without_a_bet_are_time(every: int) -> None:
    """Credit is a time, however few requests there are in it."""
    test, moments = Stretches((1.0,), 60), 0
    while test.evidence < 300 and moments < 300:
        test.update([] if moments % every else [300.0])
        moments += 1
    assert 60 - every <= moments <= 60 + 3 * every + BLOCK


def test_slow_just_now() -> None:
    """Begins and ends soon; only what has no break lasts."""
    test = Suspicion((1.0,), 10)
    assert (test.moments, test.lasts) == (0, False)
    for _ in range(8):
        test.update([2.0])
    assert test.moments == 4
    test.update([])
    assert test.moments == 5
    for _ in range(60):
        test.update([2.0])
    assert test.lasts
    for _ in range(4):
        test.update([0.5])
    assert (test.moments, test.lasts) == (0, False)
