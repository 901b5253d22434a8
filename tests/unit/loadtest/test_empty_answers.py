# SPDX-License-Identifier: Apache-2.0
"""What is missing is never good: answers without tokens, in one response, or of unknown length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest_records import SyntheticRun
from tritonctl.loadtest.analysis.columns import Columns
from tritonctl.loadtest.analysis.records import LoadRecord
from tritonctl.loadtest.analysis.series import duration_series
from tritonctl.loadtest.analysis.slo import judge, meets_slo
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.analysis.summary import MET, MISSED, UNDECIDED, Summary, write_summary
from tritonctl.loadtest.report.page import write_report
from tritonctl.loadtest.report.summary_text import opening_lines
from tritonctl.loadtest.run.capacity import clear_miss_condition, judge_trial
from tritonctl.loadtest.run.execution import LoadRun
from tritonctl.loadtest.run.live import LiveFigures
from tritonctl.project.base import Slo
from tritonctl.tuning.trial_runner import build_trial, hopeless_reason
from tritonctl.tuning.trials import TrialRequest

COOL_DOWN = 30_000_000
EMPTY: dict[str, Any] = {"at": [], "out": 0}


def record(i: int, **changes: Any) -> LoadRecord:
    """A text of 4 tokens in 4 responses, 20 ms each; it ends after 90 ms."""
    planned = i * 10_000
    fields: dict[str, Any] = {
        "i": i,
        "class": "short",
        "planned": planned,
        "sent": planned,
        "at": [planned + 20_000 * n for n in (1, 2, 3, 4)],
        "end": planned + 90_000,
        "outcome": "ok",
        "out": 4,
    }
    return LoadRecord.model_validate(fields | changes)


def columns(full: int, empty: int, **changes: Any) -> Columns:
    """So many full answers, with these changes, and empty ones, spread among them."""
    n = full + empty
    is_empty = [(i + 1) * empty // n > i * empty // n for i in range(n)]
    return Columns.from_records(
        [record(i, **(EMPTY if is_empty[i] else changes)) for i in range(n)]
    )


@pytest.mark.parametrize("slo", [{}, {"ttft_p99_ms": 500.0}, {"itl_p99_ms": 500.0}])
@pytest.mark.parametrize(("full", "empty"), [(355, 353), (0, 40), (40, 0)])
def test_an_answer_without_tokens_is_never_good(
    slo: dict[str, float | None], full: int, empty: int
) -> None:
    """With and without a limit, and also where no answer has any."""
    run = columns(full, empty)
    assert int(run.is_empty.sum()) == empty
    assert int(meets_slo(run, slo).sum()) == full


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        ("ttft_p99_ms", MISSED),
        ("itl_p99_ms", MISSED),
        ("tpot_p99_ms", MISSED),
        ("e2e_p99_ms", UNDECIDED),
        ("error_rate", UNDECIDED),
    ],
)
@pytest.mark.parametrize(("full", "empty"), [(355, 353), (0, 708)])
def test_it_cannot_make_a_target_met(target: str, verdict: str, full: int, empty: int) -> None:
    """No token came, so limits on tokens are exceeded; times of its end prove nothing."""
    slo = {target: 0.1 if target == "error_rate" else 500.0}
    (result,) = judge(columns(full, empty), slo, cool_down_us=COOL_DOWN)
    assert result.verdict == verdict
    assert f"{empty} " in result.why
    assert "tokens" in result.why
    (clean,) = judge(columns(708, 0), slo, cool_down_us=COOL_DOWN)
    assert clean.verdict == MET


def test_a_few_of_them_are_tolerated_as_far_as_failures_are() -> None:
    """One of two thousand, where one in a hundred may be over."""
    slo = {"ttft_p99_ms": 500.0, "e2e_p99_ms": 500.0, "error_rate": 0.01}
    verdicts = judge(columns(1999, 1), slo, cool_down_us=COOL_DOWN)
    assert {verdict.verdict for verdict in verdicts} == {MET}


def test_tensors_are_not_empty() -> None:
    """They have no tokens to lack."""
    run = Columns.from_records([record(i, at=[], out=None) for i in range(10)])
    assert not run.is_empty.any()
    assert meets_slo(run, {"e2e_p99_ms": 500.0}).all()
    assert not meets_slo(run, {"ttft_p99_ms": 500.0}).any(), "no value, so not shown to be good"


def test_one_response_has_no_time_per_token() -> None:
    """TPOT and ITL need two responses; their limits hold where the whole wait is short enough."""
    single = columns(40, 0, at=[100_000], n=[4], end=100_000, planned=0, sent=0)
    assert set(duration_series(single, COOL_DOWN)) == {
        *("ttft", "e2e", "service_ttft", "service_e2e", "send_lag")
    }
    assert meets_slo(single, {"itl_p99_ms": 34.0}).all(), "3 gaps within 100 ms"
    assert not meets_slo(single, {"itl_p99_ms": 33.0}).any(), "not shown to be good"
    (verdict,) = judge(single, {"itl_p99_ms": 34.0}, cool_down_us=COOL_DOWN)
    assert verdict.verdict == UNDECIDED
    word = columns(40, 0, at=[100_000], n=[1], end=100_000, planned=0, sent=0)
    assert meets_slo(word, {"itl_p99_ms": 1.0}).all(), "one token has no gap"


def _run(folder: Path, *, empty: float, slo: dict[str, float | None], **changes: Any) -> Summary:
    """A run in which this share of the answers was empty."""
    SyntheticRun(slo=slo, **changes).write(folder)
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        if int((number + 1) * empty) > int(number * empty):
            line.pop("n", None)
            line.update(EMPTY)
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return summarise(folder)


def test_the_summary_counts_them(tmp_path: Path) -> None:
    """In its counts, its goodput, at the terminal and on the page."""
    summary = _run(tmp_path, empty=0.5, slo={"e2e_p99_ms": 9000.0})
    counts = summary.counts
    assert counts.empty == pytest.approx(counts.ok / 2, abs=2)
    assert summary.rates.goodput_share == pytest.approx(0.5, abs=0.01)
    assert f"{counts.empty:,} answers without tokens (never good)" in "".join(
        opening_lines(summary)
    )
    write_summary(tmp_path, summary)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert f"{counts.empty:,} answers had no tokens: they are never good." in page


def test_answers_of_one_response_are_told(tmp_path: Path) -> None:
    """Also where each response was counted as one token."""
    summary = _run(tmp_path, empty=0.0, slo={}, tokens=(4, 4), coalesce=8)
    assert "answers came whole, in one response: without ITL and TPOT" in "".join(
        opening_lines(summary)
    )
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(line | {"uncounted": True}) + "\n" for line in lines)
    (tmp_path / "records.jsonl").write_text(text)
    assert f"{len(lines):,} answers had no num_output_tokens: each response counts as one" in (
        "".join(opening_lines(summarise(tmp_path)))
    )


def test_searches_do_not_take_them_for_met(tmp_path: Path) -> None:
    """Neither the verdict, nor the estimate, nor a run that goes on."""
    limits: dict[str, float | None] = {"e2e_p99_ms": 9000.0}
    good = _run(tmp_path / "good", empty=0.0, slo=limits, seconds=20)
    bad = _run(tmp_path / "bad", empty=0.5, slo=limits, seconds=20)
    request = TrialRequest({}, 40.0, 20.0, 0)
    assert judge_trial(40, LoadRun(tmp_path, good)).holds
    assert not judge_trial(40, LoadRun(tmp_path, bad)).holds
    assert build_trial(request, LoadRun(tmp_path, good), 20.0).leans_met
    assert not build_trial(request, LoadRun(tmp_path, bad), 20.0).leans_met


def test_a_run_of_them_is_given_up() -> None:
    """As one of failures is."""

    def figures(empty: int) -> LiveFigures:
        counts: dict[str, Any] = dict.fromkeys(("planned", "sent", "done"), 200)
        rates: dict[str, Any] = dict.fromkeys(("offered_rps", "achieved_rps", "tokens_per_s"), 10.0)
        return LiveFigures(
            seconds=9.0,
            remaining_seconds=None,
            **counts,
            failed=0,
            in_flight=0,
            tokens=0,
            **rates,
            generator_cpu=None,
            lag_p99_ms=None,
            run={},
            recent={},
            empty=empty,
        )

    stop = clear_miss_condition(Slo(e2e_p99_ms=9000))
    assert (
        stop(figures(100))
        == "100 of 200 answers had no tokens"
        == (hopeless_reason(figures(100), []))
    )
    assert stop(figures(0)) is None
    assert hopeless_reason(figures(0), []) is None
