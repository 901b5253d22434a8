# SPDX-License-Identifier: Apache-2.0
"""The page of two runs: the changes are compare's, the curves are both runs'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.loadtest_records import SyntheticRun
from tests.report_page import Reader, finished, series_of
from tritonctl.errors import UsageError
from tritonctl.loadtest.analysis.compare import compare
from tritonctl.loadtest.analysis.summary import read_summary
from tritonctl.loadtest.report.comparison import write_comparison

RUN = SyntheticRun(seconds=15, rate=40, slo={"ttft_p99_ms": 200.0})
SLOWER = replace(RUN, seed=2, token_ms=4.0, settings={"max_batch_size": 7})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run and one with half the speed between tokens."""
    root = tmp_path_factory.mktemp("runs")
    return finished(RUN, root / "before"), finished(SLOWER, root / "after <b>")


@pytest.fixture(scope="module")
def page(folders: tuple[Path, Path]) -> Reader:
    """Their comparison."""
    return Reader.of(write_comparison(*folders).read_text(encoding="utf-8"))


def test_every_change_is_a_row_and_a_mark(page: Reader, folders: tuple[Path, Path]) -> None:
    """With compare's verdict, and its interval in the chart."""
    found = compare([folders[0]], [folders[1]])
    assert any(change.differs for change in found.changes)
    assert not all(change.differs for change in found.changes)
    rows = {row[0]: row for row in page.table("Each figure")[1:]}
    assert list(rows) == [change.name for change in found.changes]
    figure = page.figures()["changes-chart"]
    for change in found.changes:
        assert rows[change.name][4] == change.verdict
        marks = series_of(figure, "differs" if change.differs else "no difference proven")
        place = marks["y"].index(change.name)
        assert change.change is not None
        middle = marks["x"][place]
        assert middle == pytest.approx(100 * change.change, rel=1e-5, abs=1e-9)
        for name, bound in (("low", change.low), ("high", change.high)):
            expected = None if bound is None else pytest.approx(100 * bound, rel=1e-5, abs=1e-9)
            assert marks[name][place] == expected


def test_both_curves_are_drawn(page: Reader, folders: tuple[Path, Path]) -> None:
    """Over each other, told apart by colour and by dashes, to their largest values."""
    for metric in ("ttft", "e2e", "itl"):
        figure = page.figures()[f"{metric}-curves"]
        lines = [s for s in figure["series"] if s["kind"] == "line"]
        assert [s["name"] for s in lines] == ["before", "after <b>"]
        assert [s.get("dash") for s in lines] == [None, "dash"]
        for drawn, folder in zip(lines, folders, strict=True):
            largest = read_summary(folder).metrics[metric].max_ms
            assert drawn["y"][-1] == pytest.approx(largest, rel=2e-3)


def test_what_was_set_differently(page: Reader) -> None:
    """By the field's name, with both values."""
    rows = page.table("Different settings")
    assert ["models.speller_engine.max_batch_size", "4", "7", "setting"] in rows
    assert page.all("h1")[0].text == "after <b> against before"
    assert page.all("b") == []


def test_equal_runs_do_not_differ(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """A run against itself: said in words at the top, no figure is singled out."""
    path = write_comparison(folders[0], folders[0], tmp_path / "page.html")
    page = Reader.of(path.read_text(encoding="utf-8"))
    badges = [e for e in page.all("span") if str(e.attributes.get("class")).startswith("badge")]
    assert [badge.attributes["class"] for badge in badges] == ["badge undecided"]
    assert [e for e in page.all("div") if e.attributes.get("class") == "tile"] == []


def test_other_loads_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing is written; --allow-different-loads of compare does it all the same."""
    other = finished(replace(RUN, rate=20.0), tmp_path / "other")
    with pytest.raises(UsageError, match=r"arrivals\.rate"):
        write_comparison(folders[0], other)
    assert not (other / "comparison.html").exists()
    assert write_comparison(folders[0], other, force=True).is_file()
