# SPDX-License-Identifier: Apache-2.0
"""Test whether the candidate's requests stall, which shows as failures only late.

A stalled request fails only when its client gives up, and then looks like a user who left. An
engine counts it after some seconds without a token. A healthy service has hardly any, so a few
stalls are evidence where as many failures are not.
"""

from __future__ import annotations

import math

from tritonctl.rollout.sequential import Wealth

# The stall rate as a multiple of the tolerated one, and the share of the stake bet on it.
_SIZES = ((6.0, 0.25), (25.0, 0.5), (80.0, 0.25))
_WINDOW = 5  # intervals per bet: a pause that stalls many requests is one bet, or two
_MAX_CHANCE = 0.9
# Below this share of the requests, a stall of the candidate is rarer by its share than by the rate.
_MIN_SHARE = 0.07


class StallTest:
    """Bets on the version of the requests that stalled, one bet per few intervals.

    While the candidate has few of the requests, the bet is against its share, as for failures:
    common causes cancel. Once its share says little, the bet is against the probability that any of
    its requests stalls at the tolerated rate. Assumption: for a candidate that is not worse, the
    chosen bet is fair; the choice is made before the intervals.
    """

    PERSISTED = ("_wealth", "_moments", "_now", "_before")

    def __init__(self) -> None:
        self._wealth = Wealth([share for _, share in _SIZES])
        self._moments = 0
        # Stalled and all requests of candidate, then stable; stalled ones started a window earlier.
        self._now, self._before = [0] * 4, [0] * 4

    @property
    def evidence(self) -> float:
        """An e-value against "no more requests stall"."""
        return self._wealth.evidence

    def update(self, candidate: tuple[int, int], stable: tuple[int, int], max_rate: float) -> None:
        """Add an interval: per version, the stalled requests, and all that finished or stalled.

        max_rate: the tolerated share of stalled requests, above 0, known beforehand.
        """
        self._now = [old + new for old, new in zip(self._now, (*candidate, *stable), strict=True)]
        self._moments += 1
        if self._moments % _WINDOW == 0:
            self._settle(max_rate)
            self._now, self._before = [0] * 4, self._now

    def _settle(self, max_rate: float) -> None:
        candidate_stalled, requests, stable_stalled, _ = self._now
        requests = max(requests, self._before[1])
        share = max(_candidate_share(self._now), _candidate_share(self._before))
        if not requests:
            return
        if share < _MIN_SHARE:
            if stalled := candidate_stalled + stable_stalled:
                difference = candidate_stalled / stalled - share
                self._wealth.settle(
                    [1 + (size - 1) / (share * size + 1 - share) * difference for size, _ in _SIZES]
                )
            return
        fair = min(_MAX_CHANCE, requests * max_rate)
        chances = [max(fair, 1 - math.exp(-requests * max_rate * size)) for size, _ in _SIZES]
        self._wealth.settle(
            [
                chance / fair if candidate_stalled else (1 - chance) / (1 - fair)
                for chance in chances
            ]
        )


def _candidate_share(counts: list[int]) -> float:
    """The candidate's share of the requests."""
    _, requests, _, stable_requests = counts
    return requests / (requests + stable_requests) if requests else 0.0
