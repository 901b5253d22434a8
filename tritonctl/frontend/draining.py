# SPDX-License-Identifier: Apache-2.0
"""The end of a frontend: readiness goes first, requests go on, and only then it stops listening."""

from __future__ import annotations

import time
from collections.abc import Callable

# Whoever asks for readiness under this name sends no requests afterwards: `tritonctl status`.
PROBE = "tritonctl-probe"
# In which a gateway, which asks every second, has seen that the frontend is to end.
_SEEN_SECONDS = 3.0
_WATCHED_SECONDS = 5.0


class Draining:
    """Whether the process is about to end, and whether those who send requests know."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: float | None = None
        self._began: float | None = None

    @property
    def began(self) -> bool:
        """Whether it is about to end."""
        return self._began is not None

    def begin(self) -> None:
        """It is to end."""
        if self._began is None:
            self._began = self._clock()

    def asked(self, by: str) -> None:
        """Somebody of this user agent asks for readiness."""
        if by != PROBE:
            self._asked = self._clock()

    @property
    def is_seen(self) -> bool:
        """Whether it began and gateways know, as far as any have asked lately."""
        if self._began is None:
            return False
        watched = self._asked is not None and self._began - self._asked < _WATCHED_SECONDS
        return not watched or self._clock() - self._began >= _SEEN_SECONDS
