# SPDX-License-Identifier: Apache-2.0
"""Compute exact intervals of shares and percentiles from the incomplete beta function.

Sources: C. Clopper, E. Pearson, "The use of confidence or fiducial limits illustrated in the case
of the binomial", Biometrika 26 (1934); E. Korn, B. Graubard, "Confidence intervals for proportions
with small expected number of positive counts estimated from survey data", Survey Methodology 24
(1998), for the fractional sample sizes of correlated samples; the continued fraction: W. Lentz'
method as in Numerical Recipes, 6.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LEVEL = 0.95
_TINY = 1e-300
_TOLERANCE = 1e-12
_HALVINGS = 34  # to 6e-11 of the bracket


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(scale + a * math.log(x) + b * math.log1p(-x)) * _continued_fraction(a, b, x) / a


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction by Lentz' method, in O(sqrt(max(a, b))) rounds."""
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or _TINY)
    value, m = d, 0
    while True:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / ((1 + term * d) or _TINY)
            c = (1 + term / c) or _TINY
            value *= c * d
        if abs(c * d - 1) < _TOLERANCE:
            return value


def _find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Find the root of an increasing function by bisection."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2


def share_bounds(over: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of `over` out of `n`; both may be fractional."""
    tail = (1 - level) / 2
    low, high = 0.0, 1.0
    if over > 0:
        low = _find_root(lambda p: incomplete_beta(over, n - over + 1, p) - tail, 0, 1)
    if over < n:
        high = _find_root(lambda p: incomplete_beta(over + 1, n - over, p) - 1 + tail, 0, 1)
    return low, high


def rank_bounds(q: float, n: float, level: float = LEVEL) -> tuple[float | None, float | None]:
    """Return the shares of the sorted sample that bound the percentile `q`.

    The inverse of `share_bounds`: every value whose share beyond it may be 1 - q. A bound is None
    if even the smallest or largest of `n` values does not bound the percentile.
    """
    tail = (1 - level) / 2
    low = high = None
    if incomplete_beta(1, n, q) > 1 - tail:
        low = _find_root(lambda k: 1 - tail - incomplete_beta(k + 1, n - k, q), 0, n) / n
    if incomplete_beta(n, 1, q) < tail:
        high = _find_root(lambda k: tail - incomplete_beta(k, n - k + 1, q), 0, n) / n
    return low, high


def student_t(freedom: float, level: float = LEVEL) -> float:
    """Return the two-sided quantile of Student's t."""
    x = _find_root(lambda x: incomplete_beta(freedom / 2, 0.5, x) - (1 - level), 0, 1)
    return math.sqrt(freedom * (1 - x) / max(x, _TINY))


def fisher_f(first: float, second: float) -> float:
    """Return the 95th percentile of Fisher's F with these degrees of freedom."""
    x = _find_root(lambda x: incomplete_beta(first / 2, second / 2, x) - LEVEL, 0, 1)
    return second * x / (first * max(1 - x, _TINY))
