# SPDX-License-Identifier: Apache-2.0
"""Drain a frontend: it stops being ready, continues requests, and only then stops listening."""

from __future__ import annotations

import time
from collections.abc import Callable

# User agent of readiness probes that no requests follow: `tritonctl status`.
PROBE = "tritonctl-probe"
# A gateway probes every second, so it has noticed the draining within this time.
_SEEN_SECONDS = 3.0
_WATCHED_SECONDS = 5.0


class Draining:
    """Whether the process is draining, and whether its gateways have noticed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._probed_at: float | None = None
        self._started_at: float | None = None

    @property
    def has_started(self) -> bool:
        """Whether the process is draining."""
        return self._started_at is not None

    def start(self) -> None:
        """Start draining."""
        if self._started_at is None:
            self._started_at = self._clock()

    def record_probe(self, user_agent: str) -> None:
        """Note a readiness probe by this user agent."""
        if user_agent != PROBE:
            self._probed_at = self._clock()

    @property
    def is_noticed(self) -> bool:
        """Whether draining has started and every gateway that probes has had time to notice."""
        if self._started_at is None:
            return False
        watched = (
            self._probed_at is not None and self._started_at - self._probed_at < _WATCHED_SECONDS
        )
        return not watched or self._clock() - self._started_at >= _SEEN_SECONDS
