# SPDX-License-Identifier: Apache-2.0
"""Measure the winner again on a fresh server: below, at and above its rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tritonctl.tuning.outcome import RateBracket, SearchBudget
from tritonctl.tuning.search import Measure
from tritonctl.tuning.trials import TrialRequest, TuningTrial

FACTORS = (0.8, 1.0, 1.2)
_REPEAT = 2000  # arrivals unseen by search and duels
_MIN_GOODPUT_SHARE = 0.5
_STEP_DOWN = 0.9


@dataclass(frozen=True)
class Validation:
    """Trials at 0.8, 1.0 and 1.2 times a rate."""

    rate: float
    trials: tuple[TuningTrial, ...]

    @property
    def holds(self) -> bool:
        """Whether the service meets the SLO below and at the rate."""
        below, at, _ = self.trials
        return below.leans_met and at.leans_met

    @property
    def sheds(self) -> bool:
        """Whether the goodput above the rate is at least half of the goodput at the rate."""
        _, at, above = self.trials
        good = at.figures.get("goodput_rps") or 0.0
        return float(above.figures.get("goodput_rps") or 0.0) >= _MIN_GOODPUT_SHARE * float(good)

    def to_record(self) -> dict[str, Any]:
        """Return the validation as plain data."""
        trials = [trial.to_record() for trial in self.trials]
        return {"rate": self.rate, "holds": self.holds, "sheds": self.sheds, "trials": trials}


def validate(
    best: RateBracket, measure: Measure, budget: SearchBudget, *, tries: int = 3
) -> Validation:
    """Measure all three rates; if they do not hold, retry at 90 %, at most `tries` times."""
    rate = best.met
    for attempt in range(tries):
        trials = [
            measure(
                TrialRequest(
                    dict(best.settings),
                    float(f"{rate * factor:.4g}"),
                    budget.seconds_for(rate * factor, budget.duel),
                    _REPEAT + attempt,
                )
            )
            for factor in FACTORS
        ]
        validation = Validation(rate, tuple(trials))
        if validation.holds:
            break
        rate *= _STEP_DOWN
    return validation


def confirmed_bracket(best: RateBracket, validation: Validation) -> RateBracket:
    """Return the winner with the confirmed rate, which may be lower than the search's."""
    if validation.rate == best.met:
        return best
    return replace(best, met=validation.rate, trial=validation.trials[1])
