# SPDX-License-Identifier: Apache-2.0
"""Find the highest rate that meets the SLO: bracket by doubling, then bisect. Pure.

It measures one server with fixed settings. The tuner's search (`tritonctl/tuning/search.py`) starts
at any rate, goes both ways and shares one budget among many settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

from tritonctl.loadtest.analysis.summary import MET, UNDECIDED


@dataclass(frozen=True)
class CapacityTrial:
    """A run at one rate."""

    rate: float
    verdict: str
    likely: bool = False  # the point estimates meet the SLO
    figures: Mapping[str, float | None] = field(default_factory=dict)
    folder: Path | None = None
    note: str = ""
    valid: bool = True  # the generator kept up; otherwise it may have caused a miss

    @property
    def holds(self) -> bool:
        """Whether the search continues at higher rates."""
        return self.verdict == MET or (self.verdict == UNDECIDED and self.likely)


Measure = Callable[[float], CapacityTrial | None]


@dataclass(frozen=True)
class Capacity:
    """The result of a capacity search."""

    rate: float | None  # the highest that held; None: not even the lowest
    missed_at: float | None  # the lowest missed rate above `rate`, if any
    end_reason: str  # found, budget, interrupted, highest, lowest or server gone
    trials: tuple[CapacityTrial, ...]

    @property
    def best(self) -> CapacityTrial | None:
        """The last trial at that rate."""
        return next((t for t in reversed(self.trials) if t.rate == self.rate), None)


def find_capacity(
    measure: Measure,
    *,
    lowest: float,
    highest: float,
    precision: float = 0.1,
    budget_seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Capacity:
    """Search between two rates until the capacity is known to a share of `precision`.

    `precision` is 0.01 or more. `measure` may return None to end the search. A trial starts only if
    the longest one so far would fit into the budget. The missed rate that bounds the capacity is
    measured twice: a hiccup of the machine can make a trial miss, but not hold.
    """
    search = _Bisection(measure, budget_seconds, clock)
    end_reason = search.run(lowest, highest, precision)
    return Capacity(search.held, search.missed, end_reason, tuple(search.trials))


class _Bisection:
    def __init__(self, measure: Measure, budget: float | None, clock: Callable[[], float]) -> None:
        self._measure = measure
        self._budget = budget
        self._clock = clock
        self._started_at = clock()
        self._max_trial_seconds = 0.0
        self.trials: list[CapacityTrial] = []
        self.held: float | None = None
        self.missed: float | None = None
        self._repeated_rates = set[float]()

    def run(self, lowest: float, highest: float, precision: float) -> str:
        """Run the search and return why it ended."""
        rate = lowest
        while True:
            if self.trials and self._exceeds_budget():
                return "budget"
            if not self._try_rate(rate):
                return "interrupted"
            if self.missed is None and self.held is not None and self.held >= highest:
                return "highest"
            if self.missed is None or not self._is_precise(self.missed, precision):
                rate = self._next_rate(highest)
            elif self.missed in self._repeated_rates or self._exceeds_budget():
                return "lowest" if self.held is None else "found"
            else:
                rate = self.missed
                self._repeated_rates.add(rate)

    def _is_precise(self, missed: float, precision: float) -> bool:
        return self.held is None or missed <= self.held * (1 + precision)

    def _try_rate(self, rate: float) -> bool:
        started_at = self._clock()
        trial = self._measure(rate)
        self._max_trial_seconds = max(self._max_trial_seconds, self._clock() - started_at)
        if trial is None:
            return False
        self.trials.append(trial)
        if trial.holds:
            self.held = rate
            above = (t.rate for t in self.trials if t.rate > rate and not t.holds)
            self.missed = min(above, default=None)
        else:
            self.missed = rate
        return True

    def _next_rate(self, highest: float) -> float:
        held = self.held or 0.0
        if self.missed is None:
            return min(2 * held, highest)
        # Round to rates that can be typed; the bracket is far wider than the rounding.
        return float(f"{sqrt(held * self.missed):.4g}")

    def _exceeds_budget(self) -> bool:
        if self._budget is None:
            return False
        return self._clock() - self._started_at + self._max_trial_seconds > self._budget
