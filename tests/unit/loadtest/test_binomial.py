# SPDX-License-Identifier: Apache-2.0
"""Exact intervals, against published values and against what they promise."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tritonctl.loadtest.analysis.binomial import (
    fisher_f,
    incomplete_beta,
    rank_bounds,
    share_bounds,
    student_t,
)


@pytest.mark.parametrize(
    ("over", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.3085),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1.0),
        (4, 20, 0.0573, 0.4366),
        (8, 20, 0.1912, 0.6395),
        (10, 100, 0.0490, 0.1762),
        (0, 100, 0.0, 0.0362),
    ],
)
def test_published_intervals(over: int, n: int, low: float, high: float) -> None:
    """Clopper and Pearson's intervals as tables print them."""
    assert share_bounds(over, n) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (1e6, 1.960)]
)
def test_published_student(freedom: float, t: float) -> None:
    """Two-sided 95 % points of Student's t."""
    assert student_t(freedom) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize(
    ("first", "second", "f"), [(1, 10, 4.965), (5, 20, 2.711), (2, 1000, 3.005)]
)
def test_published_fisher(first: float, second: float, f: float) -> None:
    """95th percentiles of F."""
    assert fisher_f(first, second) == pytest.approx(f, abs=6e-4)


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [(1000, 0.983, 0.997), (2000, 0.9855, 0.9945), (5000, 0.987, 0.993), (10_000, 0.988, 0.992)],
)
def test_ranks_around_p99(n: int, low: float, high: float) -> None:
    """Between which of the sorted values the 99th percentile lies, as in the field study."""
    assert rank_bounds(0.99, n) == pytest.approx((low, high), abs=1e-3)


def test_too_few_values_bound_nothing() -> None:
    """The largest of n values bounds P99 only if 0.99 ** n is at most 2.5 %: n >= 368."""
    assert rank_bounds(0.99, 367)[1] is None
    assert rank_bounds(0.99, 368)[1] is not None
    assert rank_bounds(0.5, 3) == (None, None)


@given(st.integers(1, 60), st.data(), st.floats(0.01, 0.99))
def test_incomplete_beta_is_a_binomial_tail(n: int, data: st.DataObject, p: float) -> None:
    """I_p(k, n - k + 1) is the chance of at least k successes."""
    k = data.draw(st.integers(1, n))
    tail = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
    assert incomplete_beta(k, n - k + 1, p) == pytest.approx(tail, abs=1e-10)


@examples(25)
@given(st.integers(1, 30), st.floats(0.005, 0.995))
def test_coverage_is_never_below_its_level(n: int, p: float) -> None:
    """Summed exactly over every outcome; that is what the exact interval promises."""
    bounds = [share_bounds(k, n) for k in range(n + 1)]
    covered = sum(
        math.comb(n, k) * p**k * (1 - p) ** (n - k)
        for k, (low, high) in enumerate(bounds)
        if low <= p <= high
    )
    assert covered >= 0.95 - 1e-9


@examples(40)
@given(st.floats(5, 1e6), st.floats(0.05, 0.999))
def test_ranks_are_the_inverse_of_shares(n: float, q: float) -> None:
    """At a rank bound the share beyond it is just possible: both judge alike."""
    low, high = rank_bounds(q, n)
    if low is not None:
        assert share_bounds((1 - low) * n, n)[0] <= 1 - q + 1e-6
        assert share_bounds(low * n, n)[1] == pytest.approx(q, abs=1e-6)
    if high is not None:
        assert share_bounds(high * n, n)[0] == pytest.approx(q, abs=1e-6)
