# SPDX-License-Identifier: Apache-2.0
"""Intervals hold what they promise, for independent and for correlated requests."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from tritonctl.loadtest.analysis.bootstrap import (
    block_length,
    effective_size,
    long_run_variance,
    mean_variance,
    share_interval,
)
from tritonctl.loadtest.analysis.percentiles import DurationSample
from tritonctl.loadtest.analysis.series import Series

Floats = npt.NDArray[np.float64]
P99 = -math.log(0.01)  # of the exponential distribution


def ar1(samples: int, n: int, phi: float, seed: int = 1) -> Floats:
    """Samples of an AR(1) process with standard normal values."""
    noise = np.random.default_rng(seed).normal(size=(n, samples))
    noise[1:] *= math.sqrt(1 - phi**2)
    for step in range(1, n):
        noise[step] += phi * noise[step - 1]
    return noise.T


@cache
def exponential(samples: int, n: int, phi: float) -> Floats:
    """The same with exponential values, by their ranks."""
    erf = np.vectorize(math.erf, otypes=[float])
    return np.asarray(-np.log1p(-0.5 * (1 + erf(ar1(samples, n, phi) / math.sqrt(2)))))


def series(values: Floats, tokens: int = 1) -> Series:
    """A value (or several tokens of one) per request."""
    return Series(values, np.full(len(values), tokens), np.arange(len(values)))


def test_blocks_are_as_long_as_the_memory() -> None:
    """1 or 2 for independent values, longer with correlation, never more than a third."""
    lengths = [np.median([block_length(x) for x in ar1(20, 4000, p)]) for p in (0, 0.5, 0.9)]
    assert lengths[0] <= 3
    assert lengths[0] < lengths[1] < lengths[2]
    # Politis and White's optimum for AR(1): cube root of 3/2 n (2 phi / (1 - phi^2))^2.
    expected = (1.5 * (2 * 0.9 / (1 - 0.9**2)) ** 2 * 4000) ** (1 / 3)
    assert lengths[2] == pytest.approx(expected, rel=0.35)
    assert block_length(np.arange(30.0)) <= 10


@pytest.mark.parametrize("values", [[], [3.0], [2.0] * 50])
def test_nothing_varies(values: list[float]) -> None:
    """No value, one, or one alone have blocks of one."""
    assert block_length(np.array(values)) == 1


@pytest.mark.parametrize("length", [1, 7, 40])
def test_the_closed_form_is_what_resampling_gives(length: int) -> None:
    """The variance of the mean over 20,000 circular block resamples, less its correction."""
    values = ar1(1, 400, 0.8)[0]
    chance = np.random.default_rng(3)
    starts = chance.integers(0, 400, (20_000, 400 // length))
    index = (starts[:, :, None] + np.arange(length)) % 400
    means = values[index].mean(axis=(1, 2))
    blocks = 400 / length
    # The resamples are cut to whole blocks.
    scale = (400 // length) / blocks * blocks / (blocks - 1)
    assert mean_variance(values, length) == pytest.approx(means.var() * scale, rel=0.05)


def test_short_blocks_are_made_up_for() -> None:
    """Over 100 samples of a known process the long-run variance is hardly too small."""
    n, phi = 2000, 0.8
    known = (1 + phi) / (1 - phi) / n
    samples = ar1(100, n, phi)
    plain = np.mean([mean_variance(x, block_length(x)) for x in samples])
    mended = np.mean([long_run_variance(x, block_length(x)) for x in samples])
    assert plain < mended
    assert mended == pytest.approx(known, rel=0.1)


@pytest.mark.parametrize(
    ("phi", "n"),
    [
        (0.0, 600),
        (0.5, 2000),
        pytest.param(0.0, 5000, marks=pytest.mark.exhaustive),
        pytest.param(0.9, 5000, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("q", [0.5, 0.99])
def test_coverage_of_percentiles(phi: float, n: int, q: float) -> None:
    """The 95 % interval holds the truth in 90 % of 200 samples or more."""
    truth = -math.log(1 - q)
    inside = 0
    for values in exponential(200, n, phi):
        found = DurationSample.from_series(series(values * 1000)).percentile(q)
        inside += (found.low_ms or 0) <= truth <= (found.high_ms or math.inf)
    assert inside >= 180


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_coverage_of_shares(phi: float) -> None:
    """So does that of the share over a limit that 1 % are over."""
    inside = 0
    for values in exponential(200, 3000, phi):
        found = DurationSample.from_series(series(values)).share_over(P99)
        inside += found.low <= 0.01 <= found.high
    assert inside >= 180


def test_an_interval_that_ignored_correlation_would_not() -> None:
    """The test above can fail: with blocks of one, AR(1) samples are not covered."""
    inside = 0
    for values in exponential(200, 3000, 0.9):
        flags = (values > math.log(2)).astype(float)
        half = 1.96 * math.sqrt(mean_variance(flags, 1))
        inside += abs(flags.mean() - 0.5) <= half
    assert inside < 120


def test_percentile_and_share_judge_alike() -> None:
    """P99's interval lies below a limit exactly where the share over the limit is surely < 1 %."""
    sample = DurationSample.from_series(series(exponential(1, 4000, 0.7)[0] * 1000))
    found = sample.percentile(0.99)
    assert found.low_ms is not None
    assert found.high_ms is not None
    assert sample.share_over(found.high_ms * 1000 * 1.1).high < 0.0101
    assert sample.share_over(found.low_ms * 1000 * 0.9).low > 0.0099


def test_rare_excesses_borrow_the_dependence_of_common_ones() -> None:
    """Nothing over the limit: correlated requests prove less of it than independent ones."""
    free, bound = (
        DurationSample.from_series(series(x[0]))
        for x in (exponential(1, 2000, p) for p in (0.0, 0.95))
    )
    shares = [sample.share_over(1e9) for sample in (free, bound)]
    assert [share.share for share in shares] == [0, 0]
    assert shares[0].high < 0.003
    assert shares[1].high > 3 * shares[0].high


def test_tokens_of_a_request_are_one_observation() -> None:
    """Twenty equal gaps in each of 1,000 requests are worth 1,000, not 20,000."""
    values = exponential(1, 1000, 0.0)[0]
    sample = DurationSample.from_series(series(values, tokens=20))
    found = sample.share_over(sample.quantile(0.9))
    assert 500 < found.effective < 1500


def test_runs_that_differ_among_themselves() -> None:
    """Their spread counts, where it is more than chance within them."""
    values = exponential(4, 1000, 0.0)
    alike = DurationSample.from_series(*(series(x) for x in values))
    shifted = DurationSample.from_series(
        *(series(x * f) for x, f in zip(values, (1, 1, 2, 2), strict=True))
    )
    assert alike.share_over(1.0).effective > 2000
    assert shifted.share_over(1.0).effective < 100


def test_effective_size_never_exceeds_the_sample() -> None:
    """Alternating values know the mean better than independent ones; no more is claimed."""
    flags = np.tile([0.0, 1.0], 500)
    assert effective_size(flags, np.ones(1000)) == 1000
    assert share_interval(flags, np.ones(1000)).share == 0.5
