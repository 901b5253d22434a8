# SPDX-License-Identifier: Apache-2.0
"""Whether the candidate's times are longer than stable's were, when stable had as many requests.

Once the candidate has most of the users, stable has too few to be compared with: it is the idler
one. What is left is how stable did before. But the weather was another then, so this is no
evidence: it holds the step until it is over, or somebody decides.
"""

from __future__ import annotations

from tritonctl.rollout.phases import Mean

_BLOCK = 30  # moments, of which one mean is taken
_LEAST = 30  # requests of a block, fewer say nothing
_LIKE = 0.8, 1.25  # times the requests of a block are as many
_PEERS = 3  # blocks of stable with as many, before anything is said
_MOST = 240  # that are remembered


class Past:
    """Stable's blocks, and whether the candidate's last one is beyond all that are like it."""

    KEPT = ("_means", "_requests", "_open", "_moments", "_beyond")

    def __init__(self) -> None:
        # Of stable's blocks: the mean of the logarithms of their times, and requests.
        self._means: list[float] = []
        self._requests: list[int] = []
        self.begin()

    def begin(self) -> None:
        """A step: no block has a part of the one before."""
        self._open = [0.0, 0.0, 0.0, 0.0]  # sum and number, of candidate and of stable
        self._moments = self._beyond = 0

    @property
    def beyond(self) -> bool:
        """Whether the candidate's last block was slower than stable ever was with as many."""
        return self._beyond > 0

    def update(self, candidate: Mean | None, stable: Mean | None, margin: float) -> None:
        """A moment; None: no times. margin: by how much, as a logarithm, a block must be beyond."""
        for place, found in ((0, candidate), (2, stable)):
            if found is not None:
                self._open[place] += found[0] * found[1]
                self._open[place + 1] += found[1]
        self._moments += 1
        if self._moments % _BLOCK:
            return
        total, number, stable_total, stable_number = self._open
        self._open = [0.0, 0.0, 0.0, 0.0]
        self._beyond = 0
        if number >= _LEAST:
            peers = [
                mean
                for mean, requests in zip(self._means, self._requests, strict=True)
                if _LIKE[0] <= requests / number <= _LIKE[1]
            ]
            self._beyond = int(len(peers) >= _PEERS and total / number > max(peers) + margin)
        if stable_number >= _LEAST:
            self._means = [*self._means, stable_total / stable_number][-_MOST:]
            self._requests = [*self._requests, int(stable_number)][-_MOST:]
