# SPDX-License-Identifier: Apache-2.0
"""Quantiles of a Prometheus histogram's increase, computed as `histogram_quantile` does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeQuantiles:
    """Quantiles of times in milliseconds."""

    n: int  # number of times
    mean_ms: float
    p50_ms: float
    p99_ms: float
    highest_ms: float  # last finite bound: a quantile equal to it may really be higher

    @classmethod
    def of(cls, buckets: Mapping[float, float], total: float, to_ms: float) -> TimeQuantiles | None:
        """Compute from cumulative counts by upper bound and the sum of all times; None if empty."""
        count = max(buckets.values(), default=0.0)
        bounds = [bound for bound in buckets if math.isfinite(bound)]
        if count <= 0 or not bounds:
            return None
        return cls(
            n=round(count),
            mean_ms=total / count * to_ms,
            p50_ms=quantile(buckets, 0.5) * to_ms,
            p99_ms=quantile(buckets, 0.99) * to_ms,
            highest_ms=max(bounds) * to_ms,
        )


def quantile(buckets: Mapping[float, float], q: float) -> float:
    """Interpolate a quantile within its bucket; at most the highest finite bound."""
    bounds = sorted(bound for bound in buckets if math.isfinite(bound))
    rank = q * max(buckets.values())
    lower, below = 0.0, 0.0
    for bound in bounds:
        # Increases of two scrapes may differ by a count: a bucket never holds less than the last.
        within = max(buckets[bound], below)
        if within >= rank:
            share = (rank - below) / (within - below) if within > below else 1.0
            return lower + (bound - lower) * share
        lower, below = bound, within
    return bounds[-1]
