# SPDX-License-Identifier: Apache-2.0
"""The winner once more, on a server that has just started: below, at and beyond its rate."""

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
    """Trials at 0.8, 1.0 and 1.2 times a rate. holds: at 0.8 for sure, at 1.0 most likely.

    sheds: beyond its rate the service still answers at least half as many in time.
    """

    rate: float
    trials: tuple[Trial, ...]

    @property
    def holds(self) -> bool:
        """Whether the rate can be promised."""
        below, at, _ = self.trials
        return below.leans_met and at.leans_met

    @property
    def sheds(self) -> bool:
        """Whether overload is survived."""
        _, at, beyond = self.trials
        good = at.figures.get("goodput_rps") or 0.0
        return float(beyond.figures.get("goodput_rps") or 0.0) >= _COLLAPSE * float(good)

    def to_record(self) -> dict[str, Any]:
        """As plain data."""
        trials = [trial.to_record() for trial in self.trials]
        return {"rate": self.rate, "holds": self.holds, "sheds": self.sheds, "trials": trials}


def validate(best: Standing, measure: Measure, budget: Budget, *, tries: int = 3) -> Validation:
    """Measure the three; a rate that does not hold is lowered by a tenth, at most `tries` times."""
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
        found = Validation(rate, tuple(trials))
        if found.holds:
            break
        rate *= _STEP_DOWN
    return found


def validated(best: Standing, validation: Validation) -> Standing:
    """The winner with the rate that held, which may be lower than what the search found."""
    if validation.rate == best.met:
        return best
    return replace(best, met=validation.rate, trial=validation.trials[1])
