# SPDX-License-Identifier: Apache-2.0
"""Percentiles with intervals, and histograms to merge runs and workers.

Percentiles are never averaged: several workers or runs contribute the union of their values, or the
sum of their HdrHistograms (3 significant digits at any range).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.analysis.binomial import LEVEL, rank_bounds, student_t
from tritonctl.loadtest.analysis.bootstrap import (
    ShareEstimate,
    block_length,
    effective_size,
    runs_differ,
    share_interval,
)
from tritonctl.loadtest.analysis.columns import Floats, Integers, sum_by_index
from tritonctl.loadtest.analysis.series import Series
from tritonctl.loadtest.analysis.summary import (
    P99_REQUESTS,
    P999_REQUESTS,
    DurationDistribution,
    Percentile,
)

# Microseconds: up to an hour.
LOWEST, HIGHEST, DIGITS = 1, 3_600_000_000, 3
_SUB_BUCKET_BITS = 11  # of 3 digits: 2,048 sub-buckets
# Percentiles with the minimum number of values.
QUANTILES = {0.5: 1, 0.9: 1, 0.95: 1, 0.99: P99_REQUESTS, 0.999: P999_REQUESTS}
_CLUSTERING_QUANTILE = 0.9
_MAX_INTERVAL_FACTOR = 1000.0  # wider intervals count as unbounded


@dataclass(frozen=True)
class DurationSample:
    """Durations of one metric from one or several runs, sorted for queries."""

    values: Floats  # ascending
    weights: Integers
    owner: Integers  # request of each value
    total: Floats  # weight per request
    runs: Integers | None = None  # run of each request, for several runs

    @classmethod
    def from_series(cls, *parts: Series) -> DurationSample:
        """Create a sample from the series of one or several runs, in the order of the runs."""
        # Number requests with a value from 0; owners ascend.
        owners = [np.cumsum(np.diff(part.owner, prepend=part.owner[:1]) != 0) for part in parts]
        counts = [int(owner[-1]) + 1 if len(owner) else 0 for owner in owners]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        owner = np.concatenate([p + n for p, n in zip(owners, offsets[:-1], strict=True)])
        values = np.concatenate([part.values for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        order = np.argsort(values, kind="stable")
        total = sum_by_index(owner, weights, sum(counts))
        runs = np.repeat(np.arange(len(parts)), counts) if len(parts) > 1 else None
        return cls(values[order], weights[order], owner[order], total, runs)

    def __len__(self) -> int:
        """The number of durations by weight."""
        return int(self._ranks[-1]) if len(self.values) else 0

    @cached_property
    def _ranks(self) -> Integers:
        return np.cumsum(self.weights)

    @cached_property
    def min_block_length(self) -> int:
        """The block length of the durations, by rank, so that an outlier counts once."""
        ranks = sum_by_index(self.owner, self.weights * self._ranks, len(self.total))
        return block_length(ranks / self.total)

    def quantile(self, q: float) -> float:
        """Return the smallest measured value that a share `q` does not exceed."""
        return _quantile(self.values, self._ranks, q)

    def weight_over(self, limit: float) -> Floats:
        """Return the weight of each request over the limit."""
        start = np.searchsorted(self.values, limit, side="right")
        return sum_by_index(self.owner[start:], self.weights[start:], len(self.total))

    def share_over(self, limit: float) -> ShareEstimate:
        """Return the share of durations over the limit, with its interval."""
        reference_over = self.weight_over(self.quantile(_CLUSTERING_QUANTILE))
        return share_interval(
            self.weight_over(limit),
            self.total,
            reference_over=reference_over,
            runs=self.runs,
            min_block_length=self.min_block_length,
        )

    def percentile(self, q: float, level: float = LEVEL) -> Percentile:
        """Return the percentile `q` in milliseconds with its interval."""
        value = self.quantile(q)
        over = self.weight_over(value)
        if self.runs is not None and runs_differ(
            over, self.total, self.runs, self.min_block_length
        ):
            factor = self._between_run_factor(self.runs, q, level)
            if factor is None:
                return Percentile(q, _to_ms(value), None, None)
            return Percentile(q, _to_ms(value), _to_ms(value / factor), _to_ms(value * factor))
        size = effective_size(over, self.total, min_block_length=self.min_block_length)
        low, high = rank_bounds(q, size, level)
        return Percentile(
            q,
            _to_ms(value),
            None if low is None else _to_ms(self.quantile(low)),
            None if high is None else _to_ms(self.quantile(high)),
        )

    def _between_run_factor(self, runs: Integers, q: float, level: float) -> float | None:
        """Return the percentile's error factor from the spread between runs; None if unbounded.

        Few differing runs say little about ranks but much about values. So this is Student's
        interval of the runs' percentiles, on logarithms because times vary by factors.
        """
        run = runs[self.owner]
        run_masks = [run == number for number in np.unique(run)]
        quantiles = [_quantile(self.values[p], np.cumsum(self.weights[p]), q) for p in run_masks]
        error = float(np.std(np.log(np.maximum(quantiles, LOWEST)), ddof=1)) / math.sqrt(
            len(quantiles)
        )
        width = student_t(len(quantiles) - 1, level) * error
        return math.exp(width) if width < math.log(_MAX_INTERVAL_FACTOR) else None


def _quantile(values: Floats, ranks: Integers, q: float) -> float:
    rank = np.searchsorted(ranks, q * ranks[-1] * (1 - 1e-12))
    return float(values[min(int(rank), len(values) - 1)])


def distribution(series: Series) -> DurationDistribution:
    """Return the figures of one metric. `series` must not be empty."""
    sample = DurationSample.from_series(series)
    return DurationDistribution(
        n=len(sample),
        mean_ms=_to_ms(float(np.average(series.values, weights=series.weights))),
        min_ms=_to_ms(float(sample.values[0])),
        max_ms=_to_ms(float(sample.values[-1])),
        percentiles=tuple(
            sample.percentile(q) for q, min_count in QUANTILES.items() if len(sample) >= min_count
        ),
        histogram=encode_histogram(to_histogram(series)),
        censored=series.censored,
    )


def _to_ms(microseconds: float) -> float:
    return round(microseconds / 1000, 6)


def new_histogram() -> Any:
    """Return an empty HdrHistogram of microseconds, with the generators' parameters."""
    from hdrh.histogram import HdrHistogram

    return HdrHistogram(LOWEST, HIGHEST, DIGITS)


