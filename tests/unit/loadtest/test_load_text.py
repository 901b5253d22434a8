# SPDX-License-Identifier: Apache-2.0
"""What a load test says at a terminal, and what a search makes of a run: on whole, made-up runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest_records import SyntheticRun
from tritonctl.loadtest.analysis.capacity import Capacity, CapacityTrial
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.analysis.summary import MET, MISSED, UNDECIDED, Summary
from tritonctl.loadtest.report.capacity_text import (
    CAPACITY_HEADINGS,
    capacity_rows,
    conclusion_lines,
)
from tritonctl.loadtest.report.summary_text import (
    HEADINGS,
    metric_rows,
    next_lines,
    opening_lines,
    verdict_lines,
)
from tritonctl.loadtest.run.capacity import CapacityRun, Overload, judge_trial
from tritonctl.loadtest.run.execution import LoadRun


def _summary(folder: Path, **changes: Any) -> Summary:
    SyntheticRun(**changes).write(folder)
    return summarise(folder)


def test_a_long_run(tmp_path: Path) -> None:
    """P99 with its interval; a verdict per promise; where everything is and what to do next."""
    summary = _summary(tmp_path, rate=80, seconds=30)
    table = {row[0]: dict(zip(HEADINGS, row, strict=True)) for row in metric_rows(summary)}
    assert {"TTFT", "ITL", "TPOT", "end to end", "TTFT from send", "send lag"} <= set(table)
    found = summary.metrics["ttft"].percentile(0.99)
    assert found is not None
    assert table["TTFT"]["P99"] != "-"
    assert " .. " in table["TTFT"]["P99, 95 %"]
    told = "\n".join([*opening_lines(summary), *verdict_lines(summary), *next_lines(tmp_path)])
    assert f"requests to {summary.model}" in told
    assert f"{summary.slo[0].verdict.upper():<9} ttft_p99_ms 200 ms: " in told
    assert "to compare settings, send 5,000 requests: --count 5000" in told
    assert f"limited by: {summary.limited_by}" in told
    assert told.endswith(f"next: tritonctl loadtest report {tmp_path}")
    (tmp_path / "report.html").touch()
    assert next_lines(tmp_path)[-1] == f"next: open {tmp_path / 'report.html'}"


def test_a_short_run(tmp_path: Path) -> None:
    """No P99, and why not; failures by kind."""
    summary = _summary(tmp_path, rate=20, seconds=5, error_share=0.3)
    (row,) = (row for row in metric_rows(summary) if row[0] == "end to end")
    assert dict(zip(HEADINGS, row, strict=True))["P99"] == "-"
    told = "\n".join([*opening_lines(summary), *verdict_lines(summary), *next_lines(tmp_path)])
    assert "no P99: it needs 500 requests in the measured window" in told
    assert f"{summary.counts.error} error" in told
    assert f"{summary.errors[0].count} x {summary.errors[0].kind}" in told


def test_a_model_without_tokens(tmp_path: Path) -> None:
    """Images and tensors have none, so no rate of them is told."""
    summary = _summary(tmp_path)
    assert " tokens/s, goodput " in "".join(opening_lines(summary))
    without = replace(summary, rates=replace(summary.rates, tokens_per_s=0))
    assert "tokens/s" not in "".join(opening_lines(without))


def test_a_run_that_measured_nothing(tmp_path: Path) -> None:
    """A lost worker makes it invalid, and the text says so."""
    summary = _summary(tmp_path, finished=False)
    assert any(line.startswith("INVALID   ") for line in verdict_lines(summary))


def test_a_doubt_is_told(tmp_path: Path) -> None:
    """One late send of few: valid, and said so."""
    summary = replace(_summary(tmp_path), doubts=("the generator may have sent late: 1 of 58",))
    lines = [*verdict_lines(summary), *next_lines(tmp_path)]
    assert "UNCERTAIN the generator may have sent late: 1 of 58" in lines
    assert not any(line.startswith("INVALID") for line in lines)


def _trial(summary: Summary, **changes: Any) -> CapacityTrial:
    return judge_trial(40, LoadRun(Path("run"), summary, **changes))


def test_what_a_run_says_of_a_rate(tmp_path: Path) -> None:
    """Its verdict; undecided by its point estimates; given up is missed; unsent proves nothing."""
    summary = _summary(tmp_path, rate=20, seconds=10)
    assert summary.slo_verdict == UNDECIDED
    assert (_trial(summary).verdict, _trial(summary).holds) == (UNDECIDED, True)
    given_up = _trial(summary, stop_reason="too slow")
    assert (given_up.verdict, given_up.note) == (MISSED, "given up: too slow")
    rising = replace(summary, window=replace(summary.window, stationary=False, growth=99.0))
    assert not _trial(rising).holds
    for broken in (
        replace(summary, reason="server gone", slo_verdict=MET),
        replace(summary, counts=replace(summary.counts, sent=1), slo_verdict=MET),
    ):
        trial = _trial(broken)
        assert (trial.verdict, trial.holds) == (UNDECIDED, False)
        assert "requests were sent" in trial.note
    late = replace(summary, slo_verdict=MET, valid=False, invalid_because=("it was late: 9 ms",))
    assert (_trial(late).verdict, _trial(late).note) == (MET, "it was late")
    both = _trial(late, stop_reason="too slow")
    assert (both.note, both.valid) == ("given up: too slow; it was late", False)
    assert _trial(summary).valid


BEST = CapacityTrial(
    40, UNDECIDED, likely=True, figures={"goodput_rps": 39.5, "ttft_p50_ms": 12.345}
)
WORSE = CapacityTrial(80, MISSED, note="given up: ttft of 40% was over 500 ms")


def _search(capacity: Capacity, overload: Overload | None = None) -> list[str]:
    done = CapacityRun(Path("runs"), capacity, overload)
    json.dumps(done.to_record(), allow_nan=False)
    for row in capacity_rows(done):
        assert len(row) == len(CAPACITY_HEADINGS)
    return conclusion_lines(done)


def test_a_search() -> None:
    """The rate, what is beyond it, how to be sure; a table by rate."""
    capacity = Capacity(40, 80, "found", (WORSE, BEST))
    beyond = Overload(replace(WORSE, rate=48), "sheds", "39 requests/s within the SLO")
    told = _search(capacity, beyond)
    assert told[0] == "capacity: 40 requests/s, missed at 80/s"
    assert "tritonctl loadtest run --rate 40 --count 5000" in told[1]
    assert told[2] == "at 48/s it sheds: 39 requests/s within the SLO"
    table = capacity_rows(CapacityRun(Path("runs"), capacity, beyond))
    assert [row[0] for row in table] == ["40", "80", "48"]
    assert table[0][1:4] == ["likely met", "39.5", "12.3, -"]


@pytest.mark.parametrize(
    ("capacity", "told"),
    [
        (Capacity(None, 1, "lowest", (WORSE,)), "missed at the lowest rate, 1/s"),
        (Capacity(None, None, "interrupted", ()), "no trial finished"),
        (Capacity(40, None, "highest", (BEST,)), "that is --highest"),
        (Capacity(40, 80, "budget", (BEST, WORSE)), "the budget ended"),
        (Capacity(40, None, "server gone", (BEST,)), "then the server died"),
    ],
)
def test_searches_that_end_otherwise(capacity: Capacity, told: str) -> None:
    """Why there is no better answer."""
    assert told in _search(capacity)[0]


def test_a_late_generator_is_told_of() -> None:
    """A miss may be its own; where it kept up, or the SLO was met all the same, nothing is said."""
    late = replace(WORSE, valid=False)
    told = "\n".join(_search(Capacity(40, 80, "found", (late, BEST, replace(WORSE, rate=60)))))
    assert "in 1 of the 2 trials that missed the generator itself was late or busy" in told
    told = "\n".join(_search(Capacity(None, 80, "lowest", (late,))))
    assert "in 1 of the 1 trials that missed" in told
    fine = Capacity(40, 80, "found", (WORSE, replace(BEST, valid=False)))
    assert "late or busy" not in "\n".join(_search(fine))
