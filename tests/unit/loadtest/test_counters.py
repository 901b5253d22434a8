# SPDX-License-Identifier: Apache-2.0
"""Counters during a reload: absent ones are unknown, and those that fall start again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest_records import SyntheticRun
from tests.report_page import Reader
from tritonctl.loadtest.analysis.counters import counter_increase, is_counter, reload_times
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.report import page as report_page
from tritonctl.loadtest.report.run import ReportedRun, load_run
from tritonctl.loadtest.run.live import engine_figures

ENGINE = "speller_engine"


@pytest.mark.parametrize(
    ("values", "growth"),
    [
        ([5, 7, 10], 5),
        ([5, 7, 0, 3], 5),
        ([5, 7, None, None, 3, 4], 6),
        ([None, 5, None], 0),
        ([], 0),
        ([9, 9, 9], 0),
    ],
)
def test_growth_piece_by_piece(values: list[float | None], growth: float) -> None:
    """As Prometheus' `increase`; what was counted around the reset is lost."""
    assert counter_increase(values) == growth


def test_counters_by_name() -> None:
    """Labels in braces follow the name."""
    assert is_counter("tritonctl_requests_total{outcome=stop}")
    assert not is_counter("tritonctl_active_streams")


def reloaded(folder: Path) -> Path:
    """A run whose engine is loaded again in its middle; for a while Triton names it alone."""
    SyntheticRun(seconds=20).write(folder)
    path = folder / "server.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    base: dict[str, Any] = lines[11]["models"][ENGINE]
    for line in lines:
        line["engine"]["tritonctl_requests_total"] = line["models"][ENGINE]["success"]
        if 8 <= line["t"] < 11:
            line["models"][ENGINE] = {"failure": 0}
            del line["engine"]["tritonctl_requests_total"]
        elif line["t"] >= 11:
            counters = line["models"][ENGINE]
            line["models"][ENGINE] = {n: v - base[n] for n, v in counters.items()}
            line["engine"]["tritonctl_requests_total"] -= base["success"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_figures_beside_a_reload(tmp_path: Path) -> None:
    """The rate misses what was counted around it, and says so; means stay."""
    whole = summarise(SyntheticRun(seconds=20).write(tmp_path / "whole")).server
    run = reloaded(tmp_path / "run")
    server = summarise(run).server
    assert whole is not None
    assert server is not None
    model, undisturbed = server.models[ENGINE], whole.models[ENGINE]
    assert (model.reloads, undisturbed.reloads) == (1, 0)
    assert 0.6 * undisturbed.rate < model.rate < undisturbed.rate
    assert model.request_ms == pytest.approx(undisturbed.request_ms, rel=0.3)
    gauge = server.engine["tritonctl_requests_total"]
    assert gauge.change == pytest.approx(model.rate * server.seconds)
    page = report_page.write_report(run).read_text(encoding="utf-8")
    assert "Reloaded in the window: speller_engine; counts around a reload are lost" in page


def _figures(page: str) -> dict[str, Any]:
    """The page's charts by name."""
    scripts = Reader.of(page).all("script")
    data = next(e.text for e in scripts if e.attributes.get("type") == "application/json")
    return {figure["id"]: figure for figure in json.loads(data)}


def test_the_page_marks_the_reload(tmp_path: Path) -> None:
    """As a shaded span of every chart over time; in the queue's lines a gap."""
    run = load_run(reloaded(tmp_path))
    assert run.reloads == [(7.0, 11.0)]
    page = Reader.of(report_page.render_report(run))
    figures = json.loads(
        next(e.text for e in page.all("script") if e.attributes.get("type") == "application/json")
    )
    marked = {
        f["id"] for f in figures if {"start": 7.0, "end": 11.0, "text": "reload"} in f["spans"]
    }
    assert {"queue", "machine", "throughput"} <= marked
    queue = next(f for f in figures if f["id"] == "queue")
    (line,) = (s for s in queue["series"] if s["name"] == ENGINE and "queue {y}" in s["hover"])
    by_time = dict(zip(line["x"], line["y"], strict=True))
    assert [by_time[t] for t in (8.0, 9.0, 10.0, 11.0)] == [None] * 4
    assert all(value >= 0 for value in by_time.values() if value is not None)


def test_a_server_that_restarts() -> None:
    """All its models start again: one span for each, none for a model that goes on."""
    scrapes = [
        {"t": float(t), "models": {"a": {"success": count}, "b": {"success": 7 * t}}}
        for t, count in enumerate((4, 8, 1, 5))
    ]
    assert reload_times(scrapes, "a") == [(1.0, 2.0)]
    assert reload_times(scrapes, "b") == reload_times(scrapes, "c") == []


def test_live_figures_beside_a_reload() -> None:
    """No negative queue times, and no crash for absent counters."""
    readings = [{"success": 90, "queue_us": 9e5}, {"failure": 0}, {"success": 2, "queue_us": 4e3}]
    samples = [{"models": {"m": reading}, "engine": {}} for reading in readings]
    figures = engine_figures(samples, "m")
    assert figures is not None
    assert figures.queue_ms == pytest.approx(2.0)
    unknown = engine_figures(samples[:2], "m")
    assert unknown is not None
    assert unknown.queue_ms is None


def test_a_failing_chart_costs_the_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names it; everything else is there."""

    def failing_figure(run: ReportedRun) -> None:
        raise KeyError("success")

    whole = load_run(SyntheticRun(seconds=5).write(tmp_path))
    page = report_page.render_report(whole)
    monkeypatch.setattr(report_page, "queue_figure", failing_figure)
    damaged = report_page.render_report(replace(whole))
    assert "Charts that could not be drawn" not in page
    assert "Charts that could not be drawn" in damaged
    assert "failing" in damaged
    assert [name for name in _figures(page) if name not in _figures(damaged)] == ["queue"]
