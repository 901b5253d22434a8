# SPDX-License-Identifier: Apache-2.0
"""Microseconds since the start of the run, the same for all workers; and a timer that keeps it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

US = 1_000_000
_NS_PER_US = 1000
_SOON_SECONDS = 0.2


class Clock:
    """Counts from `started_at` (seconds since the epoch), or from a moment from now.

    The time of day is read once: later corrections of the machine's clock move nothing.
    """

    def __init__(self, started_at: float | None = None) -> None:
        now = time.time()
        self.started_at = now + _SOON_SECONDS if started_at is None else started_at
        self._zero_ns = time.monotonic_ns() + int((self.started_at - now) * US) * _NS_PER_US

    def now_us(self) -> int:
        """Microseconds since the start; below 0 before it."""
        return (time.monotonic_ns() - self._zero_ns) // _NS_PER_US

    def monotonic_ns(self, at_us: int) -> int:
        """The same moment on CLOCK_MONOTONIC."""
        return self._zero_ns + at_us * _NS_PER_US


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Timer:
    """A file descriptor that becomes readable at a moment.

    Event loops round their own timers to milliseconds; Linux's timerfd is good to some 50 µs.
    """

    _ABSOLUTE = 1

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def set(self, monotonic_ns: int) -> None:
        """Make it readable then; at once if that has passed."""
        # 0 would switch it off.
        seconds, nanoseconds = divmod(max(1, monotonic_ns), 1_000_000_000)
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
        self._libc.timerfd_settime(self.fd, self._ABSOLUTE, ctypes.byref(spec), None)

    def clear(self) -> None:
        """Read it, so that it is not readable any more."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
