# SPDX-License-Identifier: Apache-2.0
"""Every table of every verb at 80 columns, in a pipe and on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len

from tests import headers
from tests.loadtest_records import SyntheticRun
from tests.report_page import finished
from tritonctl.cli.console.output import Console
from tritonctl.engines.builds.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.loadtest.analysis.capacity import Capacity, CapacityTrial
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.report.capacity_text import CAPACITY_HEADINGS, capacity_rows
from tritonctl.loadtest.report.summary_text import HEADINGS, metric_rows
from tritonctl.loadtest.run.capacity import CapacityRun
from tritonctl.tuning.report import STEP_HEADINGS

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

COLUMNS = 80
FINGERPRINT = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{16})(?![0-9a-f])")
WHY = "TTFT P99 fell from 512 ms to 230 ms: the queue before the engine was what they waited for"


def too_long(text: str) -> list[str]:
    """Lines that are longer, but for one word alone, such as a path."""
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    return [line for line in lines if cell_len(line) > COLUMNS and len(line.split()) > 1]


@pytest.fixture(params=[False, True], ids=["pipe", "terminal"])
def console(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Prints in 80 columns."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    if request.param:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    return Console()


def measured(tmp_path: Path) -> tuple[tuple[str, ...], list[list[str]]]:
    """A load test's."""
    folder = SyntheticRun(seconds=30, slo={"itl_p99_ms": 20.0}).write(tmp_path / "run")
    return HEADINGS, metric_rows(summarise(folder))


def searched(_: Path) -> tuple[tuple[str, ...], list[list[str]]]:
    """A search for the capacity."""
    figures = {
        "goodput_rps": 1039.5,
        "ttft_p50_ms": 112.3,
        "ttft_p95_ms": 512.3,
        "e2e_p50_ms": 1112.3,
        "e2e_p95_ms": 12512.0,
    }
    best = CapacityTrial(1040, "undecided", likely=True, figures=figures)
    worse = CapacityTrial(
        1080, "missed", figures=figures, note="given up: ttft of 40% was over 500 ms"
    )
    done = CapacityRun(Path("runs"), Capacity(1040, 1080, "found", (best, worse)), None)
    return CAPACITY_HEADINGS, capacity_rows(done)


def tuned(_: Path) -> tuple[tuple[str, ...], list[list[str]]]:
    """A tuning session."""
    knob = "detokenizer.max_queue_delay_microseconds"
    return STEP_HEADINGS, [[knob, "1500", "69.6/s", "no better", "ttft 230, itl 12", WHY]]


def answered(_: Path) -> tuple[tuple[str, ...], list[list[str]]]:
    """`tritonctl smoke`."""
    return ("model", "check", "", "result"), [["speller_detokenizer", "batching", "pass", WHY]]


@pytest.mark.parametrize("made", [measured, searched, tuned, answered])
def test_tables(
    made: Callable[[Path], tuple[tuple[str, ...], list[list[str]]]],
    console: Console,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No line is longer, and every word of every cell is there in one piece."""
    headings, table = made(tmp_path)
    console.table({}, headings, table)
    out = capsys.readouterr().out
    assert max(map(cell_len, re.sub(r"\x1b\[[\d;]*m", "", out).splitlines())) <= COLUMNS
    words = out.split()
    assert [
        word for row in table for cell in row for word in cell.split() if word not in words
    ] == []


@pytest.mark.parametrize(
    "command",
    [("artefacts", "list"), ("artefacts", "show", "speller"), ("doctor",)],
    ids=" ".join,
)
def test_verbs(command: tuple[str, ...], built: Sandbox, cli: Cli) -> None:
    """As they print it; a fingerprint stays whole."""
    built.write()
    done = cli(*command)
    assert done.stdout
    assert too_long(done.stdout) == []
    if command[0] == "artefacts":
        (folder,) = (built.root / ".tritonctl" / "engines" / "speller").glob("[!.]*")
        assert folder.name in FINGERPRINT.findall(done.stdout)


def test_artefacts_that_differ(built: Sandbox, cli: Cli) -> None:
    """Both names, fields and values; also where only a hash does."""
    built.engine["precision"] = "fp32"
    build_engine(built.load(), "speller", Silent())
    built.engine["precision"] = "int8"
    built.write()
    folders = (built.root / ".tritonctl" / "engines" / "speller").glob("[!.]*")
    one, other = sorted(f"speller/{folder.name}" for folder in folders)
    done = cli("artefacts", "diff", one, other)
    assert too_long(done.stdout) == []
    words = done.stdout.split()
    assert {one, other, "request.precision", "fp32", "int8"} <= set(words)
    assert any(re.fullmatch(r"[0-9a-f]{64}", word) for word in words)


def test_load_tests_compared(sandbox: Sandbox, cli: Cli) -> None:
    """Each figure of both with its interval, and what is said of it."""
    stored = sandbox.root / ".tritonctl" / "loadtests"
    sandbox.write()
    for name in ("20261125-163449-a-load-test-with-a-long-name", "20261125-173449-another"):
        finished(SyntheticRun(seconds=30, slo={"itl_p99_ms": 20.0}), stored / name)
    done = cli("loadtest", "compare", *sorted(path.name for path in stored.iterdir()))
    assert done.returncode == 0, done.stderr
    assert too_long(done.stdout) == []
    assert "no difference" in " ".join(done.stdout.split())


def test_plan_on_every_gpu(sandbox: Sandbox, cli: Cli) -> None:
    """With the reasons of those that cannot run it."""
    headers.write_checkpoint(sandbox.root / "70b", headers.LLAMA_3_70B, shards=4)
    sandbox.data["models"]["speller"]["checkpoint"] = "70b"
    sandbox.engine.update(builder="tensorrt_llm", precision="fp8", max_seq_len=4096, options={})
    sandbox.write()
    out = cli("plan").stdout
    assert too_long(out) == []
    assert "FP8 arithmetic came with Ada" in " ".join(out.split())
    assert re.search(r"^  H200 +", out, re.MULTILINE)
