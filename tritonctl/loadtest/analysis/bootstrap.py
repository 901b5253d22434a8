# SPDX-License-Identifier: Apache-2.0
"""Estimate the effective size of a correlated sample by the circular block bootstrap.

Neighbouring requests wait in the same queue, so n of them carry less information than n independent
ones. Blocks of neighbours keep that dependence. The bootstrap's variance of a mean has a closed
form (the limit of infinitely many resamples), so there are no draws and no seed. The variance gives
the number of equivalent independent requests. Exact binomial bounds for that number (binomial.py)
give the intervals of shares and, inverted, of percentiles. So both agree: the interval of P99 lies
below a limit exactly when the interval of the share beyond the limit lies below 1 %.

Sources: D. Politis, J. Romano, "A circular block-resampling procedure for stationary data" (1992);
block length: D. Politis, H. White, "Automatic block-length selection for the dependent bootstrap",
Econometric Reviews 23 (2004), with the correction of A. Patton, D. Politis, H. White (2009).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tritonctl.loadtest.analysis.binomial import LEVEL, fisher_f, share_bounds, student_t
from tritonctl.loadtest.analysis.columns import Floats, Integers

_NORMAL = 1.959964
_MIN_LUGSAIL_LENGTH = 4  # blocks of this length show dependence
_MIN_EXCEEDANCES = 10  # exceedances, from which their clustering can be seen


@dataclass(frozen=True)
class ShareEstimate:
    """A share with its interval."""

    share: float
    low: float
    high: float
    effective: float  # number of equivalent independent requests


def block_length(values: Floats) -> int:
    """Return Politis and White's block length: 1 for independent values."""
    n = len(values)
    covariance = _autocovariance(values - values.mean()) if n > 1 else np.zeros(1)
    if covariance[0] <= 0:
        return 1
    lags = min(_last_lag(covariance / covariance[0], n), len(covariance) - 1)
    k = np.arange(1, lags + 1)
    # The flat-top window: 1 up to the half, then decreasing.
    weighted = np.clip(2 * (1 - k / max(lags, 1)), 0, 1) * covariance[1 : lags + 1]
    spectrum = covariance[0] + 2 * weighted.sum()
    slope = 2 * (k * weighted).sum()
    if spectrum <= 0:
        return 1
    length = (1.5 * (slope / spectrum) ** 2 * n) ** (1 / 3)
    return max(1, min(math.ceil(float(length)), math.ceil(min(3 * math.sqrt(n), n / 3))))


def _autocovariance(centred: Floats) -> Floats:
    n = len(centred)
    lags = min(n, math.ceil(math.sqrt(n)) + _quiet_lags(n) + 1)
    # Padded so that the first lags do not wrap, to a power of two: other lengths may be slow.
    spectrum = np.fft.rfft(centred, 1 << (n + lags).bit_length())
    return np.fft.irfft(np.abs(spectrum) ** 2)[:lags] / n


def _quiet_lags(n: int) -> int:
    return max(5, math.ceil(math.sqrt(math.log10(n))))


def _last_lag(correlation: Floats, n: int) -> int:
    """Return twice the lag after which several correlations stay within the noise."""
    quiet = np.abs(correlation[1:]) < 2 * math.sqrt(math.log10(n) / n)
    run = _quiet_lags(n)
    for lag in range(len(quiet) - run + 1):
        if quiet[lag : lag + run].all():
            return 2 * max(lag, 1)
    loud = np.flatnonzero(~quiet)
    return 2 * (int(loud[-1]) + 1 if len(loud) else 1)


def mean_variance(values: Floats, length: int) -> float:
    """Return the variance of the mean of `values` under the circular block bootstrap.

    Corrected for estimating the mean from the same blocks.
    """
    n = len(values)
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate((values, values[: length - 1])))))
    blocks = sums[length:] - sums[:-length] - length * values.mean()
    count = n / length
    correction = count / (count - 1) if count > 1 else 1.0
    return float((blocks**2).mean() / length / n * correction)


def long_run_variance(values: Floats, length: int) -> float:
    """Return the variance of the mean, corrected for the bias of the block length.

    Blocks cut the dependence at their ends and underestimate it; blocks of half the length miss
    about twice as much ("lugsail": D. Vats, J. Flegal, "Lugsail lag windows for estimating
    time-average covariance matrices", Biometrika 109, 2022).
    """
    variance = mean_variance(values, length)
    if length < _MIN_LUGSAIL_LENGTH:
        return variance
    return max(variance, 2 * variance - mean_variance(values, length // 2))


def share_interval(
    over: Floats,
    total: Floats,
    *,
    reference_over: Floats | None = None,
    runs: Integers | None = None,
    min_block_length: int = 1,
    level: float = LEVEL,
) -> ShareEstimate:
    """Return the share of `total` that is `over`, both per request in plan order.

    reference_over: the weight over a lower limit; its clustering stands in when `over` is too rare
    to show its own. runs: each request's run, for merged runs. min_block_length: the block length
    of the durations themselves.
    """
    share = float(over.sum() / total.sum())
    effective = effective_size(over, total, runs=runs, min_block_length=min_block_length)
    if reference_over is not None and np.count_nonzero(over) < _MIN_EXCEEDANCES:
        # Use the reference's dependence only if it is worse.
        effective = min(
            effective,
            effective_size(reference_over, total, runs=runs, min_block_length=min_block_length),
        )
    low, high = share_bounds(share * effective, effective, level)
    return ShareEstimate(share, low, high, effective)


def effective_size(
    over: Floats, total: Floats, *, runs: Integers | None = None, min_block_length: int = 1
) -> float:
    """Return the number of independent observations that estimate the share equally well."""
    total_weight = float(total.sum())
    share = float(over.sum()) / total_weight
    residual, variance, freedom = _within_run_variance(over, total, min_block_length)
    if runs is not None:
        between = _between_run_variance(residual, runs)
        if _exceeds_significantly(between, variance, runs, freedom):
            variance, freedom = between, float(runs[-1])
    if variance <= 0:
        return total_weight
    effective = share * (1 - share) / variance
    # The variance is itself an estimate, from few blocks if they are long.
    return min(total_weight, max(effective * (_NORMAL / student_t(freedom)) ** 2, 1.0))


def runs_differ(over: Floats, total: Floats, runs: Integers, min_block_length: int = 1) -> bool:
    """Whether the share varies significantly more between runs than within them."""
    residual, variance, freedom = _within_run_variance(over, total, min_block_length)
    return _exceeds_significantly(_between_run_variance(residual, runs), variance, runs, freedom)


def _within_run_variance(
    over: Floats, total: Floats, min_block_length: int
) -> tuple[Floats, float, float]:
    """Return the share's residuals, its within-run variance and the degrees of freedom."""
    total_weight = float(total.sum())
    # The ratio's residual: requests have different numbers of tokens.
    residual = (over - float(over.sum()) / total_weight * total) / (total_weight / len(total))
    length = max(min_block_length, block_length(residual))
    return residual, long_run_variance(residual, length), max(len(total) / length - 1, 1.0)


def _between_run_variance(residual: Floats, runs: Integers) -> float:
    """Return the share's variance between the runs, numbered from 0."""
    sums = np.bincount(runs, weights=residual)
    return float((sums**2).sum()) * len(sums) / max(len(sums) - 1, 1) / len(residual) ** 2


def _exceeds_significantly(
    between_variance: float, within_variance: float, runs: Integers, freedom: float
) -> bool:
    count = int(runs[-1]) + 1
    return (
        count > 1
        and within_variance > 0
        and between_variance / within_variance > fisher_f(count - 1, freedom)
    )
