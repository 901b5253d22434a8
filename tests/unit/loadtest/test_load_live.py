# SPDX-License-Identifier: Apache-2.0
"""A load test while it runs: lines of several workers merged, and how they are shown."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console as RichConsole

from tritonctl.cli.console.loadtest_view import LoadLines, LoadView
from tritonctl.cli.console.output import Console
from tritonctl.loadtest.analysis.percentiles import new_histogram
from tritonctl.loadtest.run.live import EngineFigures, LiveFigures, LiveMerger, engine_figures


def _encoded(*milliseconds: float) -> str:
    histogram = new_histogram()
    for value in milliseconds:
        histogram.record_value(round(value * 1000))
    return str(histogram.encode().decode())


def _line(worker: int, second: int, **changes: Any) -> dict[str, Any]:
    """A worker that sends ten requests a second, each answered after 5 + its second ms."""
    line = {
        "t": float(second),
        "worker": worker,
        "planned": 10 * second,
        "sent": 10 * second,
        "done": 10 * second,
        "failed": 0,
        "in_flight": 1,
        "tokens": 50 * second,
        "cpu": 0.1 * (worker + 1),
        "lag_p99_us": 500,
        "ttft": _encoded(*[5 + second] * 10),
        "e2e": _encoded(*[50 + second] * 10),
        "itl": _encoded(),
    }
    return line | changes


def _merged(seconds: int, workers: int = 2) -> LiveFigures:
    merger = LiveMerger(60)
    for second in range(1, seconds + 1):
        for worker in range(workers):
            merger.add(_line(worker, second))
    figures = merger.figures()
    assert figures is not None
    return figures


def test_nothing_yet() -> None:
    """Before the first line, and after one that is no second."""
    merger = LiveMerger(None)
    merger.add({"finished": True, "worker": 0})
    assert merger.figures() is None


def test_counts_and_rates_of_all_workers() -> None:
    """Sums; rates over the last ten seconds; CPU of the busiest."""
    figures = _merged(seconds=30)
    assert (figures.planned, figures.done, figures.in_flight) == (600, 600, 2)
    assert (figures.seconds, figures.remaining_seconds) == (30, 30)
    rates = (figures.offered_rps, figures.achieved_rps, figures.tokens_per_s)
    assert rates == pytest.approx((20, 20, 100))
    assert figures.generator_cpu == pytest.approx(0.2)
    assert figures.lag_p99_ms == 0.5


def test_percentiles_come_from_merged_histograms() -> None:
    """The whole run, and the last ten seconds; nothing where nothing was measured."""
    figures = _merged(seconds=30)
    assert figures.run["ttft"].n == 600
    assert figures.run["ttft"].p50_ms == pytest.approx(20, rel=0.01)
    assert figures.recent["ttft"].n == 200
    assert figures.recent["ttft"].p50_ms == pytest.approx(30, rel=0.01)
    assert figures.recent["e2e"].p99_ms == pytest.approx(80, rel=0.01)
    assert "itl" not in figures.run


def test_rates_change_with_the_load() -> None:
    """A worker that stops answering shows within ten seconds."""
    merger = LiveMerger(None)
    for second in range(1, 31):
        done = 10 * min(second, 15)
        merger.add(_line(0, second, done=done))
    figures = merger.figures()
    assert figures is not None
    assert (figures.offered_rps, figures.achieved_rps) == pytest.approx((10, 0))
    assert figures.remaining_seconds is None


def test_share_over() -> None:
    """Of the whole run, to a millisecond or so."""
    figures = _merged(seconds=30)
    assert figures.share_over("ttft", 20.01) == pytest.approx(0.5)
    assert figures.share_over("ttft", 100) == 0
    assert figures.share_over("itl", 1) == 0


def _sample(success: int, queue_us: int, **engine: float) -> dict[str, Any]:
    counters = {"success": success, "queue_us": queue_us, "count": 4 * success, "exec": success}
    return {"models": {"m_engine": counters}, "engine": engine}


def test_the_engine_over_the_last_seconds() -> None:
    """Differences of the server's counters, its gauges as they are."""
    samples = [_sample(10, 0), _sample(20, 50_000, tritonctl_waiting_streams=3)]
    found = engine_figures(samples, "m_engine")
    assert found == EngineFigures("m_engine", 5.0, 4.0, 3, None)
    assert engine_figures([], "m_engine") is None
    unknown = engine_figures(samples, "another")
    assert unknown is not None
    assert unknown.queue_ms is None


def _shown(figures: LiveFigures | None) -> str:
    view = LoadView("speller: poisson 20/s")
    if figures is not None:
        view.show(figures)
    console = RichConsole(width=120, no_color=True)
    with console.capture() as captured:
        console.print(view.view())
    return captured.get()


def test_the_view() -> None:
    """Every figure that the contract of the view names; whole numbers that are no floats, too."""
    engine = EngineFigures("speller_engine", 1.25, None, 3, 32)
    figures = LiveFigures(**{**_merged(seconds=30).__dict__, "engine": engine, "failed": 7})
    text = _shown(figures)
    for words in (
        "30 s, 30 s left",
        "offered 20.0/s  achieved 20.0/s  100 tokens/s  in flight 2",
        "failed 7",
        "TTFT",
        "speller_engine  queue 1.25 ms  waiting 3  active 32",
        "generator  CPU 20%  send lag 0.50 ms",
    ):
        assert words in text
    # 600 values have a 99th percentile, 200 hardly.
    (row,) = (line for line in text.splitlines() if line.startswith("TTFT"))
    assert [cell.startswith("~") for cell in row.split()[1:]] == [False, False, False, True]


def test_the_view_before_the_first_second() -> None:
    """It says what it waits for."""
    assert "starting the load generator" in _shown(None)


def test_plain_lines() -> None:
    """One every five seconds, beginning with the title."""
    said: list[str] = []
    lines = LoadLines("speller: poisson 20/s", said.append)
    for second in range(1, 13):
        lines.show(_merged(second, workers=1))
    assert said[0] == "speller: poisson 20/s"
    assert len(said) == 3
    assert said[1].startswith("5 s, 55 s left · 10.0/s offered")
    assert "TTFT" in said[1]


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing at all."""
    with Console(quiet=True).watch_load("x") as show:
        show(_merged(6))
    assert capsys.readouterr() == ("", "")
    with Console().watch_load("a title") as show:
        show(_merged(6))
    assert "a title" in capsys.readouterr().err
