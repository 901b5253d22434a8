# SPDX-License-Identifier: Apache-2.0
"""Where the warm-up ends, and whether the rest still moves.

Sources: K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
Simulation 69 (1997), and its form with batches of five, MSER-5 (White, Cobb, Spratt 2000).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tritonctl.loadtest.analysis.binomial import student
from tritonctl.loadtest.analysis.columns import Floats

_BATCH = 5
_SMOOTH = 5  # batches whose median says where the series is
_CENTRAL = (0.1, 0.9)
_BLOCKS = 20
_LEAST = 2 * _BLOCKS
# A trend is reported when it is both certain and large enough to matter.
_CERTAINTY = 1.4  # times the 95 % bound of Student's t: about 99 %
_MATTERS = 0.1
# A rise is extrapolated over this many lengths of the measured window.
_HORIZON = 10


@dataclass(frozen=True)
class Trend:
    """Whether a series has no trend, in words. `growth`: of one upwards, how much of its level it
    gains in the time that was measured (0.5: half as much again)."""

    stationary: bool
    why: str
    growth: float = 0.0


def outgrows(value: float, limit: float, growth: float) -> bool:
    """Whether a latency passes its limit if it rises as it did for ten times as long.

    A queue that fills does; the clock of a cooling processor, far below the limit, does not.
    """
    return growth > 0 and value * (1 + _HORIZON * growth) > limit


def warm_up(values: Floats) -> int:
    """How many values at the beginning are warm-up, at most half of them.

    MSER-5 alone would also cut everything up to a stall in the first half, and with it the tail
    that the test is there to find. So the cut ends where the series first reaches what it is like
    later: a run that begins as it goes on has no warm-up.
    """
    batches = len(values) // _BATCH
    if batches < 2 * _SMOOTH:
        return 0
    means = values[: batches * _BATCH].reshape(batches, _BATCH).mean(axis=1)
    cut = mser(means)
    low, high = np.quantile(means[max(cut, batches // 2) :], _CENTRAL)
    windows = np.lib.stride_tricks.sliding_window_view(means, _SMOOTH)
    medians = np.median(windows, axis=1)
    reached = np.flatnonzero((medians >= low) & (medians <= high))
    return _BATCH * min(cut, int(reached[0]) if len(reached) else cut)


def mser(values: Floats) -> int:
    """The truncation, at most half, that leaves the mean with the smallest standard error."""
    n = len(values)
    left = np.arange(n, 0, -1)
    sums = np.cumsum(values[::-1])[::-1]
    squares = np.cumsum(((values - values.mean()) ** 2)[::-1])[::-1]
    deviation = squares - left * (sums / left - values.mean()) ** 2
    return int(np.argmin((deviation / left**2)[: n // 2 + 1]))


def trend(values: Floats) -> Trend:
    """Compare the halves of a series by the medians of 20 blocks, in milliseconds of the words.

    Welch's t on block medians, whose remaining correlation widens the error: a queue wanders.
    """
    if len(values) < _LEAST:
        return Trend(True, f"too few requests to see a trend: {len(values)}")
    blocks = np.array([np.median(block) for block in np.array_split(values, _BLOCKS)])
    halves = np.split(blocks, 2)
    first, second = (float(half.mean()) for half in halves)
    change, error = second - first, _error(halves)
    change_words = (
        f"from {first / 1000:.4g} ms in its first half to {second / 1000:.4g} ms in its second"
    )
    bound = _CERTAINTY * student(_BLOCKS - 2) * error
    if abs(change) <= bound or abs(change) <= _MATTERS * max(first, 1.0):
        return Trend(True, "response times keep their level")
    if change > 0:
        why = f"response times rose {change_words}: the queue grows, or something fills"
        return Trend(False, why, growth=2 * change / max(first, 1.0))
    return Trend(False, f"response times fell {change_words}: the run is still warming up")


def _error(halves: list[Floats]) -> float:
    """The standard error of the halves' difference, blocks taken for an AR(1) process."""
    centred = [half - half.mean() for half in halves]
    squares = sum(float((c**2).sum()) for c in centred)
    products = sum(float((c[1:] * c[:-1]).sum()) for c in centred)
    carried = min(max(products / squares, 0.0), 0.8) if squares > 0 else 0.0
    variance = squares / (_BLOCKS - 2)
    return math.sqrt(variance * 2 / (_BLOCKS / 2) * (1 + carried) / (1 - carried))
