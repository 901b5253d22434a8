# SPDX-License-Identifier: Apache-2.0
"""Two load tests on one page: what differs beyond chance, and both curves over each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonctl.host.files import write_atomically
from tritonctl.loadtest.analysis.compare import Change, Comparison, Estimate, compare
from tritonctl.loadtest.report.figures import (
    Figure,
    Trace,
    axis,
    base_layout,
    number,
    plain,
    rounded,
)
from tritonctl.loadtest.report.latency import (
    METRICS,
    curve_line,
    curve_points,
    curves_figure,
    intervals,
)
from tritonctl.loadtest.report.page import Section, render_page, without_none
from tritonctl.loadtest.report.run import Run, load_run
from tritonctl.loadtest.report.tables import Badge, Cell, Table, Tile

COMPARISON = "comparison.html"
# Colour, dashes, symbol of each.
SIDES = (("--infer", "solid", "circle"), ("--ttft", "dash", "diamond"))
CURVES = (("ttft", "TTFT"), ("e2e", "end to end"), ("itl", "ITL"))


def write_comparison(
    left: Path, right: Path, output: Path | None = None, *, force: bool = False
) -> Path:
    """Compare the runs in two folders on a page, by default in the second one's.

    Raises UsageError where their loads differ (unless forced), ConfigurationError, HostError.
    """
    comparison = compare([left], [right], force=force)
    page = _page(comparison, load_run(left), load_run(right))
    path = output or right / COMPARISON
    write_atomically(path, page)
    return path


def _page(comparison: Comparison, left: Run, right: Run) -> str:
    runs = (left, right)
    figures = [f for metric, title in CURVES for f in without_none(_curves(metric, title, runs))]
    sections = [
        Section(
            "changes",
            "What differs",
            without_none(_change_figure(comparison)),
            (),
            [_changes(comparison)],
        ),
        Section("curves", "Percentiles", (), figures),
        Section("settings", "Settings", tables=without_none(_settings(comparison))),
    ]
    differing = [change for change in comparison.changes if change.differs]
    return render_page(
        title=f"{_name(comparison.right)} against {_name(comparison.left)}",
        subtitle=f"load tests of {left.summary.model}: the second is {_name(comparison.right)}",
        badges=[
            Badge("unjudged", "They differ")
            if differing
            else Badge("undecided", comparison.verdict.capitalize())
        ],
        card=[],
        words=_words(comparison),
        invalid_title="Before you rely on it:",
        invalid_because=comparison.warnings,
        limited_title="",
        limited_by="",
        tiles=[
            Tile(change.name, _relative(change), f"{_bound(change.low)} to {_bound(change.high)}")
            for change in differing
        ],
        sections=[section for section in sections if section],
        versions=_runs(runs),
        settings=_plans(runs),
        folder=f"{_name(comparison.left)} and {_name(comparison.right)}",
    )


def _name(names: Sequence[str]) -> str:
    return " + ".join(names)


def _words(comparison: Comparison) -> str:
    differing = sum(change.differs for change in comparison.changes)
    if not differing:
        names = f"{_name(comparison.left)} and {_name(comparison.right)}"
        return f"{comparison.verdict.capitalize()} between {names}."
    share = f"{differing} of {len(comparison.changes)} figures differ beyond chance"
    return f"{share}: the changes of {_name(comparison.right)} against {_name(comparison.left)}."


def _relative(change: Change) -> str:
    return "-" if change.change is None else _percent(change.change)


def _bound(value: float | None) -> str:
    return "unbounded" if value is None else _percent(value)


def _percent(value: float) -> str:
    return f"{100 * value:+.3g} %"


def _changes(comparison: Comparison) -> Table:
    rows: list[list[Cell | Badge | str]] = [
        [
            change.name,
            _estimate(change, change.left),
            _estimate(change, change.right),
            Cell(_relative(change), f"{_bound(change.low)} to {_bound(change.high)}"),
            change.verdict,
        ]
        for change in comparison.changes
    ]
    headings = (
        "figure",
        _name(comparison.left),
        _name(comparison.right),
        "change",
        "the second is",
    )
    caption = "Each figure on both sides and its change, with 99 % intervals; shares in points."
    return Table(caption, headings, rows, words=(4,))


def _estimate(change: Change, estimate: Estimate) -> Cell:
    scale, unit = (100, " %") if change.unit == "share" else (1, f" {change.unit}")
    low, high = (
        "?" if bound is None else number(scale * bound) for bound in (estimate.low, estimate.high)
    )
    return Cell(f"{number(scale * estimate.value)}{unit}", f"{low} – {high}")


def _change_figure(comparison: Comparison) -> Figure | None:
    """The changes with their intervals around zero."""
    known = [change for change in comparison.changes if change.change is not None]
    if not known:
        return None
    data = [
        _marks("differs", [c for c in known if c.differs], "--accent", "diamond"),
        _marks("no difference proven", [c for c in known if not c.differs], "--quiet", "circle"),
    ]
    height = 150 + 34 * len(known)
    layout = base_layout(height)
    layout["xaxis"] = axis("change of the second against the first, %", zeroline=True)
    names = [plain(change.name) for change in known]
    layout["yaxis"] = axis(
        "", type="category", categoryorder="array", categoryarray=names, autorange="reversed"
    )
    note = "; ".join(f"{change.name} {change.verdict}" for change in known) + "."
    return Figure("changes-chart", "Changes with 99 % intervals", note, data, layout, height=height)


def _marks(name: str, changes: Sequence[Change], colour: str, symbol: str) -> Trace:
    middles = [100 * (change.change or 0.0) for change in changes]
    lows = [m if c.low is None else 100 * c.low for c, m in zip(changes, middles, strict=True)]
    highs = [m if c.high is None else 100 * c.high for c, m in zip(changes, middles, strict=True)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [rounded(middle) for middle in middles],
        "y": [plain(change.name) for change in changes],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [rounded(h - m) for h, m in zip(highs, middles, strict=True)],
            "arrayminus": [rounded(m - w) for w, m in zip(lows, middles, strict=True)],
            "color": colour,
        },
        "marker": {"color": colour, "size": 10, "symbol": symbol},
        "text": [plain(change.verdict) for change in changes],
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }


def _curves(metric: str, title: str, runs: Sequence[Run]) -> Figure | None:
    """One metric of both runs."""
    data: list[Trace] = []
    for run, (colour, dash, symbol) in zip(runs, SIDES, strict=True):
        distribution = run.summary.metrics.get(metric)
        if distribution is not None:
            name = run.folder.name
            points = curve_points(distribution.histogram)
            data.append(curve_line(name, points, colour, 2, dash))
            data.append(intervals(name, distribution.percentiles, colour, symbol))
    note = f"{METRICS[metric][0]} of every request in the windows. Bars: 95 % intervals."
    return curves_figure(f"{metric}-curves", title, note, data, runs[1], (metric,))


def _settings(comparison: Comparison) -> Table | None:
    if not comparison.settings:
        return None
    rows = [
        [s.field, _value(s.left), _value(s.right), "load" if s.load else "setting"]
        for s in comparison.settings
    ]
    headings = ("field", _name(comparison.left), _name(comparison.right), "what it is")
    return Table("What was set differently.", headings, rows, words=(1, 2))


def _value(value: Any) -> str:
    return "-" if value is None else str(value)


def _runs(runs: Sequence[Run]) -> Table:
    rows = [
        [
            run.folder.name,
            _value(run.facts.get("started_at")),
            f"{run.summary.counts.sent:,}",
            "yes" if run.summary.valid else "no",
            run.summary.limited_by,
        ]
        for run in runs
    ]
    headings = ("run", "started", "requests", "valid", "limited by")
    return Table("The two runs.", headings, rows, words=(4,))


def _plans(runs: Sequence[Run]) -> list[tuple[str, str]]:
    sources: list[tuple[str, Mapping[str, Any]]] = []
    for run in runs:
        sources += [(f"Load plan of {run.folder.name}", run.plan)]
        sources += [(f"Facts of {run.folder.name}", run.facts)]
    return [(name, json.dumps(v, ensure_ascii=False, indent=2)) for name, v in sources if v]
