# SPDX-License-Identifier: Apache-2.0
"""Exact intervals of shares and percentiles, from the incomplete beta function.

Sources: C. Clopper, E. Pearson, "The use of confidence or fiducial limits illustrated in the case
of the binomial", Biometrika 26 (1934); E. Korn, B. Graubard, "Confidence intervals for proportions
with small expected number of positive counts estimated from survey data", Survey Methodology 24
(1998), for sample sizes that are no whole numbers because the sample is correlated; the continued
fraction: W. Lentz' method as in Numerical Recipes, 6.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LEVEL = 0.95
_TINY = 1e-300
_CLOSE = 1e-12
_HALVINGS = 34  # to 6e-11 of the bracket


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(scale + a * math.log(x) + b * math.log1p(-x)) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz' evaluation of the continued fraction; it ends after O(sqrt(max(a, b))) rounds."""
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
        if abs(c * d - 1) < _CLOSE:
            return value


def _crossing(rises: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function changes its sign."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rises(middle) > 0 else (middle, high)
    return (low + high) / 2


def share_bounds(over: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share: `over` of `n`, either may be fractional."""
    tail = (1 - level) / 2
    low, high = 0.0, 1.0
    if over > 0:
        low = _crossing(lambda p: incomplete_beta(over, n - over + 1, p) - tail, 0, 1)
    if over < n:
        high = _crossing(lambda p: incomplete_beta(over + 1, n - over, p) - 1 + tail, 0, 1)
    return low, high


def rank_bounds(q: float, n: float, level: float = LEVEL) -> tuple[float | None, float | None]:
    """Between which shares of the sorted sample the percentile `q` lies with that confidence.

    The inverse of `share_bounds`: every value whose share beyond it may be 1 - q. None: even the
    smallest or largest of `n` values is no bound.
    """
    tail = (1 - level) / 2
    low = high = None
    if incomplete_beta(1, n, q) > 1 - tail:
        low = _crossing(lambda k: 1 - tail - incomplete_beta(k + 1, n - k, q), 0, n) / n
    if incomplete_beta(n, 1, q) < tail:
        high = _crossing(lambda k: tail - incomplete_beta(k, n - k + 1, q), 0, n) / n
    return low, high


def student(freedom: float, level: float = LEVEL) -> float:
    """Student's t that this share lies within, two-sided."""
    x = _crossing(lambda x: incomplete_beta(freedom / 2, 0.5, x) - (1 - level), 0, 1)
    return math.sqrt(freedom * (1 - x) / max(x, _TINY))


def fisher(first: float, second: float) -> float:
    """The 95th percentile of Fisher's F with these degrees of freedom."""
    x = _crossing(lambda x: incomplete_beta(first / 2, second / 2, x) - LEVEL, 0, 1)
    return second * x / (first * max(1 - x, _TINY))
