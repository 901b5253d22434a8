# SPDX-License-Identifier: Apache-2.0
"""When a trial that runs is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hdrh.histogram import HdrHistogram

from tritonctl.loadtest.analysis.slo import latency_limits
from tritonctl.loadtest.run.live import LiveFigures, Quantiles
from tritonctl.tuning.trial_runner import hopeless_reason

LIMITS = latency_limits({"ttft_p99_ms": 100.0, "error_rate": 0.001})
QUIET = LiveFigures(
    seconds=5.0,
    remaining_seconds=25.0,
    planned=1000,
    sent=1000,
    done=1000,
    failed=0,
    in_flight=0,
    tokens=0,
    offered_rps=200.0,
    achieved_rps=200.0,
    tokens_per_s=0.0,
    generator_cpu=0.1,
    lag_p99_ms=0.1,
    run={},
    recent={},
)


def answered(within: int, over: int) -> LiveFigures:
    """So many answers in 50 ms, so many in 500."""
    histogram = HdrHistogram(1, 3_600_000_000, 3)
    histogram.record_value(50_000, within)
    histogram.record_value(500_000, over)
    run = {"ttft": Quantiles(within + over, 50.0, 500.0)}
    return replace(QUIET, run=run, histograms={"ttft": histogram})


@pytest.mark.parametrize(
    ("within", "over", "given_up"),
    [(1000, 0, False), (980, 20, False), (960, 40, False), (800, 200, True), (5, 20, False)],
)
def test_far_over_the_limit(within: int, over: int, given_up: bool) -> None:
    """Not for a few slow answers, and not where the P99 is merely missed: that takes the time."""
    assert bool(hopeless_reason(answered(within, over), LIMITS)) is given_up


def test_not_in_the_first_seconds() -> None:
    """The beginning is warm-up."""
    assert hopeless_reason(replace(answered(0, 500), seconds=1.0), LIMITS) is None


def test_many_failures() -> None:
    """Requests that are refused are over every limit."""
    assert hopeless_reason(replace(QUIET, failed=20), LIMITS) is None
    assert hopeless_reason(replace(QUIET, failed=400), LIMITS) == "400 of 1000 requests have failed"
