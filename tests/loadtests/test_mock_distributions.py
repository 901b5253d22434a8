# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint's draws, against the distributions they are named after."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from loadlib.mock_behaviour import Batching, Behaviour, Stall
from loadlib.mock_distributions import MockDistribution

DRAWS = 20_000
# Kolmogorov and Smirnov's limit that a right sample exceeds with probability 0.001.
KS_LIMIT = 1.95 / math.sqrt(DRAWS)


def draws(text: str) -> list[float]:
    """Sorted values of a seeded generator."""
    distribution = MockDistribution.parse(text)
    generator = random.Random(7)  # noqa: S311
    return sorted(distribution.draw(generator) for _ in range(DRAWS))


def behaviour(**fields: object) -> Behaviour:
    """One with these distributions; the others as the program's defaults."""
    texts = {"ttft": "20", "itl": "5", "tokens": "16", "latency": "10"}
    given = {name: value for name, value in fields.items() if not isinstance(value, str)}
    texts |= {name: value for name, value in fields.items() if isinstance(value, str)}
    parsed = {name: MockDistribution.parse(text) for name, text in texts.items()}
    return Behaviour(**parsed, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "cumulative"),
    [
        ("exponential:20", lambda x: 1 - math.exp(-x / 20)),
        ("uniform:10:30", lambda x: (x - 10) / 20),
        ("lognormal:20:0.5", lambda x: statistics.NormalDist().cdf(math.log(x / 20) / 0.5)),
    ],
)
def test_draws_follow_their_distribution(text: str, cumulative: Callable[[float], float]) -> None:
    """The largest distance between sample and theory is what chance allows."""
    distance = max(abs(cumulative(x) - (i + 0.5) / DRAWS) for i, x in enumerate(draws(text)))
    assert distance < KS_LIMIT


@pytest.mark.parametrize("text", ["5", "constant:5"])
def test_constant(text: str) -> None:
    """Written with or without its name."""
    assert set(draws(text)) == {5.0}


def test_bimodal() -> None:
    """Two values, the rare one with its probability."""
    values = draws("bimodal:10:100:0.05")
    assert set(values) == {10.0, 100.0}
    assert values.count(100.0) / DRAWS == pytest.approx(0.05, abs=0.006)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaussian:1:2", "expected a number, exponential:MEAN"),
        ("exponential", "invalid distribution"),
        ("exponential:1:2", "invalid distribution"),
        ("constant:x", "invalid distribution"),
        ("-3", "0 or more"),
        ("nan", "0 or more"),
        ("bimodal:1:2:3", "a probability"),
        ("lognormal:0:1", "median"),
    ],
)
def test_what_is_no_distribution_is_refused(text: str, message: str) -> None:
    """With what was expected instead."""
    with pytest.raises(ValueError, match=message):
        MockDistribution.parse(text)


@pytest.mark.parametrize("text", ["5", "5:x", "-1:2", "1:-2"])
def test_what_is_no_stall_is_refused(text: str) -> None:
    """Two numbers, none negative."""
    with pytest.raises(ValueError, match="stall"):
        Stall.parse(text)


@pytest.mark.parametrize("text", ["5", "5:1:x", "-1:2:3", "1:2:0"])
def test_what_is_no_batching_is_refused(text: str) -> None:
    """Two times and a size."""
    with pytest.raises(ValueError, match=text):
        Batching.parse(text)


def test_a_request_s_draws_depend_on_seed_and_number_alone() -> None:
    """In whatever order they are asked for."""
    one, other = (behaviour(ttft="exponential:20", itl="exponential:5", seed=3) for _ in "ab")
    forwards = [one.draw_stream(i, None, all_at_once=False) for i in range(50)]
    backwards = [other.draw_stream(i, None, all_at_once=False) for i in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert (
        behaviour(ttft="exponential:20", seed=4).draw_stream(0, None, all_at_once=False)
        != forwards[0]
    )


def test_draws_of_neighbouring_requests_are_independent() -> None:
    """Each request has its own seed; together they still follow the distribution."""
    made = behaviour(ttft="exponential:20", seed=1)
    values = [made.draw_stream(i, 1, all_at_once=False).seconds for i in range(DRAWS)]
    ordered = sorted(values)
    distance = max(abs(1 - math.exp(-x / 0.020) - (i + 0.5) / DRAWS) for i, x in enumerate(ordered))
    assert distance < KS_LIMIT
    assert abs(statistics.correlation(values[1:], values[:-1])) < 0.03


def test_steps_of_a_stream() -> None:
    """The first after TTFT, the others an ITL apart; max_tokens cuts; whole: all at its end."""
    made = behaviour()
    assert made.draw_stream(0, None, all_at_once=False).steps == (0.020,) + (0.005,) * 15
    assert made.draw_stream(0, 4, all_at_once=False).tokens == (1, 1, 1, 1)
    whole = made.draw_stream(0, 4, all_at_once=True)
    assert whole.tokens == (4,)
    assert whole.seconds == pytest.approx(0.035)


def test_several_tokens_per_response() -> None:
    """Every token is in exactly one response."""
    made = behaviour(tokens="10", tokens_per_response="4")
    assert made.draw_stream(0, None, all_at_once=False).tokens == (4, 4, 2)


def test_the_share_of_errors_leaves_the_latencies_as_they_are() -> None:
    """About the share fails, and nothing else changes."""
    calm, failing = (behaviour(latency="exponential:9", error_share=s) for s in (0.0, 0.2))
    drawn = [failing.draw_unary(i) for i in range(5000)]
    assert sum(d.error for d in drawn) / 5000 == pytest.approx(0.2, abs=0.03)
    assert [d.steps for d in drawn] == [calm.draw_unary(i).steps for i in range(5000)]
