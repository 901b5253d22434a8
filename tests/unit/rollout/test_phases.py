# SPDX-License-Identifier: Apache-2.0
"""Slow phases of a version's own: no evidence where they may be, and refuted where they are not."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from tritonctl.rollout.drift_model import DriftModel, DriftTest

SIZE = 0.4
LIMIT = 100 / 0.32  # of the test of first tokens, in a rollout


def wander(draw: random.Random, size: float, length: float) -> Iterator[float]:
    """What a version is slower by, in sd of times, moment by moment."""
    keep, now = math.exp(-1 / length), draw.gauss(0, size)
    while True:
        yield now
        now = keep * now + math.sqrt(1 - keep * keep) * draw.gauss(0, size)


def highest(
    seed: int,
    slower: float,
    *,
    size: float = 0.0,
    length: float = 30.0,
    shared: float = 0.0,
    moments: int = 240,
) -> float:
    """Of the evidence, with 2 requests of the candidate and 18 of stable in a moment.

    slower: in sd of times; size, length: of own phases; shared: size of those that hit both.
    """
    draw = random.Random(seed)  # noqa: S311 - a seeded experiment
    own, others, both = (wander(draw, each, length) for each in (size, size, shared))
    test, most = DriftModel(120.0), 0.0
    for _ in range(moments):
        common = next(both)
        candidate = slower + next(own) + common + draw.gauss(0, 1 / math.sqrt(2))
        stable = next(others) + common + draw.gauss(0, 1 / math.sqrt(18))
        test.update((candidate, 2), (stable, 18), 1.0)
        most = max(most, test.evidence)
    return most


@pytest.mark.parametrize("length", [1.0, 120.0])
@pytest.mark.parametrize("before", [[], [0.3, 0.5], [2.0]])
def test_each_bet_is_fair(before: list[float], length: float) -> None:
    """Of equal versions with phases, whatever was seen before: the mean over what may come next."""
    keep, whole, noise = math.exp(-1 / length), 2 * SIZE**2, 1.0
    test, mean, variance = DriftTest(length, SIZE), 0.0, whole
    for difference in before:
        test.update((difference, 2), (0.0, 2), 1.0)
        gain = variance / (variance + noise)
        mean, variance = keep * (mean + gain * (difference - mean)), variance * (1 - gain)
        variance = keep * keep * variance + (1 - keep * keep) * whole
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    found = 0.0
    for node, weight in zip(nodes, weights, strict=True):
        after = copy.deepcopy(test)
        difference = mean + math.sqrt(variance + noise) * float(node)
        after.update((difference, 2), (0.0, 2), 1.0)
        found += float(weight) / math.sqrt(2 * math.pi) * after.evidence
    test.update(None, (0.0, 2), 1.0)
    assert found == pytest.approx(test.evidence, rel=1e-3)


@pytest.mark.parametrize("length", [1.0, 5.0, 30.0, 120.0])
def test_phases_of_its_own_are_no_evidence(length: float) -> None:
    """Of the size that is allowed for, however long."""
    assert max(highest(seed, 0.0, size=SIZE, length=length) for seed in range(10)) < LIMIT


def test_a_stable_that_does_not_wander_has_no_phases() -> None:
    """So a difference of half a standard deviation is the candidate's; beside phases it is not."""
    assert min(highest(seed, 0.6, moments=400) for seed in range(5)) > LIMIT
    assert max(highest(seed, 0.6, size=SIZE) for seed in range(5)) < LIMIT


def test_what_wanders_for_both() -> None:
    """Nobody knows whose it is, so small differences take longer; large ones are found."""
    assert min(highest(seed, 2.3, shared=1.0) for seed in range(5)) > LIMIT


def test_moments_without_requests() -> None:
    """Time passes; nothing is bet."""
    test = DriftModel(120.0)
    for moment in (None, (0.0, 5)):
        test.update(None, moment, 1.0)
        test.update(moment, None, 1.0)
    assert test.evidence == pytest.approx(1, rel=0.05)
