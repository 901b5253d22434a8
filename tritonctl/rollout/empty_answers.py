# SPDX-License-Identifier: Apache-2.0
"""Count the answers without a first token: they end early and without an error.

Such answers have no times to compare, so a candidate that gives only them would look healthy.
"""

from __future__ import annotations

from tritonctl.rollout.metrics import ScrapeInterval

_TTFT = "ttft"
_MIN_ANSWERS = 20
_FACTOR = 2.0  # times stable's share


class VersionAnswers:
    """The answers of one version since the rollout started."""

    PERSISTED = ("finished", "_first_tokens")

    def __init__(self) -> None:
        self.finished = 0  # without failures and the shadower's requests, which have no times
        self._first_tokens = 0  # ahead of `finished` by the requests in flight

    def update(self, interval: ScrapeInterval, shadow_requests: int) -> None:
        """Add an interval."""
        self.finished += interval.requests - interval.failures - shadow_requests
        _, first_tokens = interval.times.get(_TTFT, ((), ()))
        self._first_tokens += sum(first_tokens)

    @property
    def empty(self) -> int:
        """The answers without tokens."""
        return max(0, self.finished - self._first_tokens)


class EmptyAnswers:
    """The answers without tokens of both versions."""

    PERSISTED = ("_candidate", "_stable")

    def __init__(self) -> None:
        self._candidate, self._stable = VersionAnswers(), VersionAnswers()

    def update(
        self, candidate: ScrapeInterval, stable: ScrapeInterval | None, *, compared: int
    ) -> None:
        """Add an interval; `compared`: the shadower's comparisons, two requests of stable each."""
        if stable is not None and _TTFT in stable.times:  # otherwise nothing has first tokens
            self._candidate.update(candidate, compared)
            self._stable.update(stable, 2 * compared)

    def excess(self, tolerated: float) -> str:
        """Describe more such answers than tolerated and than twice stable's; empty otherwise."""
        empty, finished = self._candidate.empty, self._candidate.finished
        stable_share = (self._stable.empty + 1) / (max(0, self._stable.finished) + 2)
        allowed = min(0.5, max(tolerated, _FACTOR * stable_share))
        if finished < _MIN_ANSWERS or empty <= finished * allowed:
            return ""
        return f"{empty} of its {finished} answers had no tokens"
