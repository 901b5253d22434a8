# SPDX-License-Identifier: Apache-2.0
"""Verdicts: a promise is met or missed beyond chance, or undecided, and the reason is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.analysis.bootstrap import ShareEstimate
from tritonctl.loadtest.analysis.columns import Columns
from tritonctl.loadtest.analysis.records import LoadRecord
from tritonctl.loadtest.analysis.slo import (
    decide_verdict,
    judge,
    latency_limits,
    meets_slo,
    overall_verdict,
)
from tritonctl.loadtest.analysis.summary import MET, MISSED, UNDECIDED, SloVerdict

COOL_DOWN = 30_000_000
SLO = {"ttft_p99_ms": 100.0}


def columns(
    n: int, slow: int = 0, *, together: bool = False, **ends: tuple[int, dict[str, Any]]
) -> Columns:
    """`n` requests of 3 tokens, `slow` of them with a TTFT of 200 ms, in a row if `together`.

    ends: how many end how.
    """
    late = set((n // 3 + np.arange(slow)).tolist() if together else _spread(n, slow))
    records = [_record(i, 200_000 if i in late else 20_000, {}) for i in range(n)]
    for count, changes in ends.values():
        for i in _spread(n, count):
            records[i] = _record(i, 20_000, changes)
    return Columns.from_records(records)


def _spread(n: int, count: int) -> list[int]:
    """Evenly, so that they look independent."""
    return [(2 * i + 1) * n // (2 * count) for i in range(count)]


def _record(i: int, ttft: int, changes: dict[str, Any]) -> LoadRecord:
    planned = i * 10_000
    at = [planned + ttft, planned + ttft + 5000, planned + ttft + 15_000]
    given: dict[str, Any] = {
        "i": i,
        "class": "short",
        "planned": planned,
        "sent": planned,
        "at": at,
        "end": at[-1],
        "outcome": "ok",
    }
    return LoadRecord.model_validate(given | changes)


def error(i: int = 0) -> dict[str, Any]:
    """What an error looks like."""
    return {"at": [], "outcome": "error", "error": {"kind": "UNAVAILABLE", "message": "full"}}


def one(found: tuple[SloVerdict, ...]) -> SloVerdict:
    """The only verdict."""
    (verdict,) = found
    return verdict


@pytest.mark.parametrize(
    ("n", "slow", "verdict"),
    [
        (100, 0, "undecided"),
        (368, 0, "met"),
        (1000, 0, "met"),
        (1000, 2, "met"),
        (1000, 8, "undecided"),
        (1000, 14, "undecided"),
        (1000, 25, "missed"),
        (20, 20, "missed"),
        (5000, 35, "met"),
        (5000, 50, "undecided"),
        (5000, 75, "missed"),
        (1, 0, "undecided"),
    ],
)
def test_verdicts(n: int, slow: int, verdict: str) -> None:
    """1 % may be slow; few requests prove little, many decide near the limit."""
    found = one(judge(columns(n, slow), SLO, cool_down_us=COOL_DOWN))
    assert found.verdict == verdict
    assert found.share_over == pytest.approx(slow / n)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= slow / n <= found.high
    assert found.allowed_share == pytest.approx(0.01)
    assert ("run longer" in found.why) == (verdict == "undecided")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.0, 0.05, MET),  # what is allowed is allowed
        (0.05, 0.05, MET),
        (0.0, 0.0500001, UNDECIDED),
        (0.05, 0.06, UNDECIDED),
        (0.0500001, 0.06, MISSED),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, verdict: str) -> None:
    """Wherever the share itself lies."""
    assert decide_verdict(ShareEstimate(0.05, low, high, 10_000), 0.05, "fail")[0] == verdict


def test_the_reason_in_words() -> None:
    """The share with its interval, what may be, and why nothing could be decided."""

    def why(n: int, slow: int) -> str:
        return one(judge(columns(n, slow), SLO, cool_down_us=COOL_DOWN)).why

    assert why(1000, 25) == "2.5 % [1.62, 3.67] take longer than 100 ms, 1 % allowed"
    assert why(100, 0) == (
        "0 % [0, 3.62] take longer than 100 ms, 1 % allowed: too few independent requests to "
        "decide, run longer"
    )
    assert why(6000, 60).endswith("1 % allowed: too close to the limit to decide, run longer")


def test_one_stall_is_one_event() -> None:
    """Thirty slow requests in a row prove less than thirty of them spread over the run."""
    spread = one(judge(columns(1000, 30), SLO, cool_down_us=COOL_DOWN))
    stall = one(judge(columns(1000, 30, together=True), SLO, cool_down_us=COOL_DOWN))
    assert (spread.verdict, stall.verdict) == ("missed", "undecided")
    assert stall.share_over == spread.share_over == pytest.approx(0.03)


@pytest.mark.parametrize(("limit", "verdict"), [(1000.0, "met"), (25.0, "undecided")])
def test_a_limit_far_above_the_percentile_s_interval(limit: float, verdict: str) -> None:
    """Ordinary times come in long phases, the slowest alone: nothing is near 1,000 ms."""
    phases = {*range(300, 380), *range(1200, 1280)}
    slowest = set(_spread(2000, 22))
    times = [30_000 if i in slowest else 20_000 if i in phases else 10_000 for i in range(2000)]
    records = Columns.from_records([_record(i, time, {}) for i, time in enumerate(times)])
    found = one(judge(records, {"ttft_p99_ms": limit}, cool_down_us=COOL_DOWN))
    assert found.verdict == verdict


@pytest.mark.parametrize(
    "changes",
    [
        error(),
        {"at": [], "outcome": "timeout", "end": 10**9},
        {"at": [], "outcome": "abandoned", "end": 10**9},
    ],
)
@pytest.mark.parametrize("promise", ["ttft_p99_ms", "itl_p99_ms", "e2e_p99_ms"])
def test_no_answer_is_over_every_limit(promise: str, changes: dict[str, Any]) -> None:
    """Failed requests break each promise, whatever it is about."""
    found = one(
        judge(columns(1000, lost=(30, changes)), {promise: 10_000.0}, cool_down_us=COOL_DOWN)
    )
    assert found.share_over == pytest.approx(0.03)
    assert found.verdict == "missed"
    assert found.why.startswith("30 failed requests count as over the limit: 3 % [")


def test_cancelled_on_purpose() -> None:
    """No failure; without a token it breaks a promise once it was waited for that long."""
    for waited, share, verdict in ((90_000, 0, "met"), (130_000, 0.03, "missed")):
        records = [_record(i, 20_000, {}) for i in range(1000)]
        for i in _spread(1000, 30):
            records[i] = _record(
                i, 0, {"outcome": "cancelled", "at": [], "end": i * 10_000 + waited}
            )
        found = one(judge(Columns.from_records(records), SLO, cool_down_us=COOL_DOWN))
        assert (found.share_over, found.verdict) == (share, verdict)


def test_gaps_count_by_token() -> None:
    """The gap of 10 ms is one of two in every request: half of the tokens are over 7 ms."""
    found = one(judge(columns(600), {"itl_p99_ms": 7.0}, cool_down_us=COOL_DOWN))
    assert (found.share_over, found.verdict) == (0.5, "missed")
    assert one(judge(columns(600), {"itl_p99_ms": 10.0}, cool_down_us=COOL_DOWN)).verdict == "met"


@pytest.mark.parametrize(
    ("n", "failed", "allowed", "verdict"),
    [
        (1000, 0, 0.001, "undecided"),
        (4000, 0, 0.001, "met"),
        (1000, 10, 0.001, "missed"),
        (50, 50, 0.5, "missed"),
        (300, 0, 0.0, "undecided"),
    ],
)
def test_error_rate(n: int, failed: int, allowed: float, verdict: str) -> None:
    """Exact binomial bounds of the share that failed."""
    lost = columns(n, lost=(failed, error()))
    found = one(judge(lost, {"error_rate": allowed}, cool_down_us=COOL_DOWN))
    assert found.verdict == verdict
    assert found.limit_ms is None
    assert found.why.startswith(f"{failed} of {n} failed: ")


def test_a_growing_queue_proves_nothing() -> None:
    """What was met so far may be missed by a longer run; what was missed stays missed."""
    found = one(judge(columns(1000), SLO, cool_down_us=COOL_DOWN, growth=9.0))
    assert found.verdict == "undecided"
    assert "response times rose until the end" in found.why
    slow = columns(1000, 500)
    assert one(judge(slow, SLO, cool_down_us=COOL_DOWN, growth=9.0)).verdict == "missed"
    little = one(judge(columns(1000), SLO, cool_down_us=COOL_DOWN, growth=0.01))
    assert little.verdict == "met"


def test_nothing_measured() -> None:
    """No request; requests without tokens for a promise about tokens."""
    promises = {"ttft_p99_ms": 5.0, "error_rate": 0.1}
    for verdict in judge(Columns.from_records([]), promises, cool_down_us=COOL_DOWN):
        assert verdict.verdict == "undecided"
        assert verdict.share_over is None
        assert verdict.why.startswith("no request")


def test_all_failed() -> None:
    """Nothing to measure, and yet missed: a server that was down from the beginning."""
    found = judge(columns(100, lost=(100, error())), SLO | {"error_rate": 0.01}, cool_down_us=0)
    assert [verdict.verdict for verdict in found] == ["missed", "missed"]
    assert [verdict.share_over for verdict in found] == [1, 1]


def test_promises() -> None:
    """Percentiles of any height; None is no promise; other names are refused."""
    found = latency_limits(
        {"ttft_p95_ms": 1.0, "e2e_p999_ms": 2.0, "itl_p99_ms": None, "error_rate": 0.1}
    )
    assert [(limit.metric, limit.ms) for limit in found] == [("ttft", 1.0), ("e2e", 2.0)]
    assert [limit.allowed_share for limit in found] == [0.05, 0.001]
    with pytest.raises(ConfigurationError, match=r"slo\.ttfb_p99_ms is not an SLO target"):
        latency_limits({"ttfb_p99_ms": 3.0})


def test_the_worst_verdict_is_the_run_s() -> None:
    """Missed before undecided before met; nothing promised, nothing judged."""

    def verdict(name: str) -> SloVerdict:
        return SloVerdict(name, 1.0, 0.01, 0.0, 0.0, 0.0, name, "")

    assert overall_verdict([verdict("met"), verdict("undecided"), verdict("missed")]) == "missed"
    assert overall_verdict([verdict("met"), verdict("undecided")]) == "undecided"
    assert overall_verdict([verdict("met")]) == "met"
    assert overall_verdict([]) is None


def test_goodput() -> None:
    """Answered within every limit; the mean gap of a request stands for itl."""
    run = columns(100, 10, lost=(5, error()))
    assert meets_slo(run, {}).sum() == 95
    slow = columns(100, 10)
    assert meets_slo(slow, SLO).sum() == 90
    assert meets_slo(slow, {"itl_p99_ms": 7.4}).sum() == 0
    assert meets_slo(slow, {"itl_p99_ms": 7.6, "e2e_p99_ms": 36.0}).sum() == 90


@pytest.mark.parametrize(
    ("metric", "limit"), [("ttft_p99_ms", 20.0), ("itl_p99_ms", 7.5), ("e2e_p99_ms", 35.0)]
)
def test_on_the_limit_is_within_it(metric: str, limit: float) -> None:
    """A request that takes just what is allowed is good; with less allowed none is."""
    run = columns(10)
    assert meets_slo(run, {metric: limit}).sum() == 10
    assert meets_slo(run, {metric: limit - 0.001}).sum() == 0
