# SPDX-License-Identifier: Apache-2.0
"""A run's folder in, its summary out: whole runs, cut ones, empty ones, broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.loadtest_records import SyntheticRun
from tritonctl.errors import ConfigurationError, InvalidMeasurementError, SloMissedError
from tritonctl.loadtest.analysis.percentiles import decode_histogram, histogram_percentiles
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.analysis.summary import Summary, read_summary, write_summary
from tritonctl.loadtest.report.summary_text import opening_lines
from tritonctl.loadtest.report.tables import version_table


def test_a_whole_run(tmp_path: Path) -> None:
    """Counts, rates, percentiles in order, classes that add up, the server's view."""
    run = SyntheticRun(seed=3)
    records = [request.record for request in run.requests()]
    summary = summarise(run.write(tmp_path / "run"))
    assert summary.valid
    assert summary.reason == "complete"
    assert summary.scenario == summary.model == "speller"
    assert summary.window.stationary
    counted = sum(r["planned"] >= summary.window.from_s * 1e6 for r in records)
    assert summary.counts.sent == summary.counts.ok == counted
    assert sum(c.counts.ok for c in summary.classes.values()) == counted
    assert set(summary.classes) == {"short", "long"}
    assert summary.rates.offered_rps == pytest.approx(40, rel=0.15)
    assert summary.rates.goodput_share == 1
    for name in ("ttft", "itl", "tpot", "e2e", "service_ttft", "service_e2e", "send_lag"):
        found = summary.metrics[name]
        values = [p.ms for p in found.percentiles]
        assert values == sorted(values)
        assert found.min_ms <= values[0]
        assert values[-1] <= found.max_ms
        for p in found.percentiles:
            assert p.low_ms is None or p.low_ms <= p.ms
            assert p.high_ms is None or p.ms <= p.high_ms
        coarse = histogram_percentiles(decode_histogram(found.histogram), [0.5, 0.99])
        for q, value in coarse.items():
            percentile = found.percentile(q)
            assert percentile is not None
            assert value == pytest.approx(percentile.ms, rel=2e-3, abs=2e-3)
    assert summary.server is not None
    engine = summary.server.models["speller_engine"]
    assert engine.rate == pytest.approx(summary.rates.achieved_rps, rel=0.1)
    assert engine.share is not None
    assert engine.share > 0.9
    assert summary.server.models["speller"].share is None


def test_turns_after_the_window_do_not_count(tmp_path: Path) -> None:
    """Conversations go on when nobody new arrives: that is neither load nor measurement."""
    run = SyntheticRun(seed=5, seconds=10)
    folder = run.write(tmp_path / "run")
    before = summarise(folder)
    with (folder / "records.jsonl").open("a", encoding="utf-8") as records:
        for request in run.requests():
            late = dict(request.record)
            for name in ("planned", "sent", "end"):
                late[name] += 11_000_000
            late["at"] = [at + 11_000_000 for at in late["at"]]
            records.write(json.dumps(late) + "\n")
    after = summarise(folder)
    assert after.counts == before.counts
    assert after.rates == before.rates
    assert after.metrics == before.metrics


