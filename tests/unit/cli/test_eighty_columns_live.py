# SPDX-License-Identifier: Apache-2.0
"""The views that are redrawn while a command works, at 80 columns: every word in one piece."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import pytest
from rich.console import Console as RichConsole

from tests.unit.top.test_view import SPELLER, sight, view_of
from tests.unit.tuning.test_step_explanation import PROJECT
from tritonctl.cli.console.build_view import BuildTable
from tritonctl.cli.console.loadtest_view import LoadView
from tritonctl.cli.console.tuning_view import TuneView
from tritonctl.loadtest.run.live import EngineFigures, LiveFigures, Quantiles
from tritonctl.tuning.space import Knob, SearchSpace
from tritonctl.tuning.trials import Settings, TrialRequest, TuningTrial

COLUMNS, WIDE = 80, 400
CLOCK = re.compile(r"\d+:\d\d")
SLOW = Quantiles(1234, 12345.6, 60000.1)
LOADED = LiveFigures(
    *(1234.0, 3600.0, 123456, 123456, 123400, 12, 1024, 700000, 1039.5, 1038.7, 25233.3),
    generator_cpu=0.99,
    lag_p99_ms=123.45,
    run={"ttft": SLOW, "itl": SLOW, "e2e": SLOW},
    recent={"ttft": SLOW, "itl": SLOW, "e2e": SLOW},
    engine=EngineFigures("sentence-embedding-large_engine", 1234.25, 31.5, 1024, 512),
)
KNOBS = {"detokenizer.max_queue_delay_microseconds": (0, 1500), "engine.max_num_seqs": (16, 128)}
SPACE = SearchSpace(
    PROJECT,
    "m",
    tuple(Knob(name, values, values[0], lambda _: {}, "m", "") for name, values in KNOBS.items()),
    cores=4,
    artefacts={},
)


def drawn(view: Any, width: int) -> list[str]:
    """The lines on a terminal of that width."""
    console = RichConsole(file=StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(view)
    return [line.rstrip() for line in captured.get().splitlines()]


def words(lines: Sequence[str]) -> Counter[str]:
    """And how often each is there, but for what the clock says."""
    found = (word.strip(",") for line in lines for word in line.split())
    return Counter(word for word in found if not CLOCK.match(word))


def building() -> Any:
    """Two models, one in two stages that take an hour; a tool's own line gives way."""
    now = [0.0]
    table = BuildTable(lambda _: None, clock=lambda: now[0])
    table.planned("sentence-embedding-large", "quantise", done=True, expected=3.0)
    table.planned("sentence-embedding-large", "compile", done=False, expected=12000.0)
    table.planned("speller", "build", done=False, expected=600.0)
    stage = table.stage("sentence-embedding-large", "compile")
    with stage as progress, progress.step("Building"):
        now[0] += 7200
        return table.table()


def loaded() -> Any:
    """A load test that goes badly."""
    view = LoadView("a-load-test-with-a-long-name: poisson 1000/s, 4 workers")
    view.show(LOADED)
    return view.view()


def tuned() -> Any:
    """Settings with long names: one that ended, one that runs with its load test."""
    view = TuneView("tuning sentence-embedding-large under steady", 30, lambda _: None)
    settings: list[Settings] = [
        dict(zip(KNOBS, values, strict=True)) for values in zip(*KNOBS.values(), strict=True)
    ]
    asked = [TrialRequest(one, 1039.5, 15.0) for one in settings]
    view.stage("racing the settings that the estimate names first")
    view.measuring(asked[0], SPACE)
    times = {"ttft": 12345.6, "itl": 512.3, "e2e": 60000.0}
    view.trial(
        TuningTrial(asked[0], "undecided", 0.1234, 0.1, 0.2, 500, 15.0, p99_ms=times), stored=False
    )
    view.measuring(asked[1], SPACE)
    with view.board.watch_load("steady: poisson 1039.5/s") as show:
        show(LOADED)
        return view.view()


@pytest.mark.parametrize("made", [building, loaded], ids=lambda made: made.__name__)
def test_no_word_is_lost_or_broken(made: Callable[[], Any]) -> None:
    """As on a terminal as wide as one likes."""
    lines = drawn(made(), COLUMNS)
    assert words(lines) == words(drawn(made(), WIDE))
    assert max(map(len, lines)) <= COLUMNS


def test_long_names_of_settings_have_a_line_of_their_own() -> None:
    """Below it what a table has beside them, each figure with its name."""
    lines, wide = drawn(tuned(), COLUMNS), drawn(tuned(), WIDE)
    assert set(words(lines)) <= set(words(wide))
    settings = next(n for n, line in enumerate(lines) if line.endswith("engine.max_num_seqs=128"))
    assert (
        lines[settings]
        == "▶ detokenizer.max_queue_delay_microseconds=1500, engine.max_num_seqs=128"
    )
    assert lines[settings + 1].startswith("    1040/s runs, left 3600 s")
    assert "over the SLO 12.34%" in " ".join(lines)
    assert [line for line in wide if line.split()[:2] == ["settings", "rate"]]


def test_top_leaves_columns_out() -> None:
    """What it shows is in one piece, and the most important is there."""
    seen = sight(SPELLER)
    view = view_of()
    narrow, wide = (view.plain(seen, width).splitlines() for width in (COLUMNS, WIDE))
    assert not words(narrow) - words(wide)
    assert max(map(len, narrow)) <= COLUMNS
    assert {"req/s", "failed/s", "TTFT", "ITL", "tok/s"} <= set(words(narrow))
