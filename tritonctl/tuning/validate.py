# SPDX-License-Identifier: Apache-2.0
"""Measures the winner again on a fresh server: below, at and above its rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tritonctl.tuning.outcome import Budget, Standing
from tritonctl.tuning.search import Measure
from tritonctl.tuning.trials import Asked, Trial

FACTORS = (0.8, 1.0, 1.2)
_REPEAT = 2000  # arrivals that neither the search nor the duel has seen
_COLLAPSE = 0.5
_STEP_DOWN = 0.9


@dataclass(frozen=True)
class Validation:
    """Trials at 0.8, 1.0 and 1.2 times a rate."""

    rate: float
    trials: tuple[Trial, ...]

    @property
    def holds(self) -> bool:
        """Whether the service meets the SLO below and at the rate."""
        below, at, _ = self.trials
        return below.leans_met and at.leans_met

    @property
    def sheds(self) -> bool:
        """Whether, above the rate, the service still answers at least half as many in time."""
        _, at, beyond = self.trials
        good = at.figures.get("goodput_rps") or 0.0
        return float(beyond.figures.get("goodput_rps") or 0.0) >= _COLLAPSE * float(good)

    def to_record(self) -> dict[str, Any]:
        """As plain data."""
        trials = [trial.to_record() for trial in self.trials]
        return {"rate": self.rate, "holds": self.holds, "sheds": self.sheds, "trials": trials}


def validate(best: Standing, measure: Measure, budget: Budget, *, tries: int = 3) -> Validation:
    """Measure all three; lower a rate that does not hold by a tenth, at most `tries` times."""
    rate = best.met
    for attempt in range(tries):
        trials = [
            measure(
                Asked(
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


def validated(best: Standing, validation: Validation) -> Standing:
    """The winner with the rate that held, which may be lower than the search's."""
    if validation.rate == best.met:
        return best
    return replace(best, met=validation.rate, trial=validation.trials[1])
