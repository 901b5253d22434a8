# SPDX-License-Identifier: Apache-2.0
"""Sequential tests that may be looked at every second: betting against "the candidate is no worse".

Every test here sees a difference between candidate and stable whose mean, given the past, is at
most 0 when the candidate is no worse, and bets on it. Who bets against a true hypothesis cannot
expect to gain: the wealth is a nonnegative supermartingale that starts at 1, and it ever reaches
1 / a with probability a at most (Ville 1939), whenever one looks and whenever one stops. No
distribution is assumed. What is assumed is said at each test.

Sources: J. Ville, "Étude critique de la notion de collectif" (1939). A. Wald, "Sequential tests of
statistical hypotheses", Ann. Math. Stat. 16 (1945). I. Waudby-Smith, A. Ramdas, "Estimating means
of bounded random variables by betting", JRSS B 86 (2024): the bets on bounded differences.
S. Howard, A. Ramdas, J. McAuliffe, J. Sekhon, "Time-uniform, nonparametric, nonasymptotic
confidence sequences", Ann. Stat. 49 (2021): mixtures over the size of the effect. M. Lindon,
A. Malek, "Anytime-valid inference for multinomial count data", NeurIPS 2022: failures given their
total, whatever the rate does meanwhile. J. Shin, A. Ramdas, A. Rinaldo, "E-detectors", NEJSDS 2
(2024): a fault that begins late. V. Vovk, R. Wang, "E-values: calibration, combination and
applications", Ann. Stat. 49 (2021): the weighted mean of e-values is one.

`KEPT` is what a new process needs of a test to go on with it: `evidence`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# How the stake of a test is spread over the sizes of the fault: (size, share).
_ODDS = ((1.7, 0.06), (6.0, 0.47), (30.0, 0.47))
_FRACTIONS = ((0.2, 0.2), (0.55, 0.35), (0.95, 0.45))
AT_ONCE = 0.9  # of the stake; the rest is bet bit by bit, on faults that begin later
LATER = 0.003  # of what is left, at each bet
MOST = 1e100  # beyond, a wealth no longer grows: what is decided is decided


class Wealth:
    """What betting against a hypothesis has made of 1, with several sizes of bets at once.

    `shares` sum to 1: of the stake, for each size. Most of it is bet from the first time on, the
    rest little by little: without it, a long healthy time would lose what a late fault needs.
    """

    KEPT = ("_bet", "_kept")

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = tuple(shares)
        self._bet = [AT_ONCE * share for share in shares]
        self._kept = 1 - AT_ONCE

    @property
    def evidence(self) -> float:
        """Against the hypothesis, an e-value: 1 at first, 100 once in 100 times if it is true."""
        return self._kept + sum(self._bet)

    def settle(self, factors: Sequence[float]) -> None:
        """A bet of each size is multiplied by this; each >= 0 and of mean <= 1 if it is true."""
        more = self._kept * LATER
        self._kept -= more
        self._bet = [
            min(MOST, (bet + more * share) * factor)
            for bet, share, factor in zip(self._bet, self._shares, factors, strict=True)
        ]


class Failures:
    """Whether requests of the candidate fail more often than those of stable, at any shares.

    Given the failures of a moment, the candidate's share of them has its share of the requests as
    its mean if it is no worse, whatever made both fail just then. Assumed: within a moment, a
    failure hits any request alike. A moment is one bet, however many fail in it: a burst that hits
    the candidate once is not evidence enough by itself.
    """

    KEPT = ("_wealth",)

    def __init__(self) -> None:
        self._wealth = Wealth([share for _, share in _ODDS])

    @property
    def evidence(self) -> float:
        """An e-value against "no more failures than stable"."""
        return self._wealth.evidence

    def update(self, candidate: tuple[int, int], stable: tuple[int, int]) -> None:
        """Of each group, the failures and the requests that ended in this moment."""
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


class FailuresAlone:
    """Whether more than a stated share of the candidate's requests fail: nothing to compare with.

    For the last step, when stable has no requests.
    """

    KEPT = ("_wealth",)

    def __init__(self) -> None:
        self._wealth = Wealth([share for _, share in _FRACTIONS])

    @property
    def evidence(self) -> float:
        """An e-value against "at most this share fails"."""
        return self._wealth.evidence

    def update(self, failed: int, requests: int, most: float) -> None:
        """What ended in this moment. most: the share that is no fault, above 0, known before."""
        if requests:
            gain = (failed / requests - most) / most
            self._wealth.settle([1 + fraction * gain for fraction, _ in _FRACTIONS])


class Divergence:
    """Whether the candidate's answers differ from stable's by more than stable's from themselves.

    Each question is asked of stable twice and of the candidate once. With a distance of 0 to 1
    (1 where two texts differ, or less for a later difference), `noise` is between stable's two
    answers, `candidate` the mean of both to the candidate's. Assumed: the three are alike in law
    if the versions are; and the distance is a metric, so that noise / 2 is the least that
    `candidate` can be. `tolerated`: by how much a candidate may differ more, 0 to 1.
    """

    KEPT = ("_wealth",)

    def __init__(self, tolerated: float = 0.02) -> None:
        self._tolerated = tolerated
        self._wealth = Wealth([share for _, share in _FRACTIONS])

    @property
    def evidence(self) -> float:
        """An e-value against "no further from stable than stable is from itself"."""
        return self._wealth.evidence

    def update(self, noise: float, candidate: float) -> None:
        """One question's distances."""
        gain = (candidate - noise - self._tolerated) / (0.5 + self._tolerated)
        self._wealth.settle([1 + fraction * max(gain, -1) for fraction, _ in _FRACTIONS])


