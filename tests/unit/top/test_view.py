# SPDX-License-Identifier: Apache-2.0
"""How the figures look: wide, narrow, stale, sorted."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.cells import cell_len
from rich.console import Console as RichConsole

from tritonctl.cli.console.document_name import naming_documents
from tritonctl.cli.console.output import Console
from tritonctl.cli.console.top_view import TopView
from tritonctl.top.figures import GpuLoad, ModelLoad, ServerLoad, WindowFigures
from tritonctl.top.histograms import TimeQuantiles
from tritonctl.top.watching import MetricsSnapshot

SERVER = ServerLoad(1.5, 2**30, 0.75, 2**31, 2**34, (GpuLoad("G", 0.5, 2**30, 2**36),))
ENGINE = ModelLoad(
    "speller_engine",
    12.5,
    0.0,
    latency_ms=3.25,
    queue_share=0.4,
    batch_factor=2.5,
    waiting=3,
    ttft=TimeQuantiles(1000, 20, 12.3, 45.6, 60000),
    itl=TimeQuantiles(80, 5, 4.5, 2500, 2500),
    e2e=TimeQuantiles(80, 950, 900, 1200, 60000),
    tokens_per_s=345.6,
    active_streams=7.5,
    kv_used=0.95,
    instances=1,
)
SPELLER = replace(
    ENGINE,
    model="speller",
    failures_per_s=0.3,
    failures={"OTHER": 3.0},
    batch_factor=None,
    instances=None,
    steps=(ModelLoad("speller_tokenizer", 14, 0.0, restarted=True), ENGINE),
)
NOW, WHEN = 500.0, 1_700_000_000.0
IDLE = ModelLoad("an_encoder", 0.0, 0.0, waiting=9.0)


def view_of(sort: str = "requests") -> TopView:
    """At the moment NOW."""
    return TopView(sort, clock=lambda: NOW)


def sight(*models: ModelLoad) -> MetricsSnapshot:
    """Just seen."""
    figures = WindowFigures(10.0, SERVER, models)
    return MetricsSnapshot("http://h:8002/metrics", WHEN, 2.0, figures, read_at=NOW)


def lines(view: TopView, seen: MetricsSnapshot, width: int = 200) -> list[str]:
    """What is on a screen of that width."""
    return view.plain(seen, width).splitlines()


def test_everything_on_a_wide_terminal() -> None:
    """Server, ensemble with its steps indented, failures by reason, what was loaded again."""
    text = lines(view_of(), sight(SPELLER, replace(IDLE, silent=2)))
    assert text[0] == "tritonctl top  http://h:8002/metrics  the last 10 s"
    assert text[1] == (
        "CPU 1.50 cores  memory 1.00 GiB  machine CPU 75%  machine memory 2.0/16.0 GiB  "
        "GPU 0 50% 1.0/64.0 GiB"
    )
    headings = (
        "model req/s failed/s TTFT ms ITL ms tok/s wait queue batch active KV E2E ms ms/req inst"
    )
    assert text[2].split() == headings.split()
    cells = "12.5 0.30 12.3/45.6 4.50/>2500 346 3 40% · 7.5 95% 900/~1200 3.25 ·"
    assert text[3].split() == ["speller", *cells.split()]
    assert text[4].startswith("  tokenizer ")
    assert text[5].startswith("  engine ")
    assert "speller failed: OTHER 3" in text
    assert "an_encoder: 2 of its processes have stopped reporting" in text
    assert "reloaded, counters restarted: speller_tokenizer" in text


def test_a_p99_of_few_values_is_marked() -> None:
    """It is hardly more than their largest."""
    few = replace(IDLE, ttft=TimeQuantiles(20, 20, 12.3, 45.6, 60000))
    assert "12.3/~45.6" in "\n".join(lines(view_of(), sight(few)))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 140, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """The least important columns go first; names are cut."""
    long_name = replace(IDLE, model="an_encoder_with_a_very_long_name_indeed_and_more")
    text = lines(view_of(), sight(SPELLER, long_name), width)
    table = [line for line in text if "speller failed" not in line and "loaded" not in line]
    assert max(map(cell_len, table)) <= width
    headings = next(line for line in text if line.startswith("model"))
    assert ("inst" in headings) == (width == 300)
    if width >= 40:
        assert "failed/s" in headings


def test_sorting() -> None:
    """The busiest first unless asked otherwise; equals by name."""
    quiet = replace(IDLE, model="b", waiting=0.0)

    def order(sort: str) -> list[str]:
        text = lines(view_of(sort), sight(quiet, SPELLER, IDLE))
        names = ("b", "speller", "an_encoder")
        return [n for line in text if (n := line.split(" ")[0]) in names and "failed:" not in line]

    assert order("requests") == ["speller", "an_encoder", "b"]
    assert order("failed") == ["speller", "an_encoder", "b"]
    assert order("ttft") == ["speller", "an_encoder", "b"]
    assert order("waiting") == ["an_encoder", "speller", "b"]
    assert order("name") == ["an_encoder", "b", "speller"]


def test_a_server_that_is_gone() -> None:
    """Since when, why, and what was last known."""
    gone = replace(sight(SPELLER), problem="no metrics: refused", silent_since=NOW - 12.2)
    text = lines(view_of(), gone)
    assert text[1] == "no answer for 12 s: no metrics: refused"
    assert text[2] == "last figures:"
    assert any(line.startswith("speller ") for line in text)
    never = MetricsSnapshot("http://h", WHEN, 2.0, None, "refused", NOW, NOW)
    assert lines(view_of(), never)[1:2] == ["no answer for 0 s: refused"]


@pytest.mark.parametrize(("ago", "told"), [(4.9, False), (5.0, False), (5.1, True), (20.1, True)])
def test_a_look_that_takes_long_is_seen(ago: float, told: bool) -> None:
    """A frozen server: the screen is drawn anew while the look waits, two looks and a second."""
    late = replace(sight(SPELLER), read_at=NOW - ago)
    assert (f"(no answer for {ago:.0f} s)" in lines(view_of(), late)[0]) is told


def test_live_on_a_terminal() -> None:
    """The whole screen, drawn on what is a terminal to rich; restored at the end."""
    screen = io.StringIO()
    console = RichConsole(file=screen, force_terminal=True, width=100, height=20)
    view = view_of()
    with view.live(console) as live:
        view.show(sight(SPELLER))
        live.refresh()
    assert "\x1b[?1049h" in screen.getvalue()
    assert "speller_engine" not in screen.getvalue()
    assert "speller" in screen.getvalue()
    assert screen.getvalue().rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))


def test_json_is_one_record_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts: nothing else on standard output."""
    with (
        naming_documents("top"),
        Console(as_json=True).watch_server("requests", live=True) as show,
    ):
        show(sight(SPELLER))
        show(sight(IDLE))
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["models"][0]["steps"][1]["ttft"]["p50_ms"] == 12.3
    assert second["models"][0]["waiting"] == 9


def test_a_pipe_gets_text(capsys: pytest.CaptureFixture[str]) -> None:
    """One block after the other, without escape sequences."""
    with Console().watch_server("requests", live=True) as show:
        show(sight(IDLE))
        show(sight(IDLE))
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert text.count("tritonctl top  http://h:8002/metrics") == 2


def test_the_cache_has_a_column_where_a_model_has_one() -> None:
    """Also on a narrow terminal."""
    view = view_of()
    assert "cache" not in "".join(lines(view, sight(SPELLER), 80))
    text = lines(view, sight(replace(SPELLER, cache_hits=0.756)), 80)
    headings, first = next(pair for pair in pairwise(text) if pair[0].startswith("model"))
    assert headings.split()[:4] == ["model", "req/s", "failed/s", "cache"]
    assert first.split()[3] == "76%"
