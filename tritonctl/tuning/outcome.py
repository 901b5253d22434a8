# SPDX-License-Identifier: Apache-2.0
"""The input of a search, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tritonctl.tuning.trials import Settings, TuningTrial, Value


class SearchKnob(Protocol):
    """The search's view of a knob."""

    @property
    def name(self) -> str:
        """The unique name."""

    @property
    def values(self) -> Sequence[Value]:
        """The candidates in natural order, including the current value."""

    @property
    def base(self) -> Value:
        """The current value."""


@dataclass(frozen=True)
class Move:
    """The best settings so far with one knob changed."""

    knob: str
    value: Value
    upwards: bool
    settings: Settings


@dataclass(frozen=True)
class SearchBudget:
    """The limits of a search. Rates in requests per second, times in seconds."""

    seconds: float
    start: float
    lowest: float = 0.05
    highest: float = 100_000.0
    precision: float = 0.05  # of a capacity, as a share
    race: int = 600  # requests of one measurement
    duel: int = 1500  # requests of one side-by-side measurement
    shortest: float = 6.0  # of one measurement
    longest: float = 60.0

    def seconds_for(self, rate: float, requests: int) -> float:
        """Return the duration of a number of requests at a rate, within the bounds."""
        return round(min(self.longest, max(self.shortest, requests / rate)), 1)


@dataclass(frozen=True)
class RateBracket:
    """Settings with the rates that bracket their capacity."""

    settings: Settings
    met: float  # the highest rate that met the SLO; 0: none
    missed: float  # the lowest rate that missed it
    trial: TuningTrial | None = None  # at `met`, else at `missed`


@dataclass(frozen=True)
class SearchStep:
    """A step of the search, for display."""

    knob: str | None  # None if several changed
    settings: Settings
    rate: float
    won: bool
    trial: TuningTrial
    champion_trial: TuningTrial | None = None


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of a search."""

    baseline: RateBracket
    best: RateBracket
    better: bool  # beyond noise, proven by `duels`
    reason: str
    steps: tuple[SearchStep, ...]
    duels: tuple[tuple[TuningTrial, TuningTrial], ...]  # (new, old) settings
    trials: tuple[TuningTrial, ...]
    complete: bool  # all moves were tried within the budget
