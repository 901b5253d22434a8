# SPDX-License-Identifier: Apache-2.0
"""Percentiles are measured values; histograms merge to that of the union."""

from __future__ import annotations

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.analysis.percentiles import (
    DurationSample,
    decode_histogram,
    distribution,
    encode_histogram,
    histogram_percentiles,
    merge_histograms,
    to_histogram,
)
from tritonctl.loadtest.analysis.series import Series

durations = st.lists(st.integers(0, 4_000_000_000), min_size=1, max_size=60)


def series(values: list[int], weights: list[int] | None = None) -> Series:
    """A value per request."""
    counts = np.array(weights or [1] * len(values), dtype=np.int64)
    return Series(np.array(values, dtype=np.float64), counts, np.arange(len(values)))


@examples(40)
@given(durations)
def test_a_histogram_is_as_if_each_had_been_recorded(values: list[int]) -> None:
    """Sorting all values into buckets at once is hdrh's own sorting; an hour is the most."""
    expected = HdrHistogram(1, 3_600_000_000, 3)
    for value in values:
        expected.record_value(min(max(value, 1), 3_600_000_000))
    made = to_histogram(series(values))
    assert list(made.counts) == list(expected.counts)
    assert made.get_total_count() == len(values)
    assert made.get_max_value() == expected.get_max_value()


@examples(30)
@given(st.lists(durations, min_size=1, max_size=4))
def test_merged_is_the_union(parts: list[list[int]]) -> None:
    """Whatever the parts: the same counts, the same percentiles, also through text."""
    merged = merge_histograms(encode_histogram(to_histogram(series(part))) for part in parts)
    union = to_histogram(series([value for part in parts for value in part]))
    assert list(merged.counts) == list(union.counts)
    quantiles = [0.5, 0.9, 0.99]
    assert histogram_percentiles(merged, quantiles) == histogram_percentiles(union, quantiles)


def test_no_histogram() -> None:
    """Of nothing there are no percentiles; of broken text there is an error."""
    assert histogram_percentiles(merge_histograms([]), [0.5]) == {}
    for text in ("", "HISTFAAAA", "nonsense", encode_histogram(to_histogram(series([5])))[:20]):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            decode_histogram(text)


@given(durations, st.integers(1, 999))
def test_a_percentile_is_a_measured_value(values: list[int], thousandths: int) -> None:
    """The nearest rank, with whole numbers: the smallest value that so many do not exceed."""
    rank = -(-thousandths * len(values) // 1000)
    sample = DurationSample.from_series(series(values))
    assert sample.quantile(thousandths / 1000) == sorted(values)[rank - 1]


@pytest.mark.parametrize(
    ("n", "q", "rank"),
    [
        (1, 0.5, 1),
        (2, 0.5, 1),  # a rank that is whole is not the next one
        (3, 0.5, 2),
        (10, 0.9, 9),
        (11, 0.9, 10),  # 9.9: up
        (12, 0.95, 12),  # 11.4: up, too
        (20, 0.95, 19),
        (100, 0.55, 55),  # 100 * 0.55 is 55.00000000000001 in floating point
        (100, 0.07, 7),
        (100, 0.99, 99),
        (101, 0.99, 100),
        (1000, 0.999, 999),
        (1001, 0.999, 1000),
        (5, 0.001, 1),
        (5, 0.999, 5),
    ],
)
def test_ranks_are_rounded_up(n: int, q: float, rank: int) -> None:
    """Value number k is k: the percentile tells its rank; one request of weight n, the same."""
    assert DurationSample.from_series(series(list(range(1, n + 1)))).quantile(q) == rank
    weights = [rank, n - rank] if rank < n else [n]
    assert DurationSample.from_series(series([1, 2][: len(weights)], weights)).quantile(q) == 1


@pytest.mark.parametrize(
    ("n", "q", "rank"), [(1, 0.5, 1), (2, 0.5, 1), (10, 0.9, 9), (11, 0.9, 10), (500, 0.99, 495)]
)
def test_ranks_in_a_histogram(n: int, q: float, rank: int) -> None:
    """Up to 2,048 microseconds each value has a bucket of its own; told in milliseconds."""
    made = to_histogram(series(list(range(1, n + 1))))
    assert histogram_percentiles(made, [q]) == {q: rank / 1000}


def test_microseconds_are_told_as_milliseconds() -> None:
    """To a billionth of a second, in every figure; what is counted is the whole microsecond."""
    parts = Series(np.array([0.0004, 1234.5678, 1234.6]), np.array([1, 1, 2]), np.arange(3))
    found = distribution(parts)
    assert (found.min_ms, found.max_ms) == (0.0, 1.2346)
    assert found.mean_ms == 0.925942  # (0.0004 + 1234.5678 + 2 * 1234.6) / 4 / 1000
    assert [p.ms for p in found.percentiles] == [1.234568, 1.2346, 1.2346]
    made = decode_histogram(found.histogram)
    assert [made.get_count_at_value(v) for v in (1, 1234, 1235)] == [1, 0, 3]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 5)), min_size=1, max_size=30))
def test_a_weight_is_a_repetition(pairs: list[tuple[int, int]]) -> None:
    """A gap of three tokens counts three times, in percentiles and in histograms."""
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    repeated = [v for v, w in pairs for _ in range(w)]
    weighted, plain = (
        DurationSample.from_series(series(values, weights)),
        DurationSample.from_series(series(repeated)),
    )
    assert len(weighted) == len(plain)
    assert [weighted.quantile(q) for q in (0.1, 0.5, 0.9)] == [
        plain.quantile(q) for q in (0.1, 0.5, 0.9)
    ]
    assert list(to_histogram(series(values, weights)).counts) == list(
        to_histogram(series(repeated)).counts
    )


@pytest.mark.parametrize(
    ("n", "quantiles"),
    [
        (1, [0.5, 0.9, 0.95]),
        (499, [0.5, 0.9, 0.95]),
        (500, [0.5, 0.9, 0.95, 0.99]),
        (4999, [0.5, 0.9, 0.95, 0.99]),
        (5000, [0.5, 0.9, 0.95, 0.99, 0.999]),
    ],
)
def test_no_tail_from_few_requests(n: int, quantiles: list[float]) -> None:
    """P99 from 500 on, P99.9 from 5,000 on."""
    values = np.random.default_rng(1).exponential(10_000, n).astype(int).tolist()
    found = distribution(series(values))
    assert [p.q for p in found.percentiles] == quantiles
    assert found.n == n
    assert found.percentile(0.99) is (found.percentiles[3] if n >= 500 else None)


def test_bounds_that_nobody_knows() -> None:
    """Three values bound P90 from below at most; what is there is still told."""
    found = distribution(series([10_000, 20_000, 90_000]))
    assert (found.min_ms, found.mean_ms, found.max_ms) == (10, 40, 90)
    assert [(p.ms, p.low_ms, p.high_ms) for p in found.percentiles] == [
        (20, None, None),
        (90, 10, None),
        (90, 20, None),
    ]
