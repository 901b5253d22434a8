# SPDX-License-Identifier: Apache-2.0
"""Test whether the candidate's times are longer, given that a version may drift by itself.

A neighbour may disturb one server for half a minute: it is then slower than its twin, but not a
worse release. So the test must refute drift. For each drift length it bets that the candidate is
slower, against two equal versions with such drift; every bet must win. Drift is a deviation of the
logarithms of a version's times that decays as exp(-t / length) (Ornstein-Uhlenbeck). It is normal
and has a stated size, in standard deviations of times within an interval. Load that slows both
versions cancels: only their difference within an interval counts.

Stable's behaviour refutes drift, too: if its times do not wander, it has no drift, and neither has
an equal candidate. Wandering may come from stable or from both versions, so it is never evidence
for drift: it leaves drift possible.

Each factor is a ratio of densities of the next observation given the past, so each wealth is an
e-process against drift of its length. R. E. Kalman, "A new approach to linear filtering and
prediction problems", J. Basic Eng. 82 (1960): the densities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritonctl.rollout.sequential import Wealth

# Drift lengths in intervals, and the drift's sd, in units of the sd of times within an interval.
DRIFT_LENGTHS = (1.0, 5.0, 30.0, 120.0)
_DRIFT_SIZE = 0.4
# The candidate's slowdown in sd of times, and the share of the stake bet on it.
_SHIFTS = ((0.35, 0.25), (0.7, 0.3), (1.8, 0.45))
SHARES = tuple(share / 2 for _ in range(2) for _, share in _SHIFTS)  # of each bet of `DriftTest`
# Intervals per block of stable's times, and the stake that a block refutes drift.
_BLOCKS = ((60, 0.1), (240, 0.5))
_PRIOR_VARIANCE = 100.0  # of an unknown level, in variances of times
_MAX_LOG_RATIO = 200.0  # more evidence changes no decision

Mean = tuple[float, int]  # mean logarithm of a version's times in an interval, and their number


class DriftModel:
    """One bet per interval of a second, for each drift length up to `max_length`; 0: no drift."""

    PERSISTED = ("_against",)

    def __init__(self, max_length: float) -> None:
        lengths = [length for length in DRIFT_LENGTHS if length <= max_length]
        self._against = {f"{length:g}": DriftTest(length, _DRIFT_SIZE) for length in lengths}

    @property
    def evidence(self) -> float:
        """An e-value against "no slower than stable, apart from drift"."""
        return min((test.evidence for test in self._against.values()), default=math.inf)

    def update(self, candidate: Mean | None, stable: Mean | None, variance: float) -> None:
        """Add an interval; None: a version has no usable times.

        variance: of stable's logarithms within intervals, known beforehand, above 0.
        """
        for test in self._against.values():
            test.update(candidate, stable, variance)


class DriftTest:
    """The test of one drift length, by the difference of the versions and by stable's times."""

    PERSISTED = ("_wealth", "_between", "_calm")

    def __init__(self, length: float, size: float) -> None:
        self._size = size
        self._decay = math.exp(-1 / length)
        self._wealth = Wealth(SHARES)
        self._between = _DriftEstimate()
        self._calm = {f"{block}": _CalmTest(block, stake) for block, stake in _BLOCKS}

    @property
    def evidence(self) -> float:
        """An e-value against drift of this length."""
        refuted = sum(calm.evidence for calm in self._calm.values()) / len(self._calm)
        return self._wealth.evidence * refuted

    def update(
        self, candidate: Mean | None, stable: Mean | None, variance: float
    ) -> Sequence[float]:
        """Add an interval as above; return the factor of each bet, empty without a bet."""
        self._between.advance(self._decay, 2 * self._size**2 * variance)
        factors: Sequence[float] = ()
        if candidate is not None and stable is not None:
            noise = variance * (1 / candidate[1] + 1 / stable[1])
            factors = self._bet(candidate[0] - stable[0], noise, math.sqrt(variance))
            self._wealth.settle(factors)
        for calm in self._calm.values():
            calm.update(stable, variance, (self._decay, self._size**2 * variance))
        return factors

    def _bet(self, difference: float, noise: float, spread: float) -> Sequence[float]:
        drift = self._between
        wide = noise + drift.variance
        residual = difference - drift.mean
        equal_versions = _log_density(residual, wide)
        without_drift = [_log_density(difference - shift * spread, noise) for shift, _ in _SHIFTS]
        unexplained = 1 - drift.taken
        with_drift = [
            _log_density(residual - shift * spread * unexplained, wide) for shift, _ in _SHIFTS
        ]
        drift.observe(difference, noise)
        return [
            math.exp(max(-_MAX_LOG_RATIO, min(_MAX_LOG_RATIO, density - equal_versions)))
            for density in (*without_drift, *with_drift)
        ]


