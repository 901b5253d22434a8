# SPDX-License-Identifier: Apache-2.0
"""Whether the candidate's times are longer, where a version has slow phases of its own.

A server that others disturb for half a minute is slower than its twin, and is no worse a release.
So phases have to be refuted: for each length that they may have, a bet that what is seen is a
slower candidate, and not one of two equal versions with such phases. All these bets must be won.
A phase is a deviation of a version's logarithms of times that is forgotten as exp(-t / length)
(Ornstein-Uhlenbeck), normal, and of a stated size, in sd of times within a moment. What slows both
down cancels: only the difference of the two within a moment counts.

How stable behaves refutes phases, too: where its own times do not wander it has none, and neither
has its equal. Whether what wanders is its own or everybody's is not known, so wandering is never
evidence for phases: it leaves them possible.

Each factor is a ratio of densities of what comes next, given the past, so each wealth is an
e-process against phases of its length. R. E. Kalman, "A new approach to linear filtering and
prediction problems", J. Basic Eng. 82 (1960): the densities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritonctl.rollout.sequential import Wealth

# Moments that phases last, and their sd, in that of times within a moment.
LENGTHS = (1.0, 5.0, 30.0, 120.0)
_SIZE = 0.4
# How the stake is spread over how much longer the candidate takes, in sd of times.
_SHIFTS = ((0.35, 0.25), (0.7, 0.3), (1.8, 0.45))
SHARES = tuple(share / 2 for _ in range(2) for _, share in _SHIFTS)  # of each of `Phases`' bets
# Moments of stable that refute phases together, or do not; the stake that they do, each time.
_BLOCKS = ((60, 0.1), (240, 0.5))
_UNKNOWN = 100.0  # variance of a level of which nothing is known, in those of times
_MOST = 200.0  # of a logarithm: what is decided is decided

Mean = tuple[float, int]  # of the logarithms of a version's times in a moment, and of how many


class OwnPhases:
    """A bet each moment, for each length of phases. Moments are as far apart as seconds are.

    longest: of those that are allowed for; 0: none are.
    """

    KEPT = ("_against",)

    def __init__(self, longest: float) -> None:
        lengths = [length for length in LENGTHS if length <= longest]
        self._against = {f"{length:g}": Phases(length, _SIZE) for length in lengths}

    @property
    def evidence(self) -> float:
        """An e-value against "no slower than stable, with phases of its own"."""
        return min((each.evidence for each in self._against.values()), default=math.inf)

    def update(self, candidate: Mean | None, stable: Mean | None, variance: float) -> None:
        """A moment; None: a version without times that count.

        variance: of stable's logarithms within moments, known before, above 0.
        """
        for each in self._against.values():
            each.update(candidate, stable, variance)


class Phases:
    """Those of one length, refuted by what lies between both versions and by what stable does."""

    KEPT = ("_wealth", "_between", "_calm")

    def __init__(self, length: float, size: float) -> None:
        self._size = size
        self._keep = math.exp(-1 / length)
        self._wealth = Wealth(SHARES)
        self._between = _Between()
        self._calm = {f"{block}": _Calm(block, stake) for block, stake in _BLOCKS}

    @property
    def evidence(self) -> float:
        """An e-value against phases of this length."""
        refuted = sum(calm.evidence for calm in self._calm.values()) / len(self._calm)
        return self._wealth.evidence * refuted

    def update(
        self, candidate: Mean | None, stable: Mean | None, variance: float
    ) -> Sequence[float]:
        """As above. What each of the bets was multiplied by; none where nothing was bet."""
        self._between.pass_by(self._keep, 2 * self._size**2 * variance)
        factors: Sequence[float] = ()
        if candidate is not None and stable is not None:
            noise = variance * (1 / candidate[1] + 1 / stable[1])
            factors = self._bet(candidate[0] - stable[0], noise, math.sqrt(variance))
            self._wealth.settle(factors)
        for calm in self._calm.values():
            calm.update(stable, variance, (self._keep, self._size**2 * variance))
        return factors

    def _bet(self, difference: float, noise: float, spread: float) -> Sequence[float]:
        phases = self._between
        wide = noise + phases.variance
        left = difference - phases.mean
        none = _density(left, wide)
        alone = [_density(difference - shift * spread, noise) for shift, _ in _SHIFTS]
        new = 1 - phases.taken
        with_phases = [_density(left - shift * spread * new, wide) for shift, _ in _SHIFTS]
        phases.see(difference, noise)
        return [math.exp(max(-_MOST, min(_MOST, one - none))) for one in (*alone, *with_phases)]


class _Between:
    """What phases alone have put between the versions, as far as it can be known.

    taken: of an offset that was there all the time, how much is taken for a phase by now, 0 to 1.
    """

    KEPT = ("mean", "variance", "taken", "_begun")

    def __init__(self) -> None:
        self.mean = self.variance = self.taken = 0.0
        self._begun = 0

    def pass_by(self, keep: float, whole: float) -> None:
        """A moment. whole: variance of phases of which nothing is known."""
        if not self._begun:
            self._begun, self.variance = 1, whole
            return
        self.mean *= keep
        self.taken *= keep
        self.variance = keep * keep * self.variance + (1 - keep * keep) * whole

    def see(self, difference: float, noise: float) -> None:
        """What lay between them in this moment."""
        gain = self.variance / (self.variance + noise)
        self.mean += gain * (difference - self.mean)
        self.taken += gain * (1 - self.taken)
        self.variance *= 1 - gain


class _Calm:
    """By how much likelier stable's times are if it has no phases than if it has.

    Block by block, each with a level of its own: a block that is anything but calm says nothing of
    the others. block: moments of one. stake: that it refutes anything.
    """

    KEPT = ("_refuted", "_ratio", "_moments", "_level", "_wandering")

    def __init__(self, block: int, stake: float) -> None:
        self._block, self._stake = block, stake
        self._refuted = 0.0  # logarithm, by blocks that are over
        self._ratio = 0.0  # logarithm, of this block
        self._moments = 0
        self._level, self._wandering = _Level(), _Level()

    @property
    def evidence(self) -> float:
        return math.exp(self._with_block)

    @property
    def _with_block(self) -> float:
        ratio = math.exp(min(_MOST, self._ratio))
        return min(_MOST, self._refuted + math.log(1 - self._stake + self._stake * ratio))

    def update(self, stable: Mean | None, variance: float, phases: tuple[float, float]) -> None:
        self._wandering.pass_by(*phases)
        if stable is not None:
            mean, number = stable
            noise, unknown = variance / number, _UNKNOWN * variance
            self._ratio += self._level.see(mean, noise, unknown)
            self._ratio -= self._wandering.see(mean, noise, unknown)
        self._moments += 1
        if self._moments % self._block == 0:
            self._refuted, self._ratio = self._with_block, 0.0
            self._level, self._wandering = _Level(), _Level()


class _Level:
    """Of stable's times: a level, and what wanders about it where `pass_by` is called."""

    KEPT = ("_means", "_variances", "_begun")

    def __init__(self) -> None:
        self._means = [0.0, 0.0]  # of the level, and away from it
        self._variances = [0.0, 0.0, 0.0]  # of the level, of both together, away from it
        self._begun = 0

    def pass_by(self, keep: float, whole: float) -> None:
        """A moment. whole: variance of what wanders, where nothing is known."""
        self._means[1] *= keep
        level, both, away = self._variances
        away = keep * keep * away + (1 - keep * keep) * whole if self._begun else whole
        self._variances = [level, both * keep, away]

    def see(self, value: float, noise: float, unknown: float) -> float:
        """Logarithm of the density of this mean, given those before."""
        if not self._begun:
            self._begun, self._means[0], self._variances[0] = 1, value, unknown
        level, both, away = self._variances
        wide = level + 2 * both + away + noise
        left = value - sum(self._means)
        found = _density(left, wide)
        own, others = (level + both) / wide, (both + away) / wide
        self._means = [self._means[0] + own * left, self._means[1] + others * left]
        self._variances = [
            level - own * (level + both),
            both - own * (both + away),
            away - others * (both + away),
        ]
        return found


def _density(left: float, variance: float) -> float:
    """Logarithm of the normal density so far from the mean, less what all have in common."""
    return -(left * left / variance + math.log(variance)) / 2
