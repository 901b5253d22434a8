# SPDX-License-Identifier: Apache-2.0
"""Microseconds since the run's start, equal for all workers, and a timer on that clock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

US = 1_000_000
_NS_PER_US = 1000
_SOON_SECONDS = 0.2


class Clock:
    """Counts from `started_at` (seconds since the epoch), or from 0.2 s from now.

    Reads the time of day once, so later clock corrections have no effect.
    """

    def __init__(self, started_at: float | None = None) -> None:
        now = time.time()
        self.started_at = now + _SOON_SECONDS if started_at is None else started_at
        self._zero_ns = time.monotonic_ns() + int((self.started_at - now) * US) * _NS_PER_US

    def now_us(self) -> int:
        """Return microseconds since the start, negative before it."""
        return (time.monotonic_ns() - self._zero_ns) // _NS_PER_US

    def monotonic_ns(self, at_us: int) -> int:
        """Convert to nanoseconds of CLOCK_MONOTONIC."""
        return self._zero_ns + at_us * _NS_PER_US


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Timer:
    """A file descriptor that becomes readable at a set time.

    Event loops round their timers to milliseconds; Linux's timerfd is accurate to about 50 µs.
    """

    _ABSOLUTE = 1

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def set(self, monotonic_ns: int) -> None:
        """Make the descriptor readable at that time, at once if it has passed."""
        # 0 would disable the timer.
        seconds, nanoseconds = divmod(max(1, monotonic_ns), 1_000_000_000)
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
        self._libc.timerfd_settime(self.fd, self._ABSOLUTE, ctypes.byref(spec), None)

    def clear(self) -> None:
        """Read the descriptor so that it is no longer readable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)
