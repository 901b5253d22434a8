# SPDX-License-Identifier: Apache-2.0
"""Anytime-valid sequential tests: bet against "the candidate is not worse" every second.

Each test observes a difference between candidate and stable whose mean, given the past, is at most
0 if the candidate is not worse, and bets on it. A bet against a true hypothesis cannot expect to
gain: the wealth is a nonnegative supermartingale that starts at 1, and it ever reaches 1 / a with
probability at most a (Ville 1939), for any time of looking or stopping. No distribution is assumed;
each test states its assumptions.

Sources: J. Ville, "Étude critique de la notion de collectif" (1939). A. Wald, "Sequential tests of
statistical hypotheses", Ann. Math. Stat. 16 (1945). I. Waudby-Smith, A. Ramdas, "Estimating means
of bounded random variables by betting", JRSS B 86 (2024): the bets on bounded differences.
S. Howard, A. Ramdas, J. McAuliffe, J. Sekhon, "Time-uniform, nonparametric, nonasymptotic
confidence sequences", Ann. Stat. 49 (2021): mixtures over the size of the effect. M. Lindon,
A. Malek, "Anytime-valid inference for multinomial count data", NeurIPS 2022: failures given their
total, for any course of the rate. J. Shin, A. Ramdas, A. Rinaldo, "E-detectors", NEJSDS 2 (2024): a
fault that starts late. V. Vovk, R. Wang, "E-values: calibration, combination and applications",
Ann. Stat. 49 (2021): the weighted mean of e-values is an e-value.

`PERSISTED` names the attributes that `evidence` saves for a new process.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# The stake of a test, spread over sizes of the fault: (size, share).
_ODDS = ((1.7, 0.06), (6.0, 0.47), (30.0, 0.47))
_FRACTIONS = ((0.2, 0.2), (0.55, 0.35), (0.95, 0.45))
INITIAL_STAKE = 0.9  # of the stake; the remainder is bet bit by bit, on faults that start later
STAKE_RATE = 0.003  # of the remaining stake, at each bet
MAX_WEALTH = 1e100  # upper limit: more evidence changes no decision


class Wealth:
    """The wealth of bets against a hypothesis, starting at 1, with several sizes of bets.

    `shares` of the stake per size sum to 1. Most of the stake is bet from the start, the remainder
    bit by bit: otherwise a long healthy time would lose the stake that a late fault needs.
    """

    PERSISTED = ("_bet", "_kept")

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = tuple(shares)
        self._bet = [INITIAL_STAKE * share for share in shares]
        self._kept = 1 - INITIAL_STAKE

    @property
    def evidence(self) -> float:
        """An e-value: 1 at first; it reaches 100 once in 100 times if the hypothesis is true."""
        return self._kept + sum(self._bet)

    def settle(self, factors: Sequence[float]) -> None:
        """Multiply the bet of each size; factors are >= 0, with mean <= 1 under the hypothesis."""
        new_stake = self._kept * STAKE_RATE
        self._kept -= new_stake
        self._bet = [
            min(MAX_WEALTH, (bet + new_stake * share) * factor)
            for bet, share, factor in zip(self._bet, self._shares, factors, strict=True)
        ]


class FailureTest:
    """Tests whether the candidate's requests fail more often than stable's, at any share.

    If the candidate is not worse, its expected share of an interval's failures equals its share of
    the requests, for any common cause of failures. Assumption: within an interval, a failure hits
    every request with equal probability. An interval is one bet, however many requests fail: one
    burst on the candidate is not enough evidence.
    """

    PERSISTED = ("_wealth",)

    def __init__(self) -> None:
        self._wealth = Wealth([share for _, share in _ODDS])

    @property
    def evidence(self) -> float:
        """An e-value against "no more failures than stable"."""
        return self._wealth.evidence

    def update(self, candidate: tuple[int, int], stable: tuple[int, int]) -> None:
        """Add an interval: failures and finished requests of each version."""
        (failed, requests), (stable_failed, stable_requests) = candidate, stable
        failures, total = failed + stable_failed, requests + stable_requests
        if not failures or not requests or not stable_requests:
            return
        share = requests / total
        difference = failed / failures - share
        self._wealth.settle(
            [
                1 + (odds - 1) / (share * odds + 1 - share) * difference  # as odds to 1 would have
                for odds, _ in _ODDS
            ]
        )


class AbsoluteFailureTest:
    """Tests whether more than a stated share of the candidate's requests fail, without stable.

    For the last step, when stable has no requests.
    """

    PERSISTED = ("_wealth",)

    def __init__(self) -> None:
        self._wealth = Wealth([share for _, share in _FRACTIONS])

    @property
    def evidence(self) -> float:
        """An e-value against "at most this share fails"."""
        return self._wealth.evidence

    def update(self, failed: int, requests: int, max_rate: float) -> None:
        """Add an interval. `max_rate` is the tolerated share, above 0, known beforehand."""
        if requests:
            gain = (failed / requests - max_rate) / max_rate
            self._wealth.settle([1 + fraction * gain for fraction, _ in _FRACTIONS])


class DivergenceTest:
    """Tests whether the candidate's answers differ from stable's beyond stable's own noise.

    Stable answers each question twice, the candidate once. With a distance of 0 to 1, `noise` is
    between stable's two answers, `candidate` the mean of both to the candidate's. Assumption: equal
    versions have equally distributed answers, and the distance is a metric, so that `candidate` is
    at least noise / 2. `tolerated`: the additional distance that a candidate may have, 0 to 1.
    """

    PERSISTED = ("_wealth",)

    def __init__(self, tolerated: float = 0.02) -> None:
        self._tolerated = tolerated
        self._wealth = Wealth([share for _, share in _FRACTIONS])

    @property
    def evidence(self) -> float:
        """An e-value against "no further from stable than stable is from itself"."""
        return self._wealth.evidence

    def update(self, noise: float, candidate: float) -> None:
        """Add the distances of one question."""
        gain = (candidate - noise - self._tolerated) / (0.5 + self._tolerated)
        self._wealth.settle([1 + fraction * max(gain, -1) for fraction, _ in _FRACTIONS])


class GrowthTest:
    """Tests whether a figure, such as a process' memory, rises steadily beyond the tolerance.

    A window is 13 blocks of `block` samples; it rises if hardly any two block means are out of
    order. If the figure only varies, every order of the blocks is equally likely, and so few
    inversions have a probability of 1 in 11 million. Windows overlap; each belongs to one of four
    tests that share the stake. `tolerated`: acceptable growth in a window, relative to its start;
    `min_growth`: the same in the figure's unit.
    """

    PERSISTED = ("_samples", "_seen", "_wealth")
    _BLOCKS, _MAX_INVERSIONS, _PHASES, _STAKE = 13, 3, 4, 0.005

    def __init__(self, block: int = 2, tolerated: float = 0.02, min_growth: float = 0.0) -> None:
        self._tolerated, self._min_growth = tolerated, min_growth
        self._block = block
        self._samples: list[float] = []
        self._seen = 0
        self._wealth = [1.0] * self._PHASES
        self._gain = 1 / inversion_probability(self._BLOCKS, self._MAX_INVERSIONS)

    @property
    def evidence(self) -> float:
        """The evidence against "it does not grow"; combine it only by a union bound.

        Overlapping windows make the four tests dependent, so the largest counts, divided by four.
        """
        return max(self._wealth) / self._PHASES

    @property
    def window(self) -> int:
        """The number of samples in a window."""
        return self._BLOCKS * self._block

    def restart(self) -> None:
        """Start over after a change of conditions: no window spans it."""
        self._samples = []

    def update(self, value: float, *, may_rise: bool = False) -> None:
        """Add a sample, equally spaced in time. may_rise: do not count a rise now."""
        length = self.window
        self._samples = [*self._samples, value][-length:]
        self._seen += 1
        windows_started, remainder = divmod(self._seen * self._PHASES, length)
        if len(self._samples) < length or remainder >= self._PHASES:
            return
        blocks = [
            sum(self._samples[start : start + self._block]) / self._block
            for start in range(0, length, self._block)
        ]
        rises = (
            count_inversions(blocks) <= self._MAX_INVERSIONS
            and blocks[-1] - blocks[0] > max(self._min_growth, self._tolerated * blocks[0])
            and not may_rise
        )
        phase = windows_started % self._PHASES
        factor = 1 - self._STAKE + self._STAKE * self._gain * rises
        self._wealth[phase] = min(MAX_WEALTH, self._wealth[phase] * factor)


@dataclass(frozen=True)
class CombinedEvidence:
    """The combined evidence of several tests of one rollout."""

    total: float
    limit: float  # the total that rejects the candidate
    evidence: Mapping[str, float]  # of each test

    @property
    def is_rejected(self) -> bool:
        """Whether the candidate is worse, at the stated error rate."""
        return self.total >= self.limit


def combine_evidence(
    evidence: Mapping[str, float],
    weights: Mapping[str, float],
    rate: float,
    standalone: Collection[str] = (),
) -> CombinedEvidence:
    """Combine the tests of one rollout; at most `rate` of all good rollouts are rejected.

    The weighted sum of e-values is an e-value. weights: per test, summing to at most 1. standalone:
    tests that reject only by themselves, at their share of the rate.
    """
    weighted = {name: weights[name] * value for name, value in evidence.items()}
    weighted_sum = sum(value for name, value in weighted.items() if name not in standalone)
    total = max([weighted_sum, *(weighted[name] for name in standalone if name in weighted)])
    return CombinedEvidence(total, 1 / rate, dict(evidence))


def count_inversions(values: Sequence[float]) -> int:
    """Count the pairs whose earlier value is not smaller."""
    return sum(
        values[earlier] >= values[later]
        for earlier in range(len(values))
        for later in range(earlier + 1, len(values))
    )


def inversion_probability(length: int, max_inversions: int) -> float:
    """Return the probability of at most so many inversions in a random order (Mahonian numbers)."""
    counts = [1]
    for size in range(2, length + 1):
        counts = [
            sum(counts[max(0, total - size + 1) : total + 1])
            for total in range(len(counts) + size - 1)
        ]
    return sum(counts[: max_inversions + 1]) / math.factorial(length)
