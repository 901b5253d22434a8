# SPDX-License-Identifier: Apache-2.0
"""Records as Locust's statistics: its request event, and separate entries for TTFT and ITL.

Response times run from the planned moment. TTFT and ITL stay out of the "Aggregated" row, which
would otherwise mix three kinds of times and count a request three times over. Locust rounds
response times to two digits; here they fall into HdrHistogram's buckets of three digits, and merge
over workers as they are.
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
    """Replace Locust's rounding, and chart what load tests are about."""
    stats.bucket_response_time = bucket
    stats.PERCENTILES_TO_CHART = _CHARTED


@lru_cache(65536)
def bucket(milliseconds: float) -> float:
    """The lower end of the histogram's bucket, in milliseconds."""
    microseconds = min(max(round(milliseconds * _MS), LOWEST_US), HIGHEST_US)
    return float(_BUCKETS.get_lowest_equivalent_value(microseconds)) / _MS


def fire_request(environment: Any, line: str) -> None:
    """Count a record; its event is left out if it was cancelled on purpose."""
    record = json.loads(line)
    name, at, planned = record["class"], record["at"], record["planned"]
    counts = record.get("n") or [1] * len(at)
    if at:
        _log(environment, "TTFT", name, at[0] - planned, 1)
    for (before, now), tokens in zip(pairwise(at), counts[1:], strict=True):
        _log(environment, "ITL", name, (now - before) // tokens, tokens)
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
    """One measurement, `times` over: as `StatsEntry.log`, at the price of one."""
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
