# SPDX-License-Identifier: Apache-2.0
"""Tokens a second: one figure a moment, as good as its requests; long pauses count."""

from __future__ import annotations

import math
import random

import pytest

from tritonctl.rollout.token_rate_test import TokenInterval, TokenRateTest

LIMIT = 100 / 0.03  # of this test, in a rollout


def moment(
    draw: random.Random, streams: int, slower: float = 1.0, pauses: float = 0.0
) -> TokenInterval:
    """Streams of 20 tokens, each with a pace of its own about 10 ms; some tokens take 200 ms."""
    seconds = 0.0
    for _ in range(streams):
        pace = slower * 0.01 * draw.lognormvariate(0, 0.1)
        seconds += sum(0.2 if draw.random() < pauses else pace for _ in range(20))
    return TokenInterval(20 * streams, seconds, streams)


def highest(
    seed: int,
    slower: float = 1.0,
    pauses: float = 0.0,
    usual: float = 0.0,
    allowed: float = 120.0,
) -> float:
    """Of the evidence in five minutes, 2 requests of 20 a second are the candidate's."""
    draw = random.Random(seed)  # noqa: S311 - a seeded experiment
    test, most = TokenRateTest(allowed), 0.0
    for second in range(300):
        candidate = moment(draw, 2, slower, pauses) if second >= 20 else None
        test.update(candidate, moment(draw, 18, pauses=usual))
        most = max(most, test.evidence)
    return most


def test_equal_versions() -> None:
    """Also where both have pauses, that few streams mostly miss and sometimes have."""
    assert max(highest(seed) for seed in range(8)) < LIMIT
    assert max(highest(seed, allowed=0.0) for seed in range(8)) < LIMIT
    assert max(highest(seed, pauses=0.01, usual=0.01) for seed in range(8)) < LIMIT


@pytest.mark.parametrize(("slower", "pauses"), [(1.3, 0.0), (1.0, 0.05)])
def test_fewer_tokens(slower: float, pauses: float) -> None:
    """All of them later by a third, or one in twenty by much."""
    assert min(highest(seed, slower, pauses) for seed in range(3)) > LIMIT


@pytest.mark.parametrize("learnt", [9, 12, 30])
def test_a_disturbed_candidate_is_excused(learnt: int) -> None:
    """For as long as is allowed, after any time in which nothing could be bet; no longer.

    Four times slower is decided within a second or two: all of that rests on the credit.
    """
    for seed in range(4):
        draw = random.Random(seed)  # noqa: S311 - a seeded experiment
        test, crossed = TokenRateTest(15.0), None
        for second in range(learnt + 30):
            test.update(moment(draw, 5, slower=4.0) if second >= learnt else None, moment(draw, 15))
            if crossed is None and test.evidence >= LIMIT:
                crossed = second - learnt
        assert crossed is not None
        assert 15 <= crossed <= 18


def test_moments_without_tokens() -> None:
    """Nothing is bet on one; a figure is of at least one request."""
    test, none = TokenRateTest(120.0), TokenInterval(0, 0.0, 3)
    for _ in range(20):
        test.update(TokenInterval(10, 9.0, 1), TokenInterval(10, 0.1, 2))
        test.update(None, none)
    before = test.evidence
    test.update(TokenInterval(10, 9.0, 1), none)
    assert test.evidence == pytest.approx(before, rel=0.2)
    assert TokenInterval(10, 0.1, 0).mean == (math.log(0.01), 1)
