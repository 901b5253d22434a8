# SPDX-License-Identifier: Apache-2.0
"""How late a generator's loop wakes: what it reads late it measures as the server's latency.

The lag of sending shows that only where an open loop sends; this, whatever the load.
"""

from __future__ import annotations

from loadlib.clock import Clock, Timer
from loadlib.progress import Meter

PERIOD_US = 10_000


class Heartbeat:
    """Wants to wake each 10 ms. The loop calls `beat` when `fd` is readable."""

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self._meter = meter
        self._clock = clock
        self._timer = Timer()
        self._due = max(0, clock.now_us()) + PERIOD_US
        self._timer.set(clock.monotonic_ns(self._due))

    @property
    def fd(self) -> int:
        """What the loop watches."""
        return self._timer.fd

    def beat(self) -> None:
        """Count how late it is. A loop that stood still missed beats, each late by its own part."""
        self._timer.clear()
        now = self._clock.now_us()
        while self._due <= now:
            self._meter.woke(now - self._due)
            self._due += PERIOD_US
        self._timer.set(self._clock.monotonic_ns(self._due))

    def close(self) -> None:
        """No more beats."""
        self._timer.close()