@pytest.mark.parametrize("count", [2, 3, 20])
def test_the_rate_of_a_few_requests(tmp_path: Path, count: int) -> None:
    """Three requests, one a second: two seconds, so one a second and not one and a half."""
    folder = SyntheticRun(seconds=5).write(tmp_path / "run")
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan |= {"duration_seconds": None, "count": count}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    times = [1_000_000 * i for i in range(count)]
    lines = [
        {"i": i, "class": "a", "planned": at, "sent": at, "at": [at + 9], "end": at + 9}
        | {"outcome": "ok"}
        for i, at in enumerate(times)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    summary = summarise(folder)
    assert summary.counts.ok == count
    assert (summary.rates.offered_rps, summary.rates.goodput_rps) == (1, 1)
    assert summary.rates.goodput_share == 1


def test_the_record_of_a_summary(tmp_path: Path) -> None:
    """Written and read back it is the same, and plain JSON."""
    run = SyntheticRun(error_share=0.05, slo={"itl_p99_ms": 20.0, "error_rate": 0.01})
    failures = sum(request.record["outcome"] == "error" for request in run.requests())
    folder = run.write(tmp_path / "run")
    summary = summarise(folder)
    write_summary(folder, summary)
    assert read_summary(folder) == summary
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []
    record = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert record["schema"] == "tritonctl/loadsummary/v1"
    assert record["slo"][0]["name"] == "itl_p99_ms"
    assert record["errors"] == [
        {"kind": "UNAVAILABLE", "message": "Exceeds maximum queue size", "count": failures}
    ]


def test_another_schema_is_refused(tmp_path: Path) -> None:
    """A file of another version, one without a field, no file at all, half a file."""
    summary = summarise(SyntheticRun(seconds=5).write(tmp_path / "run"))
    with pytest.raises(ConfigurationError, match="'v9', not 'tritonctl/loadsummary/v1'"):
        Summary.from_record(summary.to_record() | {"schema": "v9"})
    with pytest.raises(ConfigurationError, match=r"`window\.to_s`: expected a number"):
        Summary.from_record(summary.to_record() | {"window": {"from_s": 0, "to_s": "soon"}})
    with pytest.raises(ConfigurationError, match="does not exist") as missing:
        read_summary(tmp_path)
    assert "tritonctl loadtest report" in missing.value.remedy
    (tmp_path / "summary.json").write_text('{"schema": ', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_summary(tmp_path)


def test_exit_codes_of_a_gate() -> None:
    """A missed SLO and a measurement that says nothing are told apart."""
    assert SloMissedError("slow", remedy="tune").exit_code == 8
    assert InvalidMeasurementError("late", remedy="repeat").exit_code == 9


def test_a_warm_up_is_left_out(tmp_path: Path) -> None:
    """Its requests count nowhere; the reason is told."""
    run = SyntheticRun(seed=5, warm_up=(6.0, 6.0))
    summary = summarise(run.write(tmp_path / "run"))
    assert 4 < summary.window.warm_up_s < 9
    assert summary.window.from_s == summary.window.warm_up_s
    assert summary.window.why.startswith(f"the first {summary.window.warm_up_s:.1f} s")
    assert summary.counts.sent < len(run.requests())
    assert summary.rates.offered_rps == pytest.approx(40, rel=0.15)


def test_a_stall_shows_in_full(tmp_path: Path) -> None:
    """Two seconds in which nothing happens are 2 s in the tail, for all who were to be answered."""
    calm = summarise(SyntheticRun().write(tmp_path / "calm"))
    stalled = summarise(SyntheticRun(stall=(8.0, 2.0)).write(tmp_path / "stalled"))
    assert stalled.window.warm_up_s == 0
    assert calm.metrics["ttft"].max_ms < 200
    assert stalled.metrics["ttft"].max_ms > 1900
    worst = stalled.metrics["ttft"].percentile(0.99)
    assert worst is not None
    assert worst.ms > 1000
    assert stalled.slo_verdict != "met"
    assert stalled.rates.goodput_share is not None
    assert stalled.rates.goodput_share < 0.95


def test_an_overloaded_server(tmp_path: Path) -> None:
    """The queue grows and grows: not stationary, missed, and the queue is named."""
    summary = summarise(SyntheticRun(rate=140.0).write(tmp_path / "run"))
    assert not summary.window.stationary
    assert "rose" in summary.window.why
    assert summary.slo_verdict == "missed"
    assert summary.failed
    assert summary.rates.achieved_rps < 0.8 * summary.rates.offered_rps
    assert summary.limited_by.startswith("speller_engine: requests waited 9")
    assert "while its batch was full (4.0 of 4)" in summary.limited_by


def test_the_largest_of_few_lags_is_no_verdict(tmp_path: Path) -> None:
    """58 requests on a busy machine, one of them sent late: valid, and nothing is blamed on it."""
    folder = SyntheticRun(rate=58 / 30, lag_us=0).write(tmp_path / "run")
    file = folder / "records.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    for late, valid in ((1, True), (6, False)):
        records = [json.loads(line) for line in lines]
        for record in records[-late:]:
            record["planned"] -= 5000  # was due earlier
        file.write_text("".join(f"{json.dumps(r)}\n" for r in records), encoding="utf-8")
        summary = summarise(folder)
        assert summary.generator.send_lag_p99_ms == pytest.approx(5)
        assert (summary.valid, not summary.doubts) == (valid, not valid)
        assert summary.limited_by.startswith("the generator") is not valid
        assert Summary.from_record(json.loads(json.dumps(summary.to_record()))) == summary


def test_a_run_cut_short(tmp_path: Path) -> None:
    """Killed while it wrote: half a line, no end, no merged file, and still a summary."""
    folder = SyntheticRun(workers=2, merged=False, finished=False).write(tmp_path / "run")
    for name in ("records-1.jsonl", "progress.jsonl", "server.jsonl"):
        text = (folder / name).read_bytes()
        (folder / name).write_bytes(text[: len(text) // 2])
    summary = summarise(folder)
    assert summary.reason == "worker lost"
    assert not summary.valid
    assert summary.failed
    assert len(summary.invalid_because) == 2
    assert summary.counts.ok > 500
    assert Summary.from_record(json.loads(json.dumps(summary.to_record()))) == summary


def test_an_interrupted_run(tmp_path: Path) -> None:
    """Valid for what it measured; what was not sent any more is counted."""
    run = SyntheticRun(seconds=10, reason="interrupted", unsent=800)
    folder = run.write(tmp_path / "run")
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    (folder / "plan.json").write_text(json.dumps(plan | {"duration_seconds": 30}), encoding="utf-8")
    summary = summarise(folder)
    assert (summary.reason, summary.valid) == ("interrupted", True)
    assert summary.counts.unsent == 800
    assert summary.counts.planned == summary.counts.sent + 800
    assert 9 < summary.window.to_s < 10
    assert summary.rates.offered_rps == pytest.approx(40, rel=0.2)
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    facts["stopped"] = "30% over ttft_p99_ms"
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    assert summarise(folder).reason == "stopped: 30% over ttft_p99_ms"


@pytest.mark.parametrize("files", [["plan.json"], ["plan.json", "records.jsonl"]])
def test_an_empty_run(tmp_path: Path, files: list[str]) -> None:
    """Nothing was sent: nothing is measured, nothing is met, nothing breaks."""
    (tmp_path / "plan.json").write_text('{"model": "speller", "slo": null}', encoding="utf-8")
    for name in files[1:]:
        (tmp_path / name).write_text("", encoding="utf-8")
    summary = summarise(tmp_path)
    assert (summary.counts.sent, summary.metrics, summary.classes) == (0, {}, {})
    assert (summary.valid, summary.decisive, summary.slo_verdict) == (False, False, None)
    assert summary.rates.goodput_share is None
    assert summary.server is None
    assert Summary.from_record(json.loads(json.dumps(summary.to_record()))) == summary


def test_no_run(tmp_path: Path) -> None:
    """A folder of something else; files that are no JSON."""
    with pytest.raises(ConfigurationError, match=r"has no records\.jsonl"):
        summarise(tmp_path)
    folder = SyntheticRun(seconds=2).write(tmp_path / "run")
    (folder / "facts.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"facts\.json cannot be read"):
        summarise(folder)
    (folder / "facts.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"facts\.json is not a JSON object"):
        summarise(folder)


def test_failures_by_kind(tmp_path: Path) -> None:
    """Errors and timeouts grouped; cancelled requests are no failures."""
    run = SyntheticRun(
        error_share=0.03,
        cancel_share=0.1,
        timeout_seconds=0.12,
        slo={"ttft_p99_ms": 200.0, "error_rate": 0.01},
    )
    summary = summarise(run.write(tmp_path / "run"))
    counts = summary.counts
    assert counts.ok + counts.error + counts.cancelled + counts.timeout == counts.sent
    assert {(e.kind, e.count) for e in summary.errors} == {
        ("UNAVAILABLE", counts.error),
        ("timeout", counts.timeout),
    }
    assert counts.cancelled > 50
    assert [(v.name, v.verdict) for v in summary.slo] == [
        ("ttft_p99_ms", "missed"),
        ("error_rate", "missed"),
    ]
    assert summary.metrics["e2e"].censored == counts.timeout > 0


def test_tensors(tmp_path: Path) -> None:
    """One answer per request: no tokens, no metrics of tokens."""
    run = SyntheticRun(kind="tensors", slo={"e2e_p99_ms": 100.0})
    summary = summarise(run.write(tmp_path / "run"))
    assert set(summary.metrics) == {"e2e", "service_e2e", "send_lag"}
    assert summary.rates.tokens_per_s == 0
    assert summary.slo_verdict == "met"


def test_workers_are_merged(tmp_path: Path) -> None:
    """Who sent a request makes no difference to what is measured."""
    one = summarise(SyntheticRun(seed=8).write(tmp_path / "one"))
    three = summarise(SyntheticRun(seed=8, workers=3, merged=False).write(tmp_path / "three"))
    assert three.metrics == one.metrics
    assert (one.generator.workers, three.generator.workers) == (1, 3)


@pytest.mark.parametrize("process", ["ramp", "spike", "steps", "trace"])
def test_a_load_that_changes_by_plan(tmp_path: Path, process: str) -> None:
    """Its beginning is no warm-up, its growing queue is what was asked for."""
    folder = SyntheticRun(rate=140.0, seconds=10).write(tmp_path / "run")
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["arrivals"] = {"process": process}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    window = summarise(folder).window
    assert (window.from_s, window.to_s, window.stationary) == (0, 10, False)
    assert window.why == f"the planned load varies ({process}): no warm-up was removed"


def test_by_the_version_that_answered(tmp_path: Path) -> None:
    """Each version has its own counts and times; who got no answer is of none."""
    folder = SyntheticRun(seed=7).write(tmp_path / "run")
    assert summarise(folder).versions == {}
    file = folder / "records.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for number, line in enumerate(lines):
        line |= {"version": "10" if number % 10 == 0 else "9"}
    lines[20] |= {"resumes": 2}
    lines[-1] |= {"outcome": "error", "error": {"kind": "connection"}, "at": []}
    del lines[-1]["version"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    summary = summarise(folder)
    assert list(summary.versions) == ["9", "10", "none"]
    assert sum(part.counts.sent for part in summary.versions.values()) == summary.counts.sent
    assert summary.versions["none"].counts.error == summary.counts.error == 1
    assert summary.versions["9"].metrics["ttft"].n > 5 * summary.versions["10"].metrics["ttft"].n
    assert summary.resumed == 1
    assert "by version: 9: " in "\n".join(opening_lines(summary))
    table = version_table(summary.versions)
    assert table is not None
    assert [row[0] for row in table.rows] == ["9", "10", "none"]
    write_summary(folder, summary)
    assert read_summary(folder) == summary
