# SPDX-License-Identifier: Apache-2.0
"""Measure how late a generator's loop wakes: a late read counts as the server's latency.

The send lag shows this for open loops only; the heartbeat shows it for any load.
"""

from __future__ import annotations

from loadlib.clock import Clock, Timer
from loadlib.progress import Meter

PERIOD_US = 10_000


class Heartbeat:
    """A timer of 10 ms. The loop calls `beat` when `fd` is readable."""

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self._meter = meter
        self._clock = clock
        self._timer = Timer()
        self._due = max(0, clock.now_us()) + PERIOD_US
        self._timer.set(clock.monotonic_ns(self._due))

    @property
    def fd(self) -> int:
        """The file descriptor for the loop to watch."""
        return self._timer.fd

    def beat(self) -> None:
        """Count the lateness of each beat since the last call, missed ones included."""
        self._timer.clear()
        now = self._clock.now_us()
        while self._due <= now:
            self._meter.count_wake(now - self._due)
            self._due += PERIOD_US
        self._timer.set(self._clock.monotonic_ns(self._due))

    def close(self) -> None:
        """Close the timer."""
        self._timer.close()