def to_histogram(series: Series) -> Any:
    """Convert durations to an HdrHistogram of microseconds, at least 1 each."""
    histogram = new_histogram()
    rounded_values = np.clip(np.rint(series.values), LOWEST, HIGHEST).astype(np.int64)
    # Vectorised form of hdrh's bucket computation.
    shift = np.maximum(np.frexp(rounded_values.astype(np.float64))[1] - _SUB_BUCKET_BITS, 0)
    buckets, bucket_index = np.unique((rounded_values >> shift) << shift, return_inverse=True)
    counts = np.bincount(bucket_index, weights=series.weights)
    highest = np.zeros(len(buckets), dtype=np.int64)
    np.maximum.at(highest, bucket_index, rounded_values)
    for value, count in zip(highest.tolist(), counts.tolist(), strict=True):
        histogram.record_value(value, int(count))
    return histogram


def encode_histogram(histogram: Any) -> str:
    """Encode a histogram in base64."""
    encoded = histogram.encode()
    return encoded.decode("ascii") if isinstance(encoded, bytes) else str(encoded)


def decode_histogram(encoded: str) -> Any:
    """Decode a base64 histogram. Raises ConfigurationError."""
    from hdrh.histogram import HdrHistogram

    try:
        return HdrHistogram.decode(encoded)
    except Exception as error:  # zlib's, base64's, hdrh's own: no common base
        raise ConfigurationError(
            f"a histogram cannot be read: {error}",
            remedy="the file was truncated or edited: run the load test again",
        ) from error


def merge_histograms(encoded: Iterable[str]) -> Any:
    """Merge several encoded histograms into one."""
    merged = new_histogram()
    for text in encoded:
        merged.add(decode_histogram(text))
    return merged


def histogram_percentiles(histogram: Any, quantiles: Sequence[float]) -> dict[float, float]:
    """Return percentiles in milliseconds, to 3 digits; empty for an empty histogram."""
    if not histogram.get_total_count():
        return {}
    values = histogram.get_percentile_to_value_dict([100 * q for q in quantiles])
    return {q: values[100 * q] / 1000 for q in quantiles}


def count_over(histogram: Any, limit_ms: float) -> int:
    """Count the values above a limit, to the histogram's precision."""
    steps = histogram.get_recorded_iterator()
    return sum(
        int(step.count_added_in_this_iter_step)
        for step in steps
        if step.value_iterated_to > limit_ms * 1000
    )