class Growth:
    """Whether a figure such as a process' memory rises all the time, by more than is tolerated.

    A window is 13 blocks of `block` samples, and rises if hardly any two of its blocks' means are
    out of order. In a figure that only varies, any order of the blocks is as likely, and so few
    inversions have a chance of 1 in 11 million. Windows overlap, each in one of four tests that
    share the stake. `tolerated`: growth within a window that is none, as a share of where it began;
    `least`: the same in the figure's own unit.
    """

    KEPT = ("_samples", "_seen", "_wealth")
    _BLOCKS, _MOST_INVERSIONS, _PHASES, _STAKE = 13, 3, 4, 0.005

    def __init__(self, block: int = 2, tolerated: float = 0.02, least: float = 0.0) -> None:
        self._tolerated, self._least = tolerated, least
        self._block = block
        self._samples: list[float] = []
        self._seen = 0
        self._wealth = [1.0] * self._PHASES
        self._gain = 1 / chance_of_inversions(self._BLOCKS, self._MOST_INVERSIONS)

    @property
    def evidence(self) -> float:
        """Against "it does not grow"; to be added to others' evidence only by a union bound.

        Windows overlap, so the four tests know of each other what a wealth must not: the largest
        of four counts, as a quarter.
        """
        return max(self._wealth) / self._PHASES

    @property
    def window(self) -> int:
        """How many samples it takes to tell."""
        return self._BLOCKS * self._block

    def restart(self) -> None:
        """What comes next is no longer alike: no window has both."""
        self._samples = []

    def update(self, value: float, *, may_rise: bool = False) -> None:
        """The next sample, at equal distances in time. may_rise: what rises now is no fault."""
        length = self.window
        self._samples = [*self._samples, value][-length:]
        self._seen += 1
        begun, left = divmod(self._seen * self._PHASES, length)
        if len(self._samples) < length or left >= self._PHASES:
            return
        blocks = [
            sum(self._samples[start : start + self._block]) / self._block
            for start in range(0, length, self._block)
        ]
        rises = (
            inversions(blocks) <= self._MOST_INVERSIONS
            and blocks[-1] - blocks[0] > max(self._least, self._tolerated * blocks[0])
            and not may_rise
        )
        phase = begun % self._PHASES
        factor = 1 - self._STAKE + self._STAKE * self._gain * rises
        self._wealth[phase] = min(MOST, self._wealth[phase] * factor)


@dataclass(frozen=True)
class Verdict:
    """Several tests of one rollout, together. `evidence`: each one's; `total`: what counts."""

    total: float
    limit: float
    evidence: Mapping[str, float]

    @property
    def rejected(self) -> bool:
        """The candidate is worse, at the stated rate of errors."""
        return self.total >= self.limit


def combined(
    evidence: Mapping[str, float],
    weights: Mapping[str, float],
    rate: float,
    alone: Collection[str] = (),
) -> Verdict:
    """Several tests of one rollout: rejected wrongly in at most `rate` of all rollouts.

    The weighted sum of e-values is an e-value. weights: of each test, at most 1 together. alone:
    those that reject only by themselves, at their share of the rate.
    """
    weighted = {name: weights[name] * value for name, value in evidence.items()}
    together = sum(value for name, value in weighted.items() if name not in alone)
    total = max([together, *(weighted[name] for name in alone if name in weighted)])
    return Verdict(total, 1 / rate, dict(evidence))


def inversions(values: Sequence[float]) -> int:
    """Pairs of which the earlier is not the smaller."""
    return sum(
        values[one] >= values[other]
        for one in range(len(values))
        for other in range(one + 1, len(values))
    )


def chance_of_inversions(length: int, most: int) -> float:
    """That a random order of so many has at most so many inversions (Mahonian numbers)."""
    counts = [1]
    for place in range(2, length + 1):
        counts = [
            sum(counts[max(0, total - place + 1) : total + 1])
            for total in range(len(counts) + place - 1)
        ]
    return sum(counts[: most + 1]) / math.factorial(length)
