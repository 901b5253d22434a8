# SPDX-License-Identifier: Apache-2.0
"""Whether the candidate forgets requests: they stand still, and no failure says so for long.

A request that hangs fails only when its client gives up, and then looks like a user who left. An
engine counts it after some seconds without a token, and a service in order hardly has any: a few
are evidence, where as many failures would be none.
"""

from __future__ import annotations

import math

from tritonctl.rollout.sequential import Wealth

# How the stake is spread over how often a request stalls, as a multiple of what is no fault.
_SIZES = ((6.0, 0.25), (25.0, 0.5), (80.0, 0.25))
_WINDOW = 5  # moments: of a pause that holds up many, all are one bet, or two
_MOST_CHANCE = 0.9
# Below it a stalled request of the candidate is rarer by its share than by the rate that is none.
_FEW = 0.07


class Stalls:
    """Bets on who has those that stalled within a few moments; each of these is one bet.

    While the candidate has few of the requests, against its share of them, as for failures: what
    holds up everybody cancels. Once it has so many that its share tells little, against the chance
    that any of its requests stalls, by the rate that is no fault. Assumed: one or the other bet is
    fair of a candidate that is no worse. Which one is known before the moments are.
    """

    KEPT = ("_wealth", "_moments", "_now", "_before")

    def __init__(self) -> None:
        self._wealth = Wealth([share for _, share in _SIZES])
        self._moments = 0
        # Of the candidate and of stable: stalled, requests; those that stall began a window before.
        self._now, self._before = [0] * 4, [0] * 4

    @property
    def evidence(self) -> float:
        """An e-value against "no more requests stall"."""
        return self._wealth.evidence

    def update(self, candidate: tuple[int, int], stable: tuple[int, int], most: float) -> None:
        """Of each, requests that stalled and that ended in this moment, or stalled.

        most: the share of requests that may stall, above 0; known before.
        """
        self._now = [old + new for old, new in zip(self._now, (*candidate, *stable), strict=True)]
        self._moments += 1
        if self._moments % _WINDOW == 0:
            self._settle(most)
            self._now, self._before = [0] * 4, self._now

    def _settle(self, most: float) -> None:
        mine, requests, others, _ = self._now
        requests = max(requests, self._before[1])
        share = max(_share(self._now), _share(self._before))
        if not requests:
            return
        if share < _FEW:
            if stalled := mine + others:
                difference = mine / stalled - share
                self._wealth.settle(
                    [1 + (size - 1) / (share * size + 1 - share) * difference for size, _ in _SIZES]
                )
            return
        fair = min(_MOST_CHANCE, requests * most)
        chances = [max(fair, 1 - math.exp(-requests * most * size)) for size, _ in _SIZES]
        self._wealth.settle(
            [chance / fair if mine else (1 - chance) / (1 - fair) for chance in chances]
        )


def _share(counts: list[int]) -> float:
    """Of the requests, that are the candidate's."""
    _, requests, _, others = counts
    return requests / (requests + others) if requests else 0.0
