# SPDX-License-Identifier: Apache-2.0
"""Bets against "no worse": fair where it is true, won where it is not."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tritonctl.rollout.latency_test import LatencyTest
from tritonctl.rollout.sequential import (
    AbsoluteFailureTest,
    DivergenceTest,
    FailureTest,
    GrowthTest,
    Wealth,
    combine_evidence,
    count_inversions,
    inversion_probability,
)


@pytest.mark.parametrize(("requests", "others", "failures"), [(1, 19, 2), (5, 5, 3), (99, 1, 4)])
def test_a_moments_failures_are_a_fair_bet(requests: int, others: int, failures: int) -> None:
    """Of all ways in which as many requests may fail, the mean wealth is what it was."""
    mean = 0.0
    for failed in range(max(0, failures - others), min(failures, requests) + 1):
        test = FailureTest()
        test.update((failed, requests), (failures - failed, others))
        ways = math.comb(requests, failed) * math.comb(others, failures - failed)
        mean += test.evidence * ways / math.comb(requests + others, failures)
    assert mean == pytest.approx(1)


def test_the_odd_answer_of_three_is_a_fair_bet() -> None:
    """One of three answers differs: the candidate's in a third of the cases, if all are alike."""
    wealth = []
    for noise, candidate in ((0.0, 1.0), (1.0, 0.5), (1.0, 0.5)):  # whose it is
        test = DivergenceTest(tolerated=0)
        test.update(noise, candidate)
        wealth.append(test.evidence)
    assert sum(wealth) / 3 == pytest.approx(1)


def test_a_failure_rate_as_tolerated_is_a_fair_bet() -> None:
    """One in a hundred, where as many are no fault."""
    fails, passes = AbsoluteFailureTest(), AbsoluteFailureTest()
    fails.update(1, 1, 0.01)
    passes.update(0, 1, 0.01)
    assert 0.01 * fails.evidence + 0.99 * passes.evidence == pytest.approx(1)


def test_inversions_of_random_orders() -> None:
    """The chance of few inversions, counted."""
    orders = [count_inversions(order) for order in itertools.permutations(range(6))]
    for most in range(16):
        share = sum(found <= most for found in orders) / len(orders)
        assert inversion_probability(6, most) == pytest.approx(share)
    assert count_inversions([1, 1]) == 1


@pytest.mark.parametrize("runs", [40, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_alarms_where_nothing_is_wrong(runs: int) -> None:
    """Looked at after each bet, evidence of 20 comes up in at most one of 20 runs."""
    draw = random.Random(21)  # noqa: S311 - a seeded experiment
    alarms = 0
    for _ in range(runs):
        failures, slower = FailureTest(), LatencyTest(0)
        highest = 0.0
        for _ in range(120):
            share, total = draw.choice([0.05, 0.5]), draw.randint(10, 20)
            mine = sum(draw.random() < share for _ in range(total))
            rate = draw.choice([0.0, 0.01, 0.3])  # bursts that hit whom they meet
            failed = [sum(draw.random() < rate for _ in range(n)) for n in (mine, total - mine)]
            failures.update((failed[0], mine), (failed[1], total - mine))
            times = [[0] * 12, [0] * 12]
            for request in range(total):
                times[request >= mine][min(11, int(draw.expovariate(0.3)))] += 1
            slower.update(times[0], times[1], range(12))
            highest = max(highest, (failures.evidence + slower.evidence) / 2)
        alarms += highest >= 20
    assert alarms <= runs / 20


@pytest.mark.parametrize("every", [5, 50])
def test_failures_of_the_candidate_alone(every: int) -> None:
    """One request a second of twenty: the third failure is evidence enough."""
    test = FailureTest()
    for second in range(1, 3 * every + 1):
        assert test.evidence < 500, second
        test.update((int(second % every == 0), 1), (0, 19))
    assert test.evidence >= 500


def test_one_burst_is_not_enough() -> None:
    """Whatever fails in one moment is one bet."""
    test = FailureTest()
    test.update((30, 30), (0, 570))
    assert 1 < test.evidence < 20


def test_a_fault_that_begins_late() -> None:
    """Two healthy hours with failures of both do not keep it from being seen."""
    test = FailureTest()
    for second in range(7200):
        test.update((0, 5), (int(second % 60 == 0), 5))
    assert test.evidence < 1
    for _ in range(20):
        test.update((1, 5), (0, 5))
    assert test.evidence > 100


def test_answers_that_all_differ() -> None:
    """Six questions are enough; noise alike to both never is."""
    wrong, noisy = DivergenceTest(), DivergenceTest()
    for _ in range(6):
        wrong.update(0, 1)
    for question in range(300):
        noisy.update(*[(0, 1), (1, 0.5), (1, 0.5)][question % 3])
    assert wrong.evidence > 100
    assert noisy.evidence < 2


def test_a_tolerated_divergence() -> None:
    """One answer in fifty may differ of itself, where as many are tolerated."""
    test = DivergenceTest(tolerated=0.02)
    for question in range(1000):
        test.update(0, int(question % 50 == 0))
    assert test.evidence < 2


def test_growth_of_memory() -> None:
    """A leak is seen within 45 seconds; noise, a step and a plateau are not."""
    draw = random.Random(5)  # noqa: S311 - a seeded experiment
    leak, noise, step, plateau = (GrowthTest() for _ in range(4))
    for second in range(45):
        wobble = draw.gauss(0, 0.5)
        leak.update(1000 + 3 * second + wobble)
    for second in range(600):
        wobble = draw.gauss(0, 0.5)
        noise.update(1000 + wobble)
        step.update(1000 + 200 * (second > 100) + wobble)
        plateau.update(1000 * (1.01 - 0.01 * math.exp(-second / 60)))
    assert leak.evidence > 3500
    assert max(test.evidence for test in (noise, step, plateau)) <= 0.25


def test_growth_that_is_small_in_itself_is_none() -> None:
    """As that of servers that get their first users, whatever share of theirs it is."""
    first_users, leak = GrowthTest(min_growth=50e6), GrowthTest(min_growth=50e6)
    for second in range(60):
        first_users.update(350e6 + 1.5e6 * second)
        leak.update(350e6 + 4e6 * second)
    assert first_users.evidence <= 0.25
    assert leak.evidence > 3500


def test_a_wealth_is_not_lost_to_overflow() -> None:
    """Numbers stay finite, whatever the evidence."""
    wealth = Wealth([1.0])
    for _ in range(2000):
        wealth.settle([2.0])
    assert 1e99 < wealth.evidence < math.inf


def test_several_tests_together() -> None:
    """The weighted sum counts; a test that stands alone rejects only by itself."""
    weights = {"failures": 0.5, "ttft": 0.3, "memory": 0.2}
    evidence = {"failures": 150.0, "ttft": 100.0, "memory": 1.0}
    verdict = combine_evidence(evidence, weights, 0.01, standalone=("memory",))
    assert (verdict.total, verdict.limit, verdict.is_rejected) == (105, 100, True)
    evidence = {"failures": 1.0, "ttft": 1.0, "memory": 499.0}
    assert not combine_evidence(evidence, weights, 0.01, standalone=("memory",)).is_rejected
    assert combine_evidence(
        {**evidence, "memory": 500.0}, weights, 0.01, standalone=("memory",)
    ).is_rejected
