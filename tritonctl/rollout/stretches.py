# SPDX-License-Identifier: Apache-2.0
"""What evidence is left without the stretches of time in which the candidate was slowest.

A server whose machine is busy for a while is slower by any factor, and is no worse a release. While
that lasts nobody can tell the two apart by times; but it ends, and a slower release stays slow. So
stretches are excused. A candidate begins with a credit of so many seconds; each second that is
excused costs one, each that counts brings half of one back, up to as many as in the beginning. The
evidence is the least that any way to spend the credit leaves. If the candidate is no worse outside
of slow stretches that a credit pays for, one of these ways excuses just them, and what its bets
make of 1 is an e-process; the least of all ways is at most that one. So nothing is assumed of how
slow such stretches are, nor when they come.

`Suspicion` is the other half: while the candidate is slow just now, no step follows, though it may
be excused. E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritonctl.rollout.sequential import AT_ONCE, LATER, MOST

_BLOCK = 5  # moments at least, and a bet, that are excused or count together
_PRICE = 2  # of a block that is excused, in what one that counts brings
_NO_WAY = 1e300  # to have so much credit left
_SUSPICIOUS = 30.0  # times likelier that it is slow just now than that it is not
_SUREST = 10 * _SUSPICIOUS  # so that it is soon over when a phase is
_LASTING = 2.5  # times the longest phase: what lasts that long is none


class Stretches:
    """Bets as of `Wealth`, with the best stretches left out. Moments are as far apart as seconds.

    shares: of the stake, for each size of a bet; they sum to 1. seconds: of credit.
    """

    KEPT = ("_ways", "_kept", "_moments", "_bets", "_product", "_later", "_added")

    def __init__(self, shares: Sequence[float], seconds: float) -> None:
        self._shares = tuple(shares)
        credit = _PRICE * math.ceil(seconds / _BLOCK)
        # Of each size, by the credit that is left: the least that a way there has made.
        self._ways = [[_NO_WAY] * credit + [AT_ONCE * share] for share in shares]
        self._kept = 1 - AT_ONCE
        self._moments = 0  # of this block, and those that the one before has not paid for
        self._begin()

    def _begin(self) -> None:
        """A block: what it multiplies, and what was bet in it for the first time, with and without
        what it has made of that."""
        self._bets = 0
        self._product = [1.0] * len(self._shares)
        self._later = [0.0] * len(self._shares)
        self._added = [0.0] * len(self._shares)

    @property
    def evidence(self) -> float:
        """An e-value against "no slower but for stretches that the credit pays for"."""
        return self._kept + sum(
            min(self._counted(size, ways[0]), self._least_excused(size, ways))
            for size, ways in enumerate(self._ways)
        )

    def update(self, factors: Sequence[float]) -> None:
        """A moment; of each size what its bet multiplies, none where nothing is bet."""
        if factors:
            self._bets += 1
            more = self._kept * LATER
            self._kept -= more
            for size, (factor, share) in enumerate(zip(factors, self._shares, strict=True)):
                self._product[size] = min(MOST, self._product[size] * factor)
                self._later[size] = min(MOST, (self._later[size] + more * share) * factor)
                self._added[size] += more * share
        self._moments += 1
        if self._moments >= _BLOCK and self._bets:
            self._ways = [self._after(size, ways) for size, ways in enumerate(self._ways)]
            self._moments %= _BLOCK
            self._begin()

    @property
    def _cost(self) -> int:
        """Of this block, as far as it is known."""
        return min(len(self._ways[0]) - 1, _PRICE * max(1, self._moments // _BLOCK))

    def _counted(self, size: int, wealth: float) -> float:
        if wealth == _NO_WAY:
            return _NO_WAY
        return min(MOST, wealth * self._product[size] + self._later[size])

    def _excused(self, size: int, wealth: float) -> float:
        return _NO_WAY if wealth == _NO_WAY else wealth + self._added[size]

    def _least_excused(self, size: int, ways: Sequence[float]) -> float:
        """Of the ways with credit for this block, whether or not it is to count."""
        least = min(ways[1:], default=_NO_WAY)
        able = min(ways[max(1, self._cost) :], default=_NO_WAY)
        return min(self._excused(size, able), self._counted(size, least))

    def _after(self, size: int, ways: Sequence[float]) -> list[float]:
        """The block is over: it has cost credit or brought some, up to the most."""
        most, cost = len(ways) - 1, self._cost
        found = [_NO_WAY] * (most + 1)
        for left, wealth in enumerate(ways):
            more = min(most, left + cost // _PRICE)
            found[more] = min(found[more], self._counted(size, wealth))
            if 0 < cost <= left:
                found[left - cost] = min(found[left - cost], self._excused(size, wealth))
        return found


class Suspicion:
    """Whether the candidate is slow just now, and for how long.

    shares: as above; seconds: that the longest phase lasts.
    """

    KEPT = ("_recent", "_moments")

    def __init__(self, shares: Sequence[float], seconds: float) -> None:
        self._shares, self._seconds = tuple(shares), seconds
        self._recent = [1.0] * len(shares)  # times likelier, since it was last unlikely
        self._moments = 0

    @property
    def moments(self) -> int:
        """For how many it has been slow without a break; 0: it is not."""
        return self._moments

    @property
    def lasts(self) -> bool:
        """Too long for a phase."""
        return self._moments >= _LASTING * self._seconds

    def update(self, factors: Sequence[float]) -> None:
        """A moment, as above."""
        if factors:
            self._recent = [
                min(_SUREST, max(1.0, recent) * factor)
                for recent, factor in zip(self._recent, factors, strict=True)
            ]
        likelier = sum(
            share * recent for share, recent in zip(self._shares, self._recent, strict=True)
        )
        self._moments = self._moments + 1 if likelier >= _SUSPICIOUS else 0
