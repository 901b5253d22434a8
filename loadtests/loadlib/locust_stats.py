# SPDX-License-Identifier: Apache-2.0
"""What the recorder sees, told to Locust: its request event, and statistics of TTFT and ITL.

Response times run from the planned moment. TTFT and ITL are entries of their own in Locust's
statistics; they stay out of its "Aggregated" row, which would otherwise mix three kinds of times
and count a request three times over. Locust rounds response times to two digits; here they fall
into HdrHistogram's buckets of three digits, and merge over workers as they are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from locust import stats

from loadlib.failures import Failure, WireError
from loadlib.progress import HIGHEST_US, LOWEST_US, Meter, new_histogram
from loadlib.records import Flight, Recorder
from loadlib.workload import PlannedRequest

_MS = 1000
_BUCKETS = new_histogram()
_CHARTED = [0.5, 0.99]


def use_hdr_buckets() -> None:
    """Replace Locust's rounding, and chart what load tests are about."""
    stats.bucket_response_time = bucket
    stats.PERCENTILES_TO_CHART = _CHARTED


@lru_cache(65536)
def bucket(milliseconds: float) -> float:
    """The lower end of the histogram's bucket, in milliseconds."""
    microseconds = min(max(round(milliseconds * _MS), LOWEST_US), HIGHEST_US)
    return float(_BUCKETS.get_lowest_equivalent_value(microseconds)) / _MS


class Lines:
    """Where records wait for the next second's report."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        """Keep a line."""
        self._lines.append(line)

    def take(self) -> str:
        """All of them, as one text."""
        lines, self._lines = self._lines, []
        return "".join(lines)


class LocustRecorder(Recorder):
    """A recorder that tells Locust, too."""

    def __init__(
        self, lines: Lines, meter: Meter, environment: Any, *, worker: int, text: bool
    ) -> None:
        super().__init__(lines, meter, worker=worker, text=text)  # type: ignore[arg-type]
        self._environment = environment
        self._verb = "stream" if text else "infer"

    def responded(self, flight: Flight, tokens: int, now_us: int) -> None:
        """A response came: a first token, or a gap between tokens."""
        before = flight.at[-1] if flight.at else None
        super().responded(flight, tokens, now_us)
        if tokens > 0:
            name = flight.request.request_class.name
            if before is None:
                self._log("TTFT", name, now_us - flight.planned, 1)
            else:
                self._log("ITL", name, (now_us - before) // tokens, tokens)

    def ended(
        self, flight: Flight, outcome: str, now_us: int, error: Failure | None = None
    ) -> None:
        """It is over: an event of Locust's, unless it was cancelled on purpose."""
        super().ended(flight, outcome, now_us, error)
        if outcome != "cancelled":
            self._fire(flight, now_us, None if outcome == "ok" else _exception(outcome, error))

    def _log(self, kind: str, name: str, microseconds: int, times: int) -> None:
        """One measurement, `times` over: as `StatsEntry.log`, at the price of one."""
        entry = self._environment.stats.get(name, kind)
        entry.log(microseconds / _MS, 0)
        if times > 1:
            entry.num_requests += times - 1
            entry.num_reqs_per_sec[int(entry.last_request_timestamp)] += times - 1
            entry.total_response_time += (times - 1) * microseconds / _MS
            entry.response_times[bucket(microseconds / _MS)] += times - 1

    def _fire(self, flight: Flight, now_us: int, exception: Exception | None) -> None:
        request: PlannedRequest = flight.request
        self._environment.events.request.fire(
            request_type=self._verb,
            name=request.request_class.name,
            response_time=(now_us - flight.planned) / _MS,
            response_length=sum(flight.n),
            exception=exception,
            context={
                "index": request.index,
                "send_lag_ms": (flight.sent - flight.planned) / _MS,
                "ttft_ms": (flight.at[0] - flight.planned) / _MS if flight.at else None,
            },
        )


def _exception(outcome: str, error: Failure | None) -> Exception:
    return WireError(Failure(outcome, f"{error.kind}: {error.message}" if error else outcome))
