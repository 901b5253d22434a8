# SPDX-License-Identifier: Apache-2.0
"""A generator that lagged, was busy, was lost or sent too little measured nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from tritonctl.loadtest.analysis.percentiles import DIGITS, HIGHEST, LOWEST, encode_histogram
from tritonctl.loadtest.analysis.validity import (
    GeneratorProgress,
    Lateness,
    lateness_doubts,
    max_lag_ms,
    send_lateness,
    validity_problems,
)

Line = dict[str, Any]


def second(t: int, worker: int = 0, *, cpu: float = 0.2, planned: int = 0, sent: int = 0) -> Line:
    """A progress line."""
    return {"t": t, "worker": worker, "cpu": cpu, "planned": planned, "sent": sent}


def end(worker: int = 0, reason: str = "complete", unsent: int = 0) -> Line:
    """The last line of a worker."""
    return {"finished": True, "worker": worker, "reason": reason, "unsent": unsent}


def judged(lines: list[Line], sent: Lateness | None = None, expected: int = 1) -> list[str]:
    """What is wrong with a run of these lines, without an SLO."""
    progress = GeneratorProgress.from_lines(lines, expected)
    return validity_problems(progress, progress.wake_lateness(max_lag_ms({})), sent)


def lags(late: int, n: int, ms: float = 12.3) -> Lateness | None:
    """So many of `n` requests sent so late, the others at once, where 10 ms are allowed."""
    return send_lateness(np.array([ms] * late + [0.1] * (n - late)), 10.0)


@pytest.mark.parametrize(
    ("slo", "limit"),
    [
        ({}, 10.0),
        ({"itl_p99_ms": 30.0}, 10.0),
        ({"ttft_p99_ms": 500.0}, 5.0),
        ({"ttft_p99_ms": 50.0, "e2e_p99_ms": 5000.0}, 1.0),
        ({"ttft_p99_ms": None, "e2e_p99_ms": 300.0}, 3.0),
    ],
)
def test_how_late_is_too_late(slo: dict[str, float | None], limit: float) -> None:
    """1 % of the smallest promise that begins with sending, at least 1 ms."""
    assert max_lag_ms(slo) == pytest.approx(limit)


def test_a_good_run() -> None:
    """Nothing to say; also when nothing was said about the CPU."""
    lines = [second(1, planned=10, sent=10), second(2, planned=20, sent=19), end()]
    assert judged(lines) == []
    assert judged([{"t": 1, "worker": 0, "cpu": None}, end()]) == []
    assert send_lateness(np.array([]), 10.0) is None


def test_late() -> None:
    """P99 of the lag is over the limit: with all figures and what to do."""
    (problem,) = judged([end()], lags(60, 1000))
    assert "P99 12.3 ms, more than 10 ms; 60 of 1000 were later, 6 % [4.61, 7.66], 1 %" in problem
    assert "more workers" in problem


@pytest.mark.parametrize(
    ("late", "n", "verdict"),
    [
        (0, 58, "clean"),
        (1, 58, "doubt"),  # the largest of 58 is their P99
        (2, 58, "doubt"),
        (3, 58, "late"),  # Clopper and Pearson: 1.08 % at least
        (1, 1, "late"),
        (10, 1000, "clean"),
        (11, 1000, "doubt"),
        (17, 1000, "doubt"),
        (18, 1000, "late"),
        (50, 5000, "clean"),
        (51, 5000, "late"),  # a run that may decide has no room for doubt
        (49, 4999, "clean"),
        (63, 4999, "doubt"),
        (65, 4999, "late"),
    ],
)
def test_few_requests_prove_little(late: int, n: int, verdict: str) -> None:
    """Late when the interval of the share is above 1 %, from 5,000 on when the share is."""
    found = lags(late, n)
    told = {"late": judged([end()], found), "doubt": lateness_doubts(None, found)}
    assert [name for name, words in told.items() if words] == ([verdict] * (verdict != "clean"))
    for doubt in told["doubt"]:
        assert doubt.startswith("the generator may have sent late: P99 12.3 ms")
        assert doubt.endswith("too few to decide, run longer")


@pytest.mark.parametrize(("busy", "found"), [(5, 0), (6, 1)])
def test_busy(busy: int, found: int) -> None:
    """More than 80 % of a core in more than 5 % of the seconds."""
    lines = [second(t, cpu=0.95 if t < busy else 0.8) for t in range(100)]
    problem = judged([*lines, end()])
    assert len(problem) == found
    assert all(f"in {busy} of 100 seconds" in text for text in problem)


@pytest.mark.parametrize(
    ("late", "n", "found"), [(9, 1000, 0), (18, 1000, 1), (99, 10_000, 0), (101, 10_000, 1)]
)
def test_woke_late(late: int, n: int, found: int) -> None:
    """What is read late is measured late: 1 % of the wakings may be over the limit."""
    made = HdrHistogram(LOWEST, HIGHEST, DIGITS)
    made.record_value(100, n - late)
    made.record_value(12_000, late)
    problem = judged([second(1) | {"woke": encode_histogram(made)}, second(2), end()])
    assert len(problem) == found
    assert all("P99 12 ms, more than 10 ms" in text for text in problem)


def test_unsent() -> None:
    """Fewer than nine in ten of what was due."""
    assert judged([second(9, planned=100, sent=90), end()]) == []
    (problem,) = judged([second(9, planned=100, sent=89), end()])
    assert problem == "only 89 of 100 requests that were due were sent"


def test_interrupted_runs_are_judged_until_then() -> None:
    """What became due while the last answers were awaited was not to be sent any more."""
    lines = [second(1, planned=10, sent=10), *(second(t, planned=10 * t, sent=10) for t in (2, 9))]
    assert judged([*lines, end(reason="interrupted", unsent=80)]) == []
    assert GeneratorProgress.from_lines([*lines, end(reason="interrupted", unsent=80)]).unsent == 80
    assert len(judged([*lines, end()])) == 1


def test_lost_workers() -> None:
    """One that ended without a last line, one that never said a word."""
    progress = GeneratorProgress.from_lines([second(1, 0), second(1, 1), end(0)], expected=3)
    assert progress.reason == "worker lost"
    assert progress.lost_workers == [1, 2]
    found = validity_problems(progress, None, None)
    assert found[0].startswith("worker 1 was lost")
    assert "generator-2.log" in found[1]


def test_what_ended_the_run() -> None:
    """The worst of what the workers say."""
    assert GeneratorProgress.from_lines(
        [end(0), end(1, "server gone"), end(2, "interrupted")]
    ).reason == ("server gone")
    assert GeneratorProgress.from_lines([end(0), end(1, "interrupted")]).reason == "interrupted"
    assert GeneratorProgress.from_lines([end(0, "something new")]).reason == "something new"
    assert GeneratorProgress.from_lines([], 1).reason == "worker lost"
