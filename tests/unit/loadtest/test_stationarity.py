# SPDX-License-Identifier: Apache-2.0
"""Warm-up is cut, tails are not; trends are seen, wandering queues are not taken for one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.loadtest.test_bootstrap import ar1
from tritonctl.loadtest.analysis.stationarity import (
    detect_trend,
    mser_cut,
    warm_up_length,
    will_exceed,
)

Floats = npt.NDArray[np.float64]


def noise(n: int, seed: int = 1) -> Floats:
    """Response times of about 20 ms."""
    return np.random.default_rng(seed).gamma(20, 1000, n)


@examples(50)
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=60))
def test_mser_is_its_definition(values: list[float]) -> None:
    """The truncation with the least squared standard error of the rest, by brute force."""
    x = np.array(values)
    marginal = [x[d:].var() / len(x[d:]) for d in range(len(x) // 2 + 1)]
    assert marginal[mser_cut(x)] == pytest.approx(min(marginal), rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("requests", [100, 400, 900])
def test_a_synthetic_warm_up(requests: int) -> None:
    """Ten times slower at first, then decaying: cut near where it has died away."""
    n = 3000
    slow = 1 + 9 * np.clip(1 - np.arange(n) / requests, 0, 1)
    for seed in range(10):
        assert 0.6 * requests <= warm_up_length(noise(n, seed) * slow) <= 1.3 * requests


def test_an_empty_system_that_fills() -> None:
    """A queue that builds up at first is a warm-up from below."""
    filling = np.minimum(np.arange(2000) / 300, 1)
    assert 150 <= warm_up_length(noise(2000) * filling) <= 420


def test_no_warm_up() -> None:
    """Runs that begin as they go on are hardly ever cut, and never by much."""
    cuts = [warm_up_length(noise(1000, seed)) for seed in range(100)]
    assert sum(cut > 0 for cut in cuts) <= 15
    assert max(cuts) <= 50


@pytest.mark.parametrize("at", [200, 500, 900])
def test_a_stall_in_the_first_half_is_kept(at: int) -> None:
    """MSER alone would cut it, and the tail with it."""
    values = noise(3000)
    values[at : at + 80] += np.linspace(2_000_000, 0, 80)
    assert mser_cut(values.reshape(-1, 5).mean(axis=1)) > 0
    assert warm_up_length(values) == 0


def test_at_most_half() -> None:
    """A run that never settles loses its first half, no more."""
    assert warm_up_length(noise(1000) * np.linspace(50, 1, 1000)) <= 500


@pytest.mark.parametrize("n", [0, 1, 30])
def test_too_short_to_cut(n: int) -> None:
    """Nothing is cut, and no trend is claimed."""
    assert warm_up_length(noise(n)) == 0
    found = detect_trend(noise(n))
    assert found.stationary
    assert "too few requests" in found.description


def test_a_growing_queue() -> None:
    """Twice as long at the end: said with its figures and what it may be."""
    found = detect_trend(noise(2000) * np.linspace(1, 3, 2000))
    assert not found.stationary
    assert found.growth == pytest.approx(4 / 3, rel=0.1)  # from 1.5 to 2.5: by 1, in half the time
    assert found.description.startswith("response times rose from 29")
    assert "the queue grows" in found.description


def test_still_warming_up() -> None:
    """The other direction."""
    found = detect_trend(noise(2000) * np.linspace(3, 1, 2000))
    assert (found.stationary, found.growth) == (False, 0)
    assert "fell" in found.description


@pytest.mark.parametrize(
    ("value", "growth", "breaks"),
    [(20, 0.5, False), (20, 3, True), (490, 0.1, True), (490, 0, False)],
)
def test_whether_growth_breaks_a_limit(value: float, growth: float, breaks: bool) -> None:
    """Far below the limit a little more does not matter; a queue that fills gets there."""
    assert will_exceed(value, 500, growth) == breaks


def test_a_small_trend_does_not_matter() -> None:
    """Certain but small: three percent over the run."""
    assert detect_trend(noise(50_000) * np.linspace(1, 1.06, 50_000)).stationary


@pytest.mark.parametrize(("phi", "most"), [(0.0, 6), (0.9, 12)])
def test_false_alarms(phi: float, most: int) -> None:
    """Of 200 stationary runs hardly any is said to have a trend, correlated or not."""
    values = np.exp(ar1(200, 1500, phi)) * 10_000
    assert sum(not detect_trend(x).stationary for x in values) <= most
