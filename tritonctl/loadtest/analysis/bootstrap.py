# SPDX-License-Identifier: Apache-2.0
"""How much a correlated sample of requests is worth, by the circular block bootstrap.

Neighbouring requests wait in the same queue: n of them know less than n independent ones. Blocks of
neighbours keep that dependence. The bootstrap's variance of a mean is known in closed form (it is
what infinitely many resamples would give), so nothing is drawn and nothing depends on a seed. The
variance says how many independent requests the sample is worth; exact binomial bounds for so many
(binomial.py) then give the intervals of shares and, inverted, of percentiles. Inverting makes both
agree: the interval of P99 lies below a limit exactly when the interval of the share beyond the
limit lies below 1 %.

Sources: D. Politis, J. Romano, "A circular block-resampling procedure for stationary data" (1992);
block length: D. Politis, H. White, "Automatic block-length selection for the dependent bootstrap",
Econometric Reviews 23 (2004), with the correction of A. Patton, D. Politis, H. White (2009).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tritonctl.loadtest.analysis.binomial import LEVEL, fisher, share_bounds, student
from tritonctl.loadtest.analysis.columns import Floats, Integers

_NORMAL = 1.959964
_LUGSAIL = 4  # blocks of this length show dependence
_FEW = 10  # exceedances, from which their clustering can be seen


@dataclass(frozen=True)
class Share:
    """A share with its interval; `effective`: how many independent requests it is worth."""

    share: float
    low: float
    high: float
    effective: float


def block_length(values: Floats) -> int:
    """Politis and White's length for the circular block bootstrap: 1 for independent values."""
    n = len(values)
    covariance = _autocovariance(values - values.mean()) if n > 1 else np.zeros(1)
    if covariance[0] <= 0:
        return 1
    lags = min(_last_lag(covariance / covariance[0], n), len(covariance) - 1)
    k = np.arange(1, lags + 1)
    # The flat-top window: whole to the half, then falling.
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
    """Twice the lag after which the correlation stays within its noise for a while."""
    quiet = np.abs(correlation[1:]) < 2 * math.sqrt(math.log10(n) / n)
    run = _quiet_lags(n)
    for lag in range(len(quiet) - run + 1):
        if quiet[lag : lag + run].all():
            return 2 * max(lag, 1)
    loud = np.flatnonzero(~quiet)
    return 2 * (int(loud[-1]) + 1 if len(loud) else 1)


def mean_variance(values: Floats, length: int) -> float:
    """The variance of the mean of `values` under the circular block bootstrap.

    Corrected for the mean having been estimated from as many blocks.
    """
    n = len(values)
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate((values, values[: length - 1])))))
    blocks = sums[length:] - sums[:-length] - length * values.mean()
    count = n / length
    correction = count / (count - 1) if count > 1 else 1.0
    return float((blocks**2).mean() / length / n * correction)


def long_run_variance(values: Floats, length: int) -> float:
    """The variance of the mean, with what blocks of that length cannot see made up for.

    Blocks cut the dependence at their ends and so see too little of it; half as long ones see less
    by about as much again ("lugsail": D. Vats, J. Flegal, "Lugsail lag windows for estimating
    time-average covariance matrices", Biometrika 109, 2022).
    """
    variance = mean_variance(values, length)
    if length < _LUGSAIL:
        return variance
    return max(variance, 2 * variance - mean_variance(values, length // 2))


def share_interval(
    over: Floats,
    total: Floats,
    *,
    usual: Floats | None = None,
    runs: Integers | None = None,
    bulk: int = 1,
    level: float = LEVEL,
) -> Share:
    """The share of `total` that is `over`, both per request in the order of the plan.

    usual: what is over a lower limit, whose clustering is taken where `over` is too rare to show
    its own. runs: which run each request belongs to, for several runs put together. bulk: the
    least block length, that of the durations themselves.
    """
    share = float(over.sum() / total.sum())
    effective = effective_size(over, total, runs=runs, bulk=bulk)
    if usual is not None and np.count_nonzero(over) < _FEW:
        # Only the dependence is taken over, and only if it is worse.
        effective = min(effective, effective_size(usual, total, runs=runs, bulk=bulk))
    low, high = share_bounds(share * effective, effective, level)
    return Share(share, low, high, effective)


def effective_size(
    over: Floats, total: Floats, *, runs: Integers | None = None, bulk: int = 1
) -> float:
    """How many independent observations know the share as well as these requests do."""
    whole = float(total.sum())
    share = float(over.sum()) / whole
    residual, variance, freedom = _within_runs(over, total, bulk)
    if runs is not None:
        between = _between_runs(residual, runs)
        if _exceeds(between, variance, runs, freedom):
            variance, freedom = between, float(runs[-1])
    if variance <= 0:
        return whole
    effective = share * (1 - share) / variance
    # The variance is itself estimated, from few blocks when they are long.
    return min(whole, max(effective * (_NORMAL / student(freedom)) ** 2, 1.0))


def runs_differ(over: Floats, total: Floats, runs: Integers, bulk: int = 1) -> bool:
    """Whether the share varies between runs by significantly more than within them."""
    residual, variance, freedom = _within_runs(over, total, bulk)
    return _exceeds(_between_runs(residual, runs), variance, runs, freedom)


def _within_runs(over: Floats, total: Floats, bulk: int) -> tuple[Floats, float, float]:
    """The share's residuals, its variance as neighbours show it, and the degrees of freedom."""
    whole = float(total.sum())
    # The ratio's residual: requests have different numbers of tokens.
    residual = (over - float(over.sum()) / whole * total) / (whole / len(total))
    length = max(bulk, block_length(residual))
    return residual, long_run_variance(residual, length), max(len(total) / length - 1, 1.0)


def _between_runs(residual: Floats, runs: Integers) -> float:
    """The share's variance as the runs, numbered from 0, show it."""
    sums = np.bincount(runs, weights=residual)
    return float((sums**2).sum()) * len(sums) / max(len(sums) - 1, 1) / len(residual) ** 2


def _exceeds(between: float, within: float, runs: Integers, freedom: float) -> bool:
    count = int(runs[-1]) + 1
    return count > 1 and within > 0 and between / within > fisher(count - 1, freedom)
