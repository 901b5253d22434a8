# SPDX-License-Identifier: Apache-2.0
"""Feed records into Locust's statistics: its request event, and separate TTFT and ITL entries.

Response times run from the planned time. TTFT and ITL stay out of the "Aggregated" row, which would
otherwise mix three kinds of times and count a request three times. Locust rounds response times to
two digits; this module uses HdrHistogram's buckets of three digits, which merge across workers.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import pairwise
from typing import Any

from locust import stats

from loadlib.failures import Failure, WireError
from loadlib.progress import HIGHEST_US, LOWEST_US, new_histogram

_MS = 1000
_BUCKETS = new_histogram()
_CHARTED = [0.5, 0.99]


def use_hdr_buckets() -> None:
    """Replace Locust's rounding and chart P50 and P99."""
    stats.bucket_response_time = bucket
    stats.PERCENTILES_TO_CHART = _CHARTED


@lru_cache(65536)
def bucket(milliseconds: float) -> float:
    """Return the lower bound of the histogram's bucket, in milliseconds."""
    microseconds = min(max(round(milliseconds * _MS), LOWEST_US), HIGHEST_US)
    return float(_BUCKETS.get_lowest_equivalent_value(microseconds)) / _MS


def fire_request(environment: Any, line: str) -> None:
    """Count a record; fire no event for a planned cancel."""
    record = json.loads(line)
    name, at, planned = record["class"], record["at"], record["planned"]
    counts = record.get("n") or [1] * len(at)
    if at:
        _log(environment, "TTFT", name, at[0] - planned, 1)
    for (previous, current), tokens in zip(pairwise(at), counts[1:], strict=True):
        _log(environment, "ITL", name, (current - previous) // tokens, tokens)
    if record["outcome"] == "cancelled":
        return
    environment.events.request.fire(
        request_type="infer" if record["out"] is None else "stream",
        name=name,
        response_time=(record["end"] - planned) / _MS,
        response_length=sum(counts),
        exception=_exception(record),
        context={
            "index": record["i"],
            "send_lag_ms": (record["sent"] - planned) / _MS,
            "ttft_ms": (at[0] - planned) / _MS if at else None,
        },
    )


def _log(environment: Any, kind: str, name: str, microseconds: int, times: int) -> None:
    """Log a measurement `times` times at the cost of one `StatsEntry.log`."""
    entry = environment.stats.get(name, kind)
    entry.log(microseconds / _MS, 0)
    if times > 1:
        entry.num_requests += times - 1
        entry.num_reqs_per_sec[int(entry.last_request_timestamp)] += times - 1
        entry.total_response_time += (times - 1) * microseconds / _MS
        entry.response_times[bucket(microseconds / _MS)] += times - 1


def _exception(record: dict[str, Any]) -> Exception | None:
    outcome, error = record["outcome"], record.get("error")
    if outcome == "ok":
        return None
    message = f"{error['kind']}: {error['message']}" if error else outcome
    return WireError(Failure(outcome, message))
