# SPDX-License-Identifier: Apache-2.0
"""`tritonctl loadtest report`: which run is meant, what is written, what is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.json_page import as_documented
from tests.loadtest_records import SyntheticRun
from tests.report_page import finished
from tritonctl.cli import application

SHORT = SyntheticRun(seconds=2, rate=20)
Report = Callable[..., Result]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two runs, the older one touched last by name."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "tritonctl.yaml").write_text(
        "schema: tritonctl/v1\nmodels:\n  speller:\n    task: text_generation\n"
        "    checkpoint: checkpoint\n    engine: {builder: openvino, precision: fp32}\n",
        encoding="utf-8",
    )
    runs = tmp_path / ".tritonctl" / "loadtests"
    for number, name in enumerate(("20260102-000000-speller", "20260101-000000-speller")):
        folder = finished(SHORT, runs / name)
        os.utime(folder / "plan.json", (number, number))
    return tmp_path


@pytest.fixture
def invoke(project: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """The command, run in the project's folder."""
    monkeypatch.chdir(project)
    words = ["loadtest", "report"]

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(application(words), [*words, *arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def test_the_last_run_is_meant(project: Path, invoke: Report) -> None:
    """Without an argument: the one that was made last."""
    result = invoke()
    page = project / ".tritonctl" / "loadtests" / "20260101-000000-speller" / "report.html"
    assert result.output == f"{page}\n"
    assert page.is_file()


def test_by_the_beginning_of_its_name(project: Path, invoke: Report) -> None:
    """As short as it is clear; --output writes elsewhere, --csv the requests."""
    result = invoke("20260102", "--output", "here.html", "--csv", "--json")
    run = project / ".tritonctl" / "loadtests" / "20260102-000000-speller"
    told = as_documented("loadtest report", result.output)
    assert told == {
        "run": str(run),
        "against": None,
        "report": "here.html",
        "requests": str(run / "requests.csv"),
    }
    assert (project / "here.html").read_text(encoding="utf-8").endswith("</html>\n")
    assert (run / "requests.csv").is_file()
    assert not (run / "report.html").exists()


def test_by_its_folder(tmp_path: Path, invoke: Report) -> None:
    """Any folder of a run, of whatever project."""
    folder = finished(SHORT, tmp_path / "elsewhere")
    invoke(str(folder), "--quiet")
    assert (folder / "report.html").is_file()


def test_unknown_and_ambiguous_names(invoke: Report) -> None:
    """Said which runs it can be, and how to make one."""
    ambiguous, unknown = invoke("2026"), invoke("yesterday")
    assert (ambiguous.exit_code, unknown.exit_code) == (2, 2)
    assert "20260101-000000-speller, 20260102-000000-speller" in ambiguous.stderr
    assert "unknown load test `yesterday`" in unknown.stderr
    assert "loadtest run" in unknown.stderr


def test_against_another_run(project: Path, invoke: Report) -> None:
    """The comparison lies in the first one's folder, beside its report."""
    result = invoke("20260102", "--against", "20260101")
    run = project / ".tritonctl" / "loadtests" / "20260102-000000-speller"
    assert result.output == f"{run / 'comparison.html'}\n"
    assert (run / "comparison.html").is_file()
    assert not (run / "report.html").exists()
