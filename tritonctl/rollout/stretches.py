# SPDX-License-Identifier: Apache-2.0
"""What evidence is left without the stretches of time in which the candidate was slowest.

A server whose machine is busy for a while is slower by any factor, and is no worse a release. While
that lasts nobody can tell the two apart by times; but it ends, and a slower release stays slow. So
stretches are excused. A candidate begins with a credit of so many seconds; each second that is
excused costs one, each that counts brings half of one back, up to as many as in the beginning. A
stretch may begin at any moment, and its beginning costs some seconds more, or chance would pick
the worst moments one by one. The evidence is the least that any way to spend the credit leaves. If
the candidate is no worse outside of slow stretches that a credit pays for, one of these ways
excuses just them, and what its bets make of 1 is an e-process; the least of all ways is at most
that one. So nothing is assumed of how slow such stretches are, nor when they come.

`Suspicion` is the other half: while the candidate is slow just now, no step follows, though it may
be excused. E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954). The price of a
stretch, as of a gap in an alignment: O. Gotoh, "An improved algorithm for matching biological
sequences", J. Mol. Biol. 162 (1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritonctl.rollout.sequential import AT_ONCE, LATER, MOST

_BEGINNING = 4  # moments that a stretch costs beside those that it lasts
_PRICE = 2  # of a moment that is excused, in what one that counts brings
_NO_WAY = 1e300  # to have so much credit left
_SUSPICIOUS = 30.0  # times likelier that it is slow just now than that it is not
_SUREST = 10 * _SUSPICIOUS  # so that it is soon over when a phase is
_LASTING = 2.5  # times the longest phase: what lasts that long is none


class Stretches:
    """Bets as of `Wealth`, with the best stretches left out. Moments are as far apart as seconds.

    shares: of the stake, for each size of a bet; they sum to 1. seconds: the longest stretch that
    the credit pays for; 0: none.

    Moments without a bet are time. Those between two bets that are excused are excused, too; those
    before one that counts bring credit, the last five of them. Nothing is known of those before a
    stretch, so they cost nothing.
    """

    KEPT = ("_counting", "_excusing", "_kept", "_moments")

    def __init__(self, shares: Sequence[float], seconds: float) -> None:
        self._shares = tuple(shares)
        credit = _PRICE * (math.ceil(seconds) + _BEGINNING) if seconds > 0 else 0
        # Of each size, by the credit that is left: the least that a way there has made that counts
        # the last bet, and that excuses it.
        self._counting = [[_NO_WAY] * credit + [AT_ONCE * share] for share in shares]
        self._excusing = [[_NO_WAY] * (credit + 1) for _ in shares]
        self._kept = 1 - AT_ONCE
        self._moments = 0  # since the last bet

    @property
    def evidence(self) -> float:
        """An e-value against "no slower but for stretches that the credit pays for"."""
        both = zip(self._counting, self._excusing, strict=True)
        return self._kept + sum(min(*counting, *excusing) for counting, excusing in both)

    def update(self, factors: Sequence[float]) -> None:
        """A moment; of each size what its bet multiplies, none where nothing is bet."""
        self._moments += 1
        if not factors:
            return
        more = self._kept * LATER
        self._kept -= more
        for size, (factor, share) in enumerate(zip(factors, self._shares, strict=True)):
            counting, excusing = self._counting[size], self._excusing[size]
            self._counting[size] = self._counted(counting, excusing, more * share, factor)
            self._excusing[size] = self._excused(counting, excusing, more * share)
        self._moments = 0

    def _counted(
        self, counting: Sequence[float], excusing: Sequence[float], more: float, factor: float
    ) -> list[float]:
        """This bet counts, and brings credit for the time before it, up to the most."""
        found = [_NO_WAY] * len(counting)
        most = len(found) - 1
        for left, wealth in enumerate(map(min, counting, excusing)):
            if wealth != _NO_WAY:
                credit = min(most, left + min(self._moments, 1 + _BEGINNING))
                found[credit] = min(found[credit], MOST, (wealth + more) * factor)
        return found

    def _excused(
        self, counting: Sequence[float], excusing: Sequence[float], more: float
    ) -> list[float]:
        """This bet does not count: a stretch begins, or goes on."""
        found = [_NO_WAY] * len(counting)
        for before, cost in ((counting, 1 + _BEGINNING), (excusing, self._moments)):
            for left, wealth in enumerate(before[_PRICE * cost :]):
                if wealth != _NO_WAY:
                    found[left] = min(found[left], wealth + more)
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
