# SPDX-License-Identifier: Apache-2.0
"""Find the end of the warm-up, and whether the remaining response times have a trend.

Sources: K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
Simulation 69 (1997), and its form with batches of five, MSER-5 (White, Cobb, Spratt 2000).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tritonctl.loadtest.analysis.binomial import student_t
from tritonctl.loadtest.analysis.columns import Floats

_BATCH = 5
_SMOOTH = 5  # batches per running median
_CENTRAL = (0.1, 0.9)
_BLOCKS = 20
_MIN_REQUESTS = 2 * _BLOCKS
# A trend counts when it is both certain and large enough to matter.
_CERTAINTY = 1.4  # times the 95 % bound of Student's t: about 99 %
_MIN_CHANGE = 0.1
# A rise is extrapolated over this many window lengths.
_HORIZON = 10


@dataclass(frozen=True)
class Trend:
    """The trend of a series."""

    stationary: bool
    description: str
    growth: float = 0.0  # rise over the series as a share of its level (0.5: by half)


def will_exceed(value: float, limit: float, growth: float) -> bool:
    """Whether a latency exceeds its limit if its rise continues for ten window lengths.

    A filling queue does; a processor's changing clock, far below the limit, does not.
    """
    return growth > 0 and value * (1 + _HORIZON * growth) > limit


def warm_up_length(values: Floats) -> int:
    """Return the number of warm-up values at the start, at most half of them.

    MSER-5 alone would also cut everything up to a stall in the first half, and with it the tail
    that the test must find. So the cut ends where the series first reaches its later level: a run
    that starts at that level has no warm-up.
    """
    batches = len(values) // _BATCH
    if batches < 2 * _SMOOTH:
        return 0
    means = values[: batches * _BATCH].reshape(batches, _BATCH).mean(axis=1)
    cut = mser_cut(means)
    low, high = np.quantile(means[max(cut, batches // 2) :], _CENTRAL)
    windows = np.lib.stride_tricks.sliding_window_view(means, _SMOOTH)
    medians = np.median(windows, axis=1)
    reached = np.flatnonzero((medians >= low) & (medians <= high))
    return _BATCH * min(cut, int(reached[0]) if len(reached) else cut)


def mser_cut(values: Floats) -> int:
    """Return the truncation, at most half, that minimises the standard error of the mean."""
    n = len(values)
    remaining = np.arange(n, 0, -1)
    sums = np.cumsum(values[::-1])[::-1]
    squares = np.cumsum(((values - values.mean()) ** 2)[::-1])[::-1]
    deviation = squares - remaining * (sums / remaining - values.mean()) ** 2
    return int(np.argmin((deviation / remaining**2)[: n // 2 + 1]))


def detect_trend(values: Floats) -> Trend:
    """Compare the halves of a series (microseconds) by the medians of 20 blocks.

    Welch's t on block medians; their remaining correlation widens the error, because queues drift.
    """
    if len(values) < _MIN_REQUESTS:
        return Trend(True, f"too few requests to see a trend: {len(values)}")
    blocks = np.array([np.median(block) for block in np.array_split(values, _BLOCKS)])
    halves = np.split(blocks, 2)
    first, second = (float(half.mean()) for half in halves)
    change, error = second - first, _difference_error(halves)
    change_words = (
        f"from {first / 1000:.4g} ms in its first half to {second / 1000:.4g} ms in its second"
    )
    bound = _CERTAINTY * student_t(_BLOCKS - 2) * error
    if abs(change) <= bound or abs(change) <= _MIN_CHANGE * max(first, 1.0):
        return Trend(True, "response times keep their level")
    if change > 0:
        description = f"response times rose {change_words}: the queue grows, or a resource fills up"
        return Trend(False, description, growth=2 * change / max(first, 1.0))
    return Trend(False, f"response times fell {change_words}: the run is still warming up")


def _difference_error(halves: list[Floats]) -> float:
    """Return the standard error of the halves' difference, with blocks as an AR(1) process."""
    centred = [half - half.mean() for half in halves]
    squares = sum(float((c**2).sum()) for c in centred)
    products = sum(float((c[1:] * c[:-1]).sum()) for c in centred)
    correlation = min(max(products / squares, 0.0), 0.8) if squares > 0 else 0.0
    variance = squares / (_BLOCKS - 2)
    return math.sqrt(variance * 2 / (_BLOCKS / 2) * (1 + correlation) / (1 - correlation))
