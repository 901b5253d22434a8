# SPDX-License-Identifier: Apache-2.0
"""Percentiles with intervals, and the histograms that runs and workers are merged by.

Percentiles are never averaged: those of several workers or runs come from the union of their
values, or from the sum of their HdrHistograms (3 significant digits, whatever the range).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.analysis.binomial import LEVEL, rank_bounds, student
from tritonctl.loadtest.analysis.bootstrap import (
    Share,
    block_length,
    effective_size,
    runs_differ,
    share_interval,
)
from tritonctl.loadtest.analysis.columns import Floats, Integers, summed
from tritonctl.loadtest.analysis.series import Series
from tritonctl.loadtest.analysis.summary import (
    P99_REQUESTS,
    P999_REQUESTS,
    Distribution,
    Percentile,
)

# Microseconds: up to an hour.
LOWEST, HIGHEST, DIGITS = 1, 3_600_000_000, 3
_SUB_BUCKET_BITS = 11  # of 3 digits: 2,048 sub-buckets
# A percentile, and from how many values on it is given.
QUANTILES = {0.5: 1, 0.9: 1, 0.95: 1, 0.99: P99_REQUESTS, 0.999: P999_REQUESTS}
_USUAL = 0.9
_MOST_FACTOR = 1000.0  # runs that leave more room than that say nothing


@dataclass(frozen=True)
class Sample:
    """Durations of one metric, prepared for questions; several runs may be put together.

    values and weights are sorted by value, `place` is the request of each, `requests` how many
    there are, `runs` the run of each request.
    """

    values: Floats
    weights: Integers
    place: Integers
    total: Floats
    runs: Integers | None = None

    @classmethod
    def of(cls, *parts: Series) -> Sample:
        """A sample of one run's series, or of several runs' in the order they were made."""
        # Requests that have a value, numbered from 0; owners are in ascending order.
        places = [np.cumsum(np.diff(part.owner, prepend=part.owner[:1]) != 0) for part in parts]
        counts = [int(place[-1]) + 1 if len(place) else 0 for place in places]
        before = np.concatenate(([0], np.cumsum(counts)))
        place = np.concatenate([p + n for p, n in zip(places, before[:-1], strict=True)])
        values = np.concatenate([part.values for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        order = np.argsort(values, kind="stable")
        total = summed(place, weights, sum(counts))
        runs = np.repeat(np.arange(len(parts)), counts) if len(parts) > 1 else None
        return cls(values[order], weights[order], place[order], total, runs)

    def __len__(self) -> int:
        """How many durations, by weight."""
        return int(self._ranks[-1]) if len(self.values) else 0

    @cached_property
    def _ranks(self) -> Integers:
        return np.cumsum(self.weights)

    @cached_property
    def bulk(self) -> int:
        """The block length of the durations themselves, by rank: one outlier counts as one."""
        ranks = summed(self.place, self.weights * self._ranks, len(self.total))
        return block_length(ranks / self.total)

    def quantile(self, q: float) -> float:
        """The smallest value that a share `q` does not exceed: a value that was measured."""
        return _quantile(self.values, self._ranks, q)

    def over(self, limit: float) -> Floats:
        """How much of each request is over the limit."""
        begin = np.searchsorted(self.values, limit, side="right")
        return summed(self.place[begin:], self.weights[begin:], len(self.total))

    def share_over(self, limit: float) -> Share:
        """The share of durations over the limit, with its interval."""
        usual = self.over(self.quantile(_USUAL))
        return share_interval(
            self.over(limit), self.total, usual=usual, runs=self.runs, bulk=self.bulk
        )

    def percentile(self, q: float, level: float = LEVEL) -> Percentile:
        """The percentile `q` in milliseconds with its interval."""
        value = self.quantile(q)
        over = self.over(value)
        if self.runs is not None and runs_differ(over, self.total, self.runs, self.bulk):
            factor = self._between_runs(self.runs, q, level)
            if factor is None:
                return Percentile(q, _ms(value), None, None)
            return Percentile(q, _ms(value), _ms(value / factor), _ms(value * factor))
        size = effective_size(over, self.total, bulk=self.bulk)
        low, high = rank_bounds(q, size, level)
        return Percentile(
            q,
            _ms(value),
            None if low is None else _ms(self.quantile(low)),
            None if high is None else _ms(self.quantile(high)),
        )

    def _between_runs(self, runs: Integers, q: float, level: float) -> float | None:
        """By which factor the percentile may be off, from how those of the runs scatter; None for
        any.

        Few runs that differ say little of ranks, yet much of a value: Student's interval of the
        runs' percentiles, of their logarithms because times scatter by factors.
        """
        run = runs[self.place]
        parts = [run == number for number in np.unique(run)]
        quantiles = [_quantile(self.values[p], np.cumsum(self.weights[p]), q) for p in parts]
        error = float(np.std(np.log(np.maximum(quantiles, LOWEST)), ddof=1)) / math.sqrt(
            len(quantiles)
        )
        width = student(len(quantiles) - 1, level) * error
        return math.exp(width) if width < math.log(_MOST_FACTOR) else None


def _quantile(values: Floats, ranks: Integers, q: float) -> float:
    rank = np.searchsorted(ranks, q * ranks[-1] * (1 - 1e-12))
    return float(values[min(int(rank), len(values) - 1)])


def distribution(series: Series) -> Distribution:
    """The figures of one metric. `series` must not be empty."""
    sample = Sample.of(series)
    return Distribution(
        n=len(sample),
        mean_ms=_ms(float(np.average(series.values, weights=series.weights))),
        min_ms=_ms(float(sample.values[0])),
        max_ms=_ms(float(sample.values[-1])),
        percentiles=tuple(
            sample.percentile(q) for q, least in QUANTILES.items() if len(sample) >= least
        ),
        histogram=encode(histogram(series)),
        censored=series.censored,
    )


def _ms(microseconds: float) -> float:
    return round(microseconds / 1000, 6)


def new_histogram() -> Any:
    """An empty HdrHistogram of microseconds, in the generators' form."""
    from hdrh.histogram import HdrHistogram

    return HdrHistogram(LOWEST, HIGHEST, DIGITS)