class _DriftEstimate:
    """The estimated difference of the versions that is due to drift alone.

    `taken` is the part of a constant offset that the estimate attributes to drift, 0 to 1.
    """

    PERSISTED = ("mean", "variance", "taken", "_begun")

    def __init__(self) -> None:
        self.mean = self.variance = self.taken = 0.0
        self._begun = 0

    def advance(self, decay: float, stationary_variance: float) -> None:
        """Advance by one interval; unobserved drift has the `stationary_variance`."""
        if not self._begun:
            self._begun, self.variance = 1, stationary_variance
            return
        self.mean *= decay
        self.taken *= decay
        self.variance = decay * decay * self.variance + (1 - decay * decay) * stationary_variance

    def observe(self, difference: float, noise: float) -> None:
        """Update the estimate with the difference in this interval."""
        gain = self.variance / (self.variance + noise)
        self.mean += gain * (difference - self.mean)
        self.taken += gain * (1 - self.taken)
        self.variance *= 1 - gain


class _CalmTest:
    """How much likelier stable's times are without drift than with it.

    Each block has a separate level, so a restless block says nothing about the remaining ones.
    """

    PERSISTED = ("_refuted", "_ratio", "_moments", "_level", "_wandering")

    def __init__(self, block: int, stake: float) -> None:
        self._block, self._stake = block, stake
        self._refuted = 0.0  # logarithm, over finished blocks
        self._ratio = 0.0  # logarithm, in this block
        self._moments = 0
        self._level, self._wandering = _LevelEstimate(), _LevelEstimate()

    @property
    def evidence(self) -> float:
        return math.exp(self._log_evidence)

    @property
    def _log_evidence(self) -> float:
        ratio = math.exp(min(_MAX_LOG_RATIO, self._ratio))
        return min(_MAX_LOG_RATIO, self._refuted + math.log(1 - self._stake + self._stake * ratio))

    def update(self, stable: Mean | None, variance: float, drift: tuple[float, float]) -> None:
        self._wandering.advance(*drift)
        if stable is not None:
            mean, number = stable
            noise, prior_variance = variance / number, _PRIOR_VARIANCE * variance
            self._ratio += self._level.log_density(mean, noise, prior_variance)
            self._ratio -= self._wandering.log_density(mean, noise, prior_variance)
        self._moments += 1
        if self._moments % self._block == 0:
            self._refuted, self._ratio = self._log_evidence, 0.0
            self._level, self._wandering = _LevelEstimate(), _LevelEstimate()


class _LevelEstimate:
    """A Kalman filter of stable's times: a level, plus drift if `advance` is called."""

    PERSISTED = ("_means", "_variances", "_begun")

    def __init__(self) -> None:
        self._means = [0.0, 0.0]  # of the level, of the drift
        self._variances = [0.0, 0.0, 0.0]  # of the level, covariance, of the drift
        self._begun = 0

    def advance(self, decay: float, stationary_variance: float) -> None:
        """Advance by one interval; unobserved drift has the `stationary_variance`."""
        self._means[1] *= decay
        level, covariance, drift = self._variances
        drift = (
            decay * decay * drift + (1 - decay * decay) * stationary_variance
            if self._begun
            else stationary_variance
        )
        self._variances = [level, covariance * decay, drift]

    def log_density(self, value: float, noise: float, prior_variance: float) -> float:
        """Return the log density of this mean given earlier ones; update the filter."""
        if not self._begun:
            self._begun, self._means[0], self._variances[0] = 1, value, prior_variance
        level, covariance, drift = self._variances
        total_variance = level + 2 * covariance + drift + noise
        residual = value - sum(self._means)
        density = _log_density(residual, total_variance)
        level_gain, drift_gain = (
            (level + covariance) / total_variance,
            (covariance + drift) / total_variance,
        )
        self._means = [
            self._means[0] + level_gain * residual,
            self._means[1] + drift_gain * residual,
        ]
        self._variances = [
            level - level_gain * (level + covariance),
            covariance - level_gain * (covariance + drift),
            drift - drift_gain * (covariance + drift),
        ]
        return density


def _log_density(residual: float, variance: float) -> float:
    """Return the logarithm of the normal density of a residual, without the common constant."""
    return -(residual * residual / variance + math.log(variance)) / 2
