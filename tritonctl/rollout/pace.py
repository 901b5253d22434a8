# SPDX-License-Identifier: Apache-2.0
"""Whether the candidate makes fewer tokens a second, while it makes any.

Of each moment and version one figure: the time between tokens, all of them together. A few long
pauses, which the test of single times hardly sees, count in it as long as they last. Tokens of one
stream go together, so a moment is as good as it has requests, not tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tritonctl.rollout.phases import Mean, OwnPhases, Phases

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
    """Bets each moment, against none and against each length of phases; all must be won.

    slow_phases: as for `Slower`.
    """

    KEPT = ("_alike", "_phases", "_spread", "_before")

    def __init__(self, slow_phases: float) -> None:
        self._alike = Phases(1.0, 0.0)
        self._phases = OwnPhases(slow_phases)
        self._spread = [0.0, 0.0]  # pairs of stable's moments, sum of squares of one request
        self._before = [0.0, 0.0]  # stable's last figure, and its requests

    @property
    def evidence(self) -> float:
        """An e-value against "no fewer tokens a second"."""
        return min(self._alike.evidence, self._phases.evidence)

    def update(self, candidate: Tokens | None, stable: Tokens) -> None:
        """A moment. candidate: None: it does not count, as while it warms up."""
        theirs = stable.mean
        if self._spread[0] >= _LEAST:
            variance = max(_LEAST_VARIANCE, self._spread[1] / self._spread[0])
            mine = candidate.mean if candidate is not None else None
            if mine is not None and theirs is not None:
                furthest = _FURTHEST * math.sqrt(variance)
                near = max(theirs[0] - furthest, min(theirs[0] + furthest, mine[0]))
                mine = near, mine[1]
            self._alike.update(mine, theirs, variance)
            self._phases.update(mine, theirs, variance)
        if theirs is None:
            return
        before, requests = self._before
        if requests:
            square = (theirs[0] - before) ** 2 / (1 / theirs[1] + 1 / requests)
            self._spread = [self._spread[0] + 1, self._spread[1] + square]
        self._before = [theirs[0], float(theirs[1])]
