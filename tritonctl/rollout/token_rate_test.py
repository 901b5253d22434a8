# SPDX-License-Identifier: Apache-2.0
"""Test whether the candidate generates fewer tokens per second while it generates any.

Each interval and version has one figure: the mean time between tokens. A few long pauses, which the
test of single times hardly notices, count with their full length. Tokens of one stream are
correlated, so an interval's weight is its number of requests, not of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tritonctl.rollout.drift_model import SHARES, DriftModel, DriftTest, Mean
from tritonctl.rollout.slow_spell_budget import SlowSpellBudget, SlowSpellDetector

_MIN_PAIRS = 10  # pairs of intervals before their variance counts as known
_MIN_VARIANCE = 1e-4  # 1 %
_MAX_DEVIATION = 3.0  # in sd of one request, from stable; larger deviations are clipped


@dataclass(frozen=True)
class TokenInterval:
    """The tokens of one version in an interval."""

    tokens: int  # without the first token of each request
    seconds: float  # sum of the times between tokens
    requests: int

    @property
    def mean(self) -> Mean | None:
        """The logarithm of the seconds per token, and the number of requests."""
        if not self.tokens or self.seconds <= 0:
            return None
        return math.log(self.seconds / self.tokens), max(1, self.requests)


class TokenRateTest:
    """One bet per interval, without drift and with each kind of drift; all must win.

    slow_seconds: as for `LatencyTest`.
    """

    PERSISTED = ("_alike", "_phases", "_stretches", "_suspicion", "_spread", "_before")

    def __init__(self, slow_seconds: float) -> None:
        self._alike = DriftTest(1.0, 0.0)
        self._phases = DriftModel(slow_seconds)
        self._stretches = SlowSpellBudget(SHARES, slow_seconds)
        self._suspicion = SlowSpellDetector(SHARES, slow_seconds)
        self._spread = [0.0, 0.0]  # pairs of stable's intervals, sum of squares per request
        self._before = [0.0, 0.0]  # stable's last figure, and its requests

    @property
    def evidence(self) -> float:
        """An e-value against "no fewer tokens per second"."""
        beyond = min(self._alike.evidence, self._stretches.evidence)
        return beyond if self._suspicion.is_lasting else min(beyond, self._phases.evidence)

    @property
    def slow_for(self) -> int:
        """As `LatencyTest.slow_for`."""
        return self._suspicion.slow_intervals

    def update(self, candidate: TokenInterval | None, stable: TokenInterval) -> None:
        """Add an interval. candidate: None: it does not count, for example during warm-up."""
        stable_mean = stable.mean
        factors: Sequence[float] = ()
        if self._spread[0] >= _MIN_PAIRS:
            variance = max(_MIN_VARIANCE, self._spread[1] / self._spread[0])
            candidate_mean = candidate.mean if candidate is not None else None
            if candidate_mean is not None and stable_mean is not None:
                furthest = _MAX_DEVIATION * math.sqrt(variance)
                near = max(
                    stable_mean[0] - furthest, min(stable_mean[0] + furthest, candidate_mean[0])
                )
                candidate_mean = near, candidate_mean[1]
            factors = self._alike.update(candidate_mean, stable_mean, variance)
            self._phases.update(candidate_mean, stable_mean, variance)
        self._stretches.update(factors)
        self._suspicion.update(factors)
        if stable_mean is None:
            return
        previous_mean, requests = self._before
        if requests:
            square = (stable_mean[0] - previous_mean) ** 2 / (1 / stable_mean[1] + 1 / requests)
            self._spread = [self._spread[0] + 1, self._spread[1] + square]
        self._before = [stable_mean[0], float(stable_mean[1])]
