# SPDX-License-Identifier: Apache-2.0
"""Stretches of time that are excused: what is left without them, and what is slow just now."""

from __future__ import annotations

import itertools
import random

import pytest

from tritonctl.rollout.sequential import INITIAL_STAKE, STAKE_RATE
from tritonctl.rollout.slow_spell_budget import SlowSpellBudget, SlowSpellDetector

BEGINNING = 4  # moments that a stretch costs beside those that it lasts


def least(factors: list[float | None], seconds: int) -> float:
    """Of all ways to excuse bets, each tried. None: a moment without one."""
    most = seconds + BEGINNING if seconds else 0
    found = []
    for excused in itertools.product([False, True], repeat=sum(map(bool, factors))):
        choices = iter(excused)
        left, wealth, kept, moments, before = (
            float(most),
            INITIAL_STAKE,
            1 - INITIAL_STAKE,
            0,
            False,
        )
        for factor in factors:
            moments += 1
            if factor is None:
                continue
            more = kept * STAKE_RATE
            kept -= more
            if next(choices):
                left -= moments if before else 1 + BEGINNING
                wealth, before = wealth + more, True
            else:
                left = min(most, left + min(moments, 1 + BEGINNING) / 2)
                wealth, before = (wealth + more) * factor, False
            if left < 0:
                break
            moments = 0
        else:
            found.append(wealth + kept)
    return min(found)


@pytest.mark.parametrize("seconds", [0, 2, 5])
@pytest.mark.parametrize("moments", [3, 12, 20])
def test_the_least_of_all_ways(seconds: int, moments: int) -> None:
    """As if each had been tried, with moments without a bet among the others."""
    draw = random.Random(seconds + moments)  # noqa: S311 - a seeded experiment
    chances = [0.5, 0.9, 1.1, 3.0, None] if moments < 20 else [0.5, 3.0, None, None]
    factors = [draw.choice(chances) for _ in range(moments)]
    test = SlowSpellBudget((1.0,), seconds)
    for factor in factors:
        test.update([] if factor is None else [factor])
    assert test.evidence == pytest.approx(least(factors, seconds))


def fed(test: SlowSpellBudget, stretches: list[tuple[float, int]]) -> float:
    """The evidence after stretches of (factor, moments)."""
    for factor, moments in stretches:
        for _ in range(moments):
            test.update([factor])
    return test.evidence


@pytest.mark.parametrize("before", range(12))
def test_stretches_that_credit_pays_for(before: int) -> None:
    """However large they are, whenever they begin, and again after a little more than twice as
    long."""
    calm = (0.99, before)
    assert fed(SlowSpellBudget((1.0,), 30), [calm, (1e6, 30)]) <= 1
    again = 2 * (30 + BEGINNING)
    assert fed(SlowSpellBudget((1.0,), 30), [calm, (1e6, 30), (0.99, again), (1e6, 30)]) <= 1
    assert fed(SlowSpellBudget((1.0,), 30), [calm, (1e6, 12), (0.99, 20), (1e6, 20)]) <= 1
    assert fed(SlowSpellBudget((1.0,), 30), [calm, (1e6, 30), (0.99, 5), (1e6, 30)]) > 1e6


@pytest.mark.parametrize("before", [1, 4, 16, 100])
def test_time_without_bets_before_a_stretch_costs_nothing(before: int) -> None:
    """As while it is not known yet how much times vary, or while nobody asks."""
    test = SlowSpellBudget((1.0,), 15)
    silence: list[list[float]] = [[]] * before
    for factors in [*silence, *[[1e6]] * 15]:
        test.update(factors)
    assert test.evidence <= 1
    for _ in range(60):
        test.update([0.99])
    for factors in [*silence, *[[1e6]] * 15]:
        test.update(factors)
    assert test.evidence <= 1


def test_what_stays_slow_is_found() -> None:
    """As soon as the credit is spent; without any, at once."""
    assert fed(SlowSpellBudget((1.0,), 30), [(4.0, 30)]) <= 1
    assert fed(SlowSpellBudget((1.0,), 30), [(4.0, 30 + BEGINNING + 6)]) > 300
    assert fed(SlowSpellBudget((1.0,), 0), [(4.0, 6)]) > 300
    assert fed(SlowSpellBudget((0.5, 0.5), 30), []) == pytest.approx(1)


@pytest.mark.parametrize("every", [2, 8, 30])
def test_moments_without_a_bet_are_time(every: int) -> None:
    """Credit is a time, however few requests there are in it."""
    test, moments = SlowSpellBudget((1.0,), 60), 0
    while test.evidence < 300 and moments < 300:
        test.update([] if moments % every else [300.0])
        moments += 1
    assert 60 - every <= moments <= 60 + 3 * every + BEGINNING


def test_slow_just_now() -> None:
    """Begins and ends soon; only what has no break lasts."""
    test = SlowSpellDetector((1.0,), 10)
    assert (test.slow_intervals, test.is_lasting) == (0, False)
    for _ in range(8):
        test.update([2.0])
    assert test.slow_intervals == 4
    test.update([])
    assert test.slow_intervals == 5
    for _ in range(60):
        test.update([2.0])
    assert test.is_lasting
    for _ in range(4):
        test.update([0.5])
    assert (test.slow_intervals, test.is_lasting) == (0, False)
