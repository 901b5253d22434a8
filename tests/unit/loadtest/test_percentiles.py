# SPDX-License-Identifier: Apache-2.0
"""Percentiles are measured values; histograms merge to that of the union."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.analysis.percentiles import (
    Sample,
    decode,
    distribution,
    encode,
    histogram,
    histogram_percentiles,
    merge,
)
from tritonctl.loadtest.analysis.series import Series

durations = st.lists(st.integers(0, 4_000_000_000), min_size=1, max_size=60)


def series(values: list[int], weights: list[int] | None = None) -> Series:
    """A value per request."""
    counts = np.array(weights or [1] * len(values), dtype=np.int64)
    return Series(np.array(values, dtype=np.float64), counts, np.arange(len(values)))


@settings(max_examples=40, deadline=None)
@given(durations)
def test_a_histogram_is_as_if_each_had_been_recorded(values: list[int]) -> None:
    """Sorting all values into buckets at once is hdrh's own sorting; an hour is the most."""
    expected = HdrHistogram(1, 3_600_000_000, 3)
    for value in values:
        expected.record_value(min(max(value, 1), 3_600_000_000))
    made = histogram(series(values))
    assert list(made.counts) == list(expected.counts)
    assert made.get_total_count() == len(values)
    assert made.get_max_value() == expected.get_max_value()


@settings(max_examples=30, deadline=None)
@given(st.lists(durations, min_size=1, max_size=4))
def test_merged_is_the_union(parts: list[list[int]]) -> None:
    """Whatever the parts: the same counts, the same percentiles, also through text."""
    merged = merge(encode(histogram(series(part))) for part in parts)
    union = histogram(series([value for part in parts for value in part]))
    assert list(merged.counts) == list(union.counts)
    quantiles = [0.5, 0.9, 0.99]
    assert histogram_percentiles(merged, quantiles) == histogram_percentiles(union, quantiles)


def test_no_histogram() -> None:
    """Of nothing there are no percentiles; of broken text there is an error."""
    assert histogram_percentiles(merge([]), [0.5]) == {}
    for text in ("", "HISTFAAAA", "nonsense", encode(histogram(series([5])))[:20]):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            decode(text)


@settings(deadline=None)
@given(durations, st.floats(0.01, 0.999))
def test_a_percentile_is_a_measured_value(values: list[int], q: float) -> None:
    """The nearest rank, as numpy's inverted_cdf; histograms agree to three digits."""
    sample = Sample.of(series(values))
    exact = sorted(values)[math.ceil(q * len(values) * (1 - 1e-12)) - 1]
    assert sample.quantile(q) == exact


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 5)), min_size=1, max_size=30))
def test_a_weight_is_a_repetition(pairs: list[tuple[int, int]]) -> None:
    """A gap of three tokens counts three times, in percentiles and in histograms."""
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    repeated = [v for v, w in pairs for _ in range(w)]
    weighted, plain = Sample.of(series(values, weights)), Sample.of(series(repeated))
    assert len(weighted) == len(plain)
    assert [weighted.quantile(q) for q in (0.1, 0.5, 0.9)] == [
        plain.quantile(q) for q in (0.1, 0.5, 0.9)
    ]
    assert list(histogram(series(values, weights)).counts) == list(
        histogram(series(repeated)).counts
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
