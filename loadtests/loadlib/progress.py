# SPDX-License-Identifier: Apache-2.0
"""Counts and HdrHistograms of one worker, one line per second.

Times run from the planned time. ITL is the gap between two responses divided by the tokens of the
later one, counted once per token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from loadlib.clock import US

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3
METRICS = ("ttft", "e2e", "itl")
_OUTCOMES = ("ok", "error", "cancelled", "timeout", "abandoned")
_FAILED = ("error", "timeout", "abandoned")


def new_histogram() -> Any:
    """Return an empty histogram of microseconds."""
    from hdrh.histogram import HdrHistogram

    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


class Meter:
    """Counts one worker's requests. `due` returns the number planned by a time (µs)."""

    def __init__(self, worker: int, due: Callable[[int], int] | None = None) -> None:
        self._worker = worker
        self._due = due
        self._outcomes = dict.fromkeys(_OUTCOMES, 0)
        self._sent = 0
        self._later_turns = 0
        self._tokens = 0
        self._empty = 0
        self._lags: list[int] = []
        self._totals = {name: new_histogram() for name in METRICS}
        self._second = {name: new_histogram() for name in METRICS}
        self._wake_lags = new_histogram()
        self._cpu, self._wall = time.process_time(), time.monotonic()

    @property
    def in_flight(self) -> int:
        """The number of requests sent and not yet ended."""
        return self._sent - sum(self._outcomes.values())

    def count_sent(self, lag_us: int, *, first: bool = True) -> None:
        """Count a sent request with its lag; `first` is False for later turns."""
        self._sent += 1
        self._later_turns += not first
        self._lags.append(max(0, lag_us))

    def count_wake(self, late_us: int) -> None:
        """Count a wake-up with its lateness."""
        self._wake_lags.record_value(_clamp(late_us))

    def count_response(self, tokens: int, microseconds: int, *, first: bool) -> None:
        """Count tokens and the time since the previous ones or, if `first`, the planned time."""
        self._tokens += tokens
        if first:
            self._second["ttft"].record_value(_clamp(microseconds))
        else:
            self._second["itl"].record_value(_clamp(microseconds // tokens), tokens)

    def count_end(self, outcome: str, microseconds: int, *, empty: bool = False) -> None:
        """Count an ended request; only successful ones enter the end-to-end histogram.

        `empty`: it succeeded without a token, although it is a text.
        """
        self._outcomes[outcome] += 1
        self._empty += empty
        if outcome == "ok":
            self._second["e2e"].record_value(_clamp(microseconds))

    def line(self, now_us: int) -> dict[str, Any]:
        """Return the line of the second that ends now."""
        finished = self._next_second()
        woke, self._wake_lags = self._wake_lags, new_histogram()
        return {
            "t": round(now_us / US, 3),
            "worker": self._worker,
            **self._counts(now_us),
            "cpu": self._cpu_share(),
            "lag_p99_us": self._lag_p99(),
            "woke": _encode(woke),
            **{name: _encode(finished[name]) for name in METRICS},
        }

    def last_line(self, now_us: int, reason: str, unsent: int) -> dict[str, Any]:
        """Return the last line, with the histograms of the whole run."""
        self._next_second()
        totals = self._counts(now_us) | self._outcomes
        return {
            "finished": True,
            "worker": self._worker,
            "reason": reason,
            "unsent": unsent,
            "totals": totals,
            "histograms": {name: _encode(self._totals[name]) for name in METRICS},
        }

    def _counts(self, now_us: int) -> dict[str, int]:
        return {
            "planned": self._due(now_us) + self._later_turns if self._due else self._sent,
            "sent": self._sent,
            "done": sum(self._outcomes.values()),
            "failed": sum(self._outcomes[name] for name in _FAILED),
            "in_flight": self.in_flight,
            "tokens": self._tokens,
            "empty": self._empty,
        }

    def _next_second(self) -> dict[str, Any]:
        finished, self._second = self._second, {name: new_histogram() for name in METRICS}
        for name in METRICS:
            self._totals[name].add(finished[name])
        return finished

    def _cpu_share(self) -> float:
        cpu, wall = time.process_time(), time.monotonic()
        share = (cpu - self._cpu) / max(1e-6, wall - self._wall)
        self._cpu, self._wall = cpu, wall
        return round(share, 4)

    def _lag_p99(self) -> int | None:
        lags, self._lags = sorted(self._lags), []
        return lags[min(len(lags) - 1, len(lags) * 99 // 100)] if lags else None


def _clamp(microseconds: int) -> int:
    return min(max(microseconds, LOWEST_US), HIGHEST_US)


def _encode(histogram: Any) -> str:
    return str(histogram.encode().decode("ascii"))
