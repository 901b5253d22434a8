# SPDX-License-Identifier: Apache-2.0
"""Compare the candidate's times with stable's history at a similar load.

Once the candidate has most of the users, stable is mostly idle and not comparable. Its history
remains, but conditions may have changed since. So a slower candidate does not count as evidence: it
only holds the step until the candidate recovers or an operator decides.
"""

from __future__ import annotations

from tritonctl.rollout.drift_model import Mean

_BLOCK_INTERVALS = 30  # scrape intervals per block; each block has one mean
_MIN_BLOCK_REQUESTS = 30  # smaller blocks are ignored
_COMPARABLE_LOAD = 0.8, 1.25  # ratio of requests within which two blocks are comparable
_MIN_PEERS = 3  # comparable blocks of stable that a comparison needs
_MAX_REMEMBERED_BLOCKS = 240  # of stable


class BaselineHistory:
    """Stable's blocks, and whether the candidate's last block exceeds all comparable ones."""

    PERSISTED = ("_means", "_requests", "_open", "_moments", "_beyond")

    def __init__(self) -> None:
        # Per block of stable: the mean logarithm of its times, and its requests.
        self._means: list[float] = []
        self._requests: list[int] = []
        self.start_step()

    def start_step(self) -> None:
        """Start a step: no block spans two steps."""
        self._open = [0.0, 0.0, 0.0, 0.0]  # sum and count of the candidate, then of stable
        self._moments = self._beyond = 0

    @property
    def is_slower(self) -> bool:
        """Whether the candidate's last block was slower than every comparable block of stable."""
        return self._beyond > 0

    def update(self, candidate: Mean | None, stable: Mean | None, margin: float) -> None:
        """Add an interval; None: no times. `margin`, a logarithm, is the excess that counts."""
        for offset, version_mean in ((0, candidate), (2, stable)):
            if version_mean is not None:
                self._open[offset] += version_mean[0] * version_mean[1]
                self._open[offset + 1] += version_mean[1]
        self._moments += 1
        if self._moments % _BLOCK_INTERVALS:
            return
        total, number, stable_total, stable_number = self._open
        self._open = [0.0, 0.0, 0.0, 0.0]
        self._beyond = 0
        if number >= _MIN_BLOCK_REQUESTS:
            peers = [
                mean
                for mean, requests in zip(self._means, self._requests, strict=True)
                if _COMPARABLE_LOAD[0] <= requests / number <= _COMPARABLE_LOAD[1]
            ]
            self._beyond = int(len(peers) >= _MIN_PEERS and total / number > max(peers) + margin)
        if stable_number >= _MIN_BLOCK_REQUESTS:
            self._means = [*self._means, stable_total / stable_number][-_MAX_REMEMBERED_BLOCKS:]
            self._requests = [*self._requests, int(stable_number)][-_MAX_REMEMBERED_BLOCKS:]