def histogram(series: Series) -> Any:
    """The durations as an HdrHistogram of microseconds; below one counts as one."""
    made = new_histogram()
    whole = np.clip(np.rint(series.values), LOWEST, HIGHEST).astype(np.int64)
    # As hdrh would sort each of them into its buckets, but all at once.
    shift = np.maximum(np.frexp(whole.astype(np.float64))[1] - _SUB_BUCKET_BITS, 0)
    buckets, place = np.unique((whole >> shift) << shift, return_inverse=True)
    counts = np.bincount(place, weights=series.weights)
    highest = np.zeros(len(buckets), dtype=np.int64)
    np.maximum.at(highest, place, whole)
    for value, count in zip(highest.tolist(), counts.tolist(), strict=True):
        made.record_value(value, int(count))
    return made


def encode(made: Any) -> str:
    """A histogram in its base64 form."""
    encoded = made.encode()
    return encoded.decode("ascii") if isinstance(encoded, bytes) else str(encoded)


def decode(encoded: str) -> Any:
    """A histogram from its base64 form. Raises ConfigurationError."""
    from hdrh.histogram import HdrHistogram

    try:
        return HdrHistogram.decode(encoded)
    except Exception as error:  # zlib's, base64's, hdrh's own: no common base
        raise ConfigurationError(
            f"a histogram cannot be read: {error}",
            remedy="the file was cut or edited: run the load test again",
        ) from error


def merge(encoded: Iterable[str]) -> Any:
    """The histogram of the union of what several histograms hold."""
    merged = new_histogram()
    for text in encoded:
        merged.add(decode(text))
    return merged


def histogram_percentiles(made: Any, quantiles: Sequence[float]) -> dict[float, float]:
    """Percentiles of a histogram in milliseconds, to 3 digits; none of an empty one."""
    if not made.get_total_count():
        return {}
    values = made.get_percentile_to_value_dict([100 * q for q in quantiles])
    return {q: values[100 * q] / 1000 for q in quantiles}


def count_over(made: Any, limit_ms: float) -> int:
    """How many values of a histogram are above a limit, as far as its digits tell."""
    steps = made.get_recorded_iterator()
    return sum(
        int(step.count_added_in_this_iter_step)
        for step in steps
        if step.value_iterated_to > limit_ms * 1000
    )
