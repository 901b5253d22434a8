# SPDX-License-Identifier: Apache-2.0
"""How a tuning session is watched: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import pytest
from rich.console import Console as RichConsole

from tests.unit.tuning.simulated import Laboratory, Machine
from tests.unit.tuning.test_step_explanation import PROJECT
from tritonctl.cli.console.output import Console
from tritonctl.cli.console.tuning_view import TuneView
from tritonctl.loadtest.run.live import LiveFigures
from tritonctl.tuning.outcome import SearchBudget, SearchOutcome
from tritonctl.tuning.progress import BoardWatcher, TuningLog
from tritonctl.tuning.search import SettingsSearch
from tritonctl.tuning.space import Knob, SearchSpace
from tritonctl.tuning.trials import TrialRequest, TuningTrial

VALUES = {"instances": (1, 2, 4), "max_batch": (1, 4, 8)}
SPACE = SearchSpace(
    PROJECT,
    "m",
    tuple(Knob(name, values, 1, lambda _: {}, "m", "") for name, values in VALUES.items()),
    cores=4,
    artefacts={},
)
FIGURES = LiveFigures(
    *(3.0, 4.5, 150, 150, 140, 0, 10, 700, 50.0, 46.7, 233.3),
    generator_cpu=0.1,
    lag_p99_ms=0.2,
    run={},
    recent={},
)


def searched(watch: BoardWatcher) -> SearchOutcome:
    """A whole search on a simulated server."""
    laboratory = Laboratory(Machine())

    def measure(asked: TrialRequest) -> TuningTrial:
        watch.measuring(asked, SPACE)
        trial = laboratory(asked)
        watch.trial(trial, stored=False)
        return trial

    budget = SearchBudget(seconds=1e9, start=50.0, race=1500, shortest=0.5)
    return SettingsSearch(
        SPACE.knobs, measure, budget, notify=lambda step: watch.step(step, SPACE)
    ).run()


def shown(view: TuneView) -> list[str]:
    """The lines of the view."""
    console = RichConsole(width=120, no_color=True)
    with console.capture() as captured:
        console.print(view.view())
    return [line.rstrip() for line in captured.get().splitlines()]


def row_of(lines: list[str], word: str) -> list[str]:
    """The cells of the row with that word."""
    return next(line.split() for line in lines if word in line)


def test_the_best_settings_lead_the_table() -> None:
    """Marked, with the rate that they met; the others as they ended."""
    view = TuneView("tuning m under load", 30, print)
    outcome = searched(view)
    lines = shown(view)
    assert lines[0].startswith("tuning m under load  0:")
    assert lines[0].endswith("of 30 minutes left")
    best = ", ".join(f"{name}={value}" for name, value in outcome.best.settings.items())
    leader = next(line for line in lines if line.startswith("★"))
    assert f" {best} " in leader
    assert f" {outcome.best.met:.4g}/s" in leader
    assert any("missed" in line for line in lines)
    assert view.trials > len(lines)
    assert lines[-1].split(":")[0].startswith(("instances=", "max_batch=", "unchanged"))


def test_what_runs_now() -> None:
    """Its row says how long it still takes, the load test stands below; then what came of it."""
    view = TuneView("x", 30, print)
    view.stage("searching among 2 knobs")
    asked = TrialRequest({"instances": 2, "max_batch": 1}, 50.0, 20.0)
    view.measuring(asked, SPACE)
    assert row_of(shown(view), "instances=2") == ["▶", "instances=2", "50/s", "runs", "20", "s"]
    with view.board.watch_load("m: poisson 50/s") as show:
        show(FIGURES)
        lines = shown(view)
        assert "searching among 2 knobs" in lines
        assert row_of(lines, "instances=2")[-2:] == ["4", "s"]
        assert any(line.startswith("m: poisson 50/s  3 s, 4 s left") for line in lines)
        assert any("offered 50.0/s  achieved 46.7/s" in line for line in lines)
    view.trial(
        TuningTrial(asked, "met", 0.004, 0.0, 0.01, 1000, 20.0, p99_ms={"ttft": 123.4}), False
    )
    lines = shown(view)
    cells = ["★", "instances=2", "50/s", "met", "0.40%", "ttft", "123", "50/s"]
    assert row_of(lines, "instances=2") == cells
    assert not any("offered" in line for line in lines)
    refused = TuningTrial(asked, "missed", 1, 1, 1, 0, 1.0, figures={"refused": "no such thing"})
    view.measuring(asked, SPACE)
    view.trial(refused, False)
    assert row_of(shown(view), "instances=2")[3] == "refused"


def test_only_the_latest_are_shown() -> None:
    """A terminal has few lines."""
    view = TuneView("x", 30, print)
    for number in range(20):
        view.measuring(TrialRequest({"instances": number, "max_batch": 1}, 5.0, 1.0), SPACE)
    lines = shown(view)
    assert [n for n in range(20) if any(f"instances={n} " in line for line in lines)] == [
        0,
        *range(12, 20),
    ]
    assert any("and 11 tested earlier" in line for line in lines)


def test_notes_and_steps_of_the_server() -> None:
    """A step is what is done now; a note stays above the table."""
    said: list[str] = []
    view = TuneView("x", 30, said.append)
    with view.board.step("Starting tritonserver"):
        assert "Starting tritonserver" in shown(view)
    view.board.note("the server was started anew")
    assert said == ["the server was started anew"]


def test_a_spent_budget_is_told() -> None:
    """What has begun is finished: the comparison side by side, the validation."""
    assert "0 minutes are used: finishing" in shown(TuneView("x", 0, print))[0]


def test_where_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table needs a terminal, and somebody who wants to see it."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich: as if it were a terminal
    with Console().watch_tuning("a title", 1) as watch:
        assert isinstance(watch, TuneView)
    with Console(quiet=True).watch_tuning("a title", 1) as watch:
        assert isinstance(watch, TuningLog)
    monkeypatch.delenv("FORCE_COLOR")
    with Console().watch_tuning("a title", 1) as watch:
        assert isinstance(watch, TuningLog)


def test_lines() -> None:
    """One for each trial that was measured, with the best rate so far, and one for each step."""
    said: list[str] = []
    now = [100.0]
    lines = TuningLog(said.append, clock=lambda: now[0])
    outcome = searched(lines)
    assert len(said) == lines.trials + len(outcome.steps)
    assert any("better: instances=" in line for line in said)
    assert f"best met so far {outcome.best.met:.4g}/s" in "".join(said)
    lines.trial(outcome.trials[0], stored=True)
    assert len(said) == lines.trials - 1 + len(outcome.steps)
    now[0] += 61.5
    lines.board.note("a new server starts")
    assert said[-1] == "[1:01] a new server starts"
