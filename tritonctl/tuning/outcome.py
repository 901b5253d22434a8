# SPDX-License-Identifier: Apache-2.0
"""The input of a search, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tritonctl.tuning.trials import Settings, Trial, Value


class Knob(Protocol):
    """What the search needs of a knob: its candidates in natural order, and today's value."""

    @property
    def name(self) -> str:
        """Unique."""

    @property
    def values(self) -> Sequence[Value]:
        """Candidates, today's value among them."""

    @property
    def base(self) -> Value:
        """Today's value."""


@dataclass(frozen=True)
class Move:
    """The best settings so far with one knob turned."""

    knob: str
    value: Value
    upwards: bool
    settings: Settings


@dataclass(frozen=True)
class Budget:
    """The limits of a search. Rates in requests per second; times in seconds.

    precision: of a capacity, as a share. race and duel: the requests of one measurement, which
    takes between `shortest` and `longest` seconds.
    """

    seconds: float
    start: float
    lowest: float = 0.05
    highest: float = 100_000.0
    precision: float = 0.05
    race: int = 600
    duel: int = 1500
    shortest: float = 6.0
    longest: float = 60.0

    def seconds_for(self, rate: float, requests: int) -> float:
        """How long that many requests take at a rate, within bounds."""
        return round(min(self.longest, max(self.shortest, requests / rate)), 1)


@dataclass(frozen=True)
class Standing:
    """Settings with the highest rate that they met (0: none) and the lowest that they missed."""

    settings: Settings
    met: float
    missed: float
    trial: Trial | None = None  # the one at `met`; without one the one at `missed`


@dataclass(frozen=True)
class Step:
    """Settings that the search tried, for people to read. knob: None when several changed."""

    knob: str | None
    settings: Settings
    rate: float
    won: bool
    trial: Trial
    against: Trial | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search. better: beyond noise; `duels`, pairs of new and old, prove it."""

    before: Standing
    best: Standing
    better: bool
    why: str
    steps: tuple[Step, ...]
    duels: tuple[tuple[Trial, Trial], ...]
    trials: tuple[Trial, ...]
    complete: bool  # every move was tried before the budget ended
