# SPDX-License-Identifier: Apache-2.0
"""The highest rate that keeps the SLO: bracketed by doubling, then bisected. Pure.

For one server as it is. The tuner has its own search (`tritonctl/tuning/search.py`): it begins
anywhere, goes both ways, and shares one budget among many settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

from tritonctl.loadtest.analysis.summary import MET, UNDECIDED


@dataclass(frozen=True)
class Trial:
    """A run at one rate. `likely`: what an undecided one looks like, by its point estimates.

    valid: whether the generator kept up; where it did not, a miss may be its own.
    """

    rate: float
    verdict: str
    likely: bool = False
    figures: Mapping[str, float | None] = field(default_factory=dict)
    folder: Path | None = None
    note: str = ""
    valid: bool = True

    @property
    def holds(self) -> bool:
        """Whether the search goes up from here."""
        return self.verdict == MET or (self.verdict == UNDECIDED and self.likely)


Measure = Callable[[float], Trial | None]


@dataclass(frozen=True)
class Capacity:
    """`rate`: the highest that held (None: not even the lowest). `missed_at`: the lowest above it
    that did not (None: none was found). `ended`: found, budget, interrupted, highest, lowest or
    server gone.
    """

    rate: float | None
    missed_at: float | None
    ended: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
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
    """Search between two rates until the answer is known to a share of `precision`.

    `precision` is 0.01 or more. `measure` may return None to end the search. No trial is begun
    that would go over the budget if it took as long as the longest before it. The rate that bounds
    the answer is asked twice: a hiccup of the machine can make any trial miss, and none hold.
    """
    search = _Search(measure, budget_seconds, clock)
    ended = search.run(lowest, highest, precision)
    return Capacity(search.held, search.missed, ended, tuple(search.trials))


class _Search:
    def __init__(self, measure: Measure, budget: float | None, clock: Callable[[], float]) -> None:
        self._measure = measure
        self._budget = budget
        self._clock = clock
        self._began = clock()
        self._longest = 0.0
        self.trials: list[Trial] = []
        self.held: float | None = None
        self.missed: float | None = None
        self._twice = set[float]()

    def run(self, lowest: float, highest: float, precision: float) -> str:
        """Why it ended."""
        rate = lowest
        while True:
            if self.trials and self._too_late():
                return "budget"
            if not self._try(rate):
                return "interrupted"
            if self.missed is None and self.held is not None and self.held >= highest:
                return "highest"
            if self.missed is None or not self._closed(self.missed, precision):
                rate = self._next(highest)
            elif self.missed in self._twice or self._too_late():
                return "lowest" if self.held is None else "found"
            else:
                rate = self.missed
                self._twice.add(rate)

    def _closed(self, missed: float, precision: float) -> bool:
        return self.held is None or missed <= self.held * (1 + precision)

    def _try(self, rate: float) -> bool:
        began = self._clock()
        trial = self._measure(rate)
        self._longest = max(self._longest, self._clock() - began)
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

    def _next(self, highest: float) -> float:
        held = self.held or 0.0
        if self.missed is None:
            return min(2 * held, highest)
        # Rates that can be typed; the bracket is far wider than the rounding.
        return float(f"{sqrt(held * self.missed):.4g}")

    def _too_late(self) -> bool:
        if self._budget is None:
            return False
        return self._clock() - self._began + self._longest > self._budget
