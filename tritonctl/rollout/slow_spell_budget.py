# SPDX-License-Identifier: Apache-2.0
"""The evidence that remains without the slowest spells of the candidate.

A server on a busy machine is slower by any factor for a while, but not a worse release. During such
a spell, times cannot tell the two apart; but a spell ends, and a slower release stays slow. So
spells are excused. A candidate starts with a credit in seconds. Each excused second costs one; each
counted second returns half a second, up to the initial credit. A spell may start at any time, and
its start costs extra seconds; otherwise chance would pick the worst intervals one by one. The
evidence is the minimum over all ways to spend the credit. If the candidate is not worse outside the
spells that the credit covers, one way excuses exactly these spells, and its wealth is an e-process;
the minimum over all ways is at most that one. So the test assumes nothing about how slow such
spells are, or when they come.

`SlowSpellDetector` is the counterpart: while the candidate is slow, no step follows, even if the
spell may be excused. E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954). The cost of
a spell follows that of a gap in an alignment: O. Gotoh, "An improved algorithm for matching
biological sequences", J. Mol. Biol. 162 (1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritonctl.rollout.sequential import INITIAL_STAKE, MAX_WEALTH, STAKE_RATE

_START_COST = 4  # intervals that the start of a spell costs in addition
_PRICE = 2  # of an excused interval, in units of the credit from a counted one
_UNREACHABLE = 1e300  # wealth of a credit that no way reaches
_SUSPICIOUS = 30.0  # likelihood ratio of being slow now
_MAX_LIKELIHOOD = 10 * _SUSPICIOUS  # upper limit, so that the suspicion ends soon after a spell
_LASTING_FACTOR = 2.5  # times the longest spell: anything longer is not a spell


class SlowSpellBudget:
    """Bets as `Wealth`, without the most favourable spells. An interval lasts one second.

    shares: of the stake, per bet size; they sum to 1. seconds: the longest spell that the credit
    covers; 0: none.

    Intervals without a bet also count as time. Intervals without a bet between two excused bets are
    also excused. Up to five intervals without a bet before a counted bet return credit. Intervals
    without a bet before a spell are unknown and cost nothing.
    """

    PERSISTED = ("_counting", "_excusing", "_kept", "_moments")

    def __init__(self, shares: Sequence[float], seconds: float) -> None:
        self._shares = tuple(shares)
        credit = _PRICE * (math.ceil(seconds) + _START_COST) if seconds > 0 else 0
        # Per size, by remaining credit: the minimum wealth of a way that counts the last bet, and
        # of a way that excuses it.
        self._counting = [[_UNREACHABLE] * credit + [INITIAL_STAKE * share] for share in shares]
        self._excusing = [[_UNREACHABLE] * (credit + 1) for _ in shares]
        self._kept = 1 - INITIAL_STAKE
        self._moments = 0  # since the last bet

    @property
    def evidence(self) -> float:
        """The evidence (e-value) that the candidate is slower than the baseline outside spells.

        The spells are those that the credit excuses.
        """
        state_pairs = zip(self._counting, self._excusing, strict=True)
        return self._kept + sum(min(*counting, *excusing) for counting, excusing in state_pairs)

    def update(self, likelihood_ratios: Sequence[float]) -> None:
        """Add one interval. likelihood_ratios: one per bet size; empty without a bet."""
        self._moments += 1
        if not likelihood_ratios:
            return
        new_stake = self._kept * STAKE_RATE
        self._kept -= new_stake
        for size, (ratio, share) in enumerate(zip(likelihood_ratios, self._shares, strict=True)):
            counting, excusing = self._counting[size], self._excusing[size]
            self._counting[size] = self._counted(counting, excusing, new_stake * share, ratio)
            self._excusing[size] = self._excused(counting, excusing, new_stake * share)
        self._moments = 0

    def _counted(
        self, counting: Sequence[float], excusing: Sequence[float], new_stake: float, ratio: float
    ) -> list[float]:
        """Count this bet, which brings credit for the preceding time, up to the maximum."""
        wealth_by_credit = [_UNREACHABLE] * len(counting)
        max_credit = len(wealth_by_credit) - 1
        for remaining, wealth in enumerate(map(min, counting, excusing)):
            if wealth != _UNREACHABLE:
                credit = min(max_credit, remaining + min(self._moments, 1 + _START_COST))
                wealth_by_credit[credit] = min(
                    wealth_by_credit[credit], MAX_WEALTH, (wealth + new_stake) * ratio
                )
        return wealth_by_credit

    def _excused(
        self, counting: Sequence[float], excusing: Sequence[float], new_stake: float
    ) -> list[float]:
        """Excuse this bet: a spell starts or continues."""
        wealth_by_credit = [_UNREACHABLE] * len(counting)
        for previous, cost in ((counting, 1 + _START_COST), (excusing, self._moments)):
            for remaining, wealth in enumerate(previous[_PRICE * cost :]):
                if wealth != _UNREACHABLE:
                    wealth_by_credit[remaining] = min(
                        wealth_by_credit[remaining], wealth + new_stake
                    )
        return wealth_by_credit


class SlowSpellDetector:
    """Detects whether the candidate is slow now, and for how long.

    shares: of the stake, per bet size; they sum to 1. seconds: the longest spell.
    """

    PERSISTED = ("_recent", "_moments")

    def __init__(self, shares: Sequence[float], seconds: float) -> None:
        self._shares, self._seconds = tuple(shares), seconds
        self._recent = [1.0] * len(
            shares
        )  # likelihood ratios since the candidate was last not slow
        self._moments = 0

    @property
    def slow_intervals(self) -> int:
        """The intervals for which the candidate has been slow without a break; 0: not slow."""
        return self._moments

    @property
    def is_lasting(self) -> bool:
        """Whether the candidate has been slow for too long for a spell."""
        return self._moments >= _LASTING_FACTOR * self._seconds

    def update(self, likelihood_ratios: Sequence[float]) -> None:
        """Add one interval. likelihood_ratios: one per bet size; empty without a bet."""
        if likelihood_ratios:
            self._recent = [
                min(_MAX_LIKELIHOOD, max(1.0, recent) * ratio)
                for recent, ratio in zip(self._recent, likelihood_ratios, strict=True)
            ]
        likelier = sum(
            share * recent for share, recent in zip(self._shares, self._recent, strict=True)
        )
        self._moments = self._moments + 1 if likelier >= _SUSPICIOUS else 0
