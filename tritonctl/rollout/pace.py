# SPDX-License-Identifier: Apache-2.0
"""Whether the candidate makes fewer tokens a second, while it makes any.

Of each moment and version one figure: the time between tokens, all of them together. A few long
pauses, which the test of single times hardly sees, count in it as long as they last. Tokens of one
stream go together, so a moment is as good as it has requests, not tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tritonctl.rollout.phases import SHARES, Mean, OwnPhases, Phases
from tritonctl.rollout.stretches import Stretches, Suspicion

_LEAST = 10  # pairs of moments, before it is known how much they vary
_LEAST_VARIANCE = 1e-4  # 1 %
_FURTHEST = 3.0  # sd of one request from stable: what is odder counts as that odd


@dataclass(frozen=True)
class Tokens:
    """Of one version in a moment: tokens but the first ones, the seconds between them, requests."""

    tokens: int
    seconds: float
    requests: int

    @property
    def mean(self) -> Mean | None:
        """Logarithm of the seconds for a token, and how many requests it is from."""
        if not self.tokens or self.seconds <= 0:
            return None
        return math.log(self.seconds / self.tokens), max(1, self.requests)


class Pace:
    """Bets each moment, against none and against each kind of phases; all must be won.

    slow_seconds: as for `Slower`.
    """

    KEPT = ("_alike", "_phases", "_stretches", "_suspicion", "_spread", "_before")

    def __init__(self, slow_seconds: float) -> None:
        self._alike = Phases(1.0, 0.0)
        self._phases = OwnPhases(slow_seconds)
        self._stretches = Stretches(SHARES, slow_seconds)
        self._suspicion = Suspicion(SHARES, slow_seconds)
        self._spread = [0.0, 0.0]  # pairs of stable's moments, sum of squares of one request
        self._before = [0.0, 0.0]  # stable's last figure, and its requests

    @property
    def evidence(self) -> float:
        """An e-value against "no fewer tokens a second"."""
        beyond = min(self._alike.evidence, self._stretches.evidence)
        return beyond if self._suspicion.lasts else min(beyond, self._phases.evidence)

    @property
    def slow_for(self) -> int:
        """As of `Slower`."""
        return self._suspicion.moments

    def update(self, candidate: Tokens | None, stable: Tokens) -> None:
        """A moment. candidate: None: it does not count, as while it warms up."""
        theirs = stable.mean
        factors: Sequence[float] = ()
        if self._spread[0] >= _LEAST:
            variance = max(_LEAST_VARIANCE, self._spread[1] / self._spread[0])
            mine = candidate.mean if candidate is not None else None
            if mine is not None and theirs is not None:
                furthest = _FURTHEST * math.sqrt(variance)
                near = max(theirs[0] - furthest, min(theirs[0] + furthest, mine[0]))
                mine = near, mine[1]
            factors = self._alike.update(mine, theirs, variance)
            self._phases.update(mine, theirs, variance)
        self._stretches.update(factors)
        self._suspicion.update(factors)
        if theirs is None:
            return
        before, requests = self._before
        if requests:
            square = (theirs[0] - before) ** 2 / (1 / theirs[1] + 1 / requests)
            self._spread = [self._spread[0] + 1, self._spread[1] + square]
        self._before = [theirs[0], float(theirs[1])]
