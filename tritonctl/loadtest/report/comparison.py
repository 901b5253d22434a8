# SPDX-License-Identifier: Apache-2.0
"""Two load tests on one page: differences beyond chance, and overlaid percentile curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonctl.host.files import write_atomically
from tritonctl.loadtest.analysis.compare import Change, Estimate, LoadComparison, compare
from tritonctl.loadtest.report.figures import (
    Axis,
    ChartSeries,
    Dash,
    ReportFigure,
    Row,
    Symbol,
    format_number,
    round_figure,
)
from tritonctl.loadtest.report.latency import (
    METRICS,
    curve_line,
    curve_points,
    curves_figure,
    interval_markers,
)
from tritonctl.loadtest.report.page import Section, render_page, without_none
from tritonctl.loadtest.report.run import ReportedRun, load_run
from tritonctl.loadtest.report.tables import Badge, Cell, Table, Tile

COMPARISON = "comparison.html"
# Colour, dash and symbol of each side.
SIDES: tuple[tuple[str, Dash, Symbol], ...] = (
    ("--infer", "solid", "circle"),
    ("--ttft", "dash", "diamond"),
)
CURVES = (("ttft", "TTFT"), ("e2e", "end to end"), ("itl", "ITL"))


def write_comparison(
    baseline: Path, candidate: Path, output: Path | None = None, *, force: bool = False
) -> Path:
    """Write a page that compares the runs in two folders, by default into the second one.

    Raises UsageError if their loads differ (unless forced), ConfigurationError, HostError.
    """
    comparison = compare([baseline], [candidate], force=force)
    page = _render_comparison(comparison, load_run(baseline), load_run(candidate))
    path = output or candidate / COMPARISON
    write_atomically(path, page)
    return path


def _render_comparison(
    comparison: LoadComparison, baseline: ReportedRun, candidate: ReportedRun
) -> str:
    runs = (baseline, candidate)
    figures = [
        f for metric, title in CURVES for f in without_none(_curve_figure(metric, title, runs))
    ]
    sections = [
        Section(
            "changes",
            "Differences",
            without_none(_change_figure(comparison)),
            (),
            [_changes_table(comparison)],
        ),
        Section("curves", "Percentiles", (), figures),
        Section("settings", "Settings", tables=without_none(_settings_table(comparison))),
    ]
    differing = [change for change in comparison.changes if change.differs]
    candidate_name = _join_names(comparison.right)
    return render_page(
        title=f"{candidate_name} against {_join_names(comparison.left)}",
        subtitle=f"load tests of {baseline.summary.model}: the second is {candidate_name}",
        badges=[
            Badge("unjudged", "They differ")
            if differing
            else Badge("undecided", comparison.verdict.capitalize())
        ],
        card=[],
        words=_headline(comparison),
        invalid_title="Warnings:",
        invalid_because=comparison.warnings,
        limited_title="",
        limited_by="",
        tiles=[
            Tile(change.name, _relative(change), f"{_bound(change.low)} to {_bound(change.high)}")
            for change in differing
        ],
        sections=[section for section in sections if section],
        versions=_runs_table(runs),
        settings=_run_documents(runs),
        folder=f"{_join_names(comparison.left)} and {_join_names(comparison.right)}",
    )


def _join_names(names: Sequence[str]) -> str:
    return " + ".join(names)


def _headline(comparison: LoadComparison) -> str:
    differing = sum(change.differs for change in comparison.changes)
    baseline, candidate = _join_names(comparison.left), _join_names(comparison.right)
    if not differing:
        return f"{comparison.verdict.capitalize()} between {baseline} and {candidate}."
    share = f"{differing} of {len(comparison.changes)} figures differ beyond chance"
    return f"{share}: the changes of {candidate} against {baseline}."


def _relative(change: Change) -> str:
    return "-" if change.change is None else _percent(change.change)


def _bound(value: float | None) -> str:
    return "unbounded" if value is None else _percent(value)


def _percent(value: float) -> str:
    return f"{100 * value:+.3g} %"


def _changes_table(comparison: LoadComparison) -> Table:
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
        _join_names(comparison.left),
        _join_names(comparison.right),
        "change",
        "the second is",
    )
    caption = "Each figure on both sides and its change, with 99 % intervals; shares in points."
    return Table(caption, headings, rows, words=(4,))


def _estimate(change: Change, estimate: Estimate) -> Cell:
    scale, unit = (100, " %") if change.unit == "share" else (1, f" {change.unit}")
    low, high = (
        "?" if bound is None else format_number(scale * bound)
        for bound in (estimate.low, estimate.high)
    )
    return Cell(f"{format_number(scale * estimate.value)}{unit}", f"{low} – {high}")


def _change_figure(comparison: LoadComparison) -> ReportFigure | None:
    """Draw the changes with their intervals around zero."""
    changes = [change for change in comparison.changes if change.change is not None]
    if not changes:
        return None
    data = [
        _change_markers("differs", [c for c in changes if c.differs], "--accent", "diamond"),
        _change_markers(
            "no difference proven", [c for c in changes if not c.differs], "--quiet", "circle"
        ),
    ]
    return ReportFigure(
        "changes-chart",
        "Changes with 99 % intervals",
        "; ".join(f"{change.name} {change.verdict}" for change in changes) + ".",
        data,
        Axis("change of the second against the first, %"),
        [Row("", categories=[change.name for change in changes])],
        height=150 + 34 * len(changes),
    )


def _change_markers(
    name: str, changes: Sequence[Change], colour: str, symbol: Symbol
) -> ChartSeries:
    return ChartSeries(
        "points",
        name,
        [_in_percent(change.change or 0.0) for change in changes],
        [change.name for change in changes],
        colour,
        hover="{y}: {x} %, {text}",
        texts=[change.verdict for change in changes],
        low=[_in_percent(change.low) for change in changes],
        high=[_in_percent(change.high) for change in changes],
        symbol=symbol,
        size=10,
    )


def _in_percent(share: float | None) -> float | None:
    """Return a relative change in percent."""
    return None if share is None else round_figure(100 * share)


def _curve_figure(metric: str, title: str, runs: Sequence[ReportedRun]) -> ReportFigure | None:
    """Draw one metric's percentile curve of both runs."""
    data: list[ChartSeries] = []
    for run, (colour, dash, symbol) in zip(runs, SIDES, strict=True):
        distribution = run.summary.metrics.get(metric)
        if distribution is not None:
            name = run.folder.name
            points = curve_points(distribution.histogram)
            data.append(curve_line(name, points, colour, 2, dash))
            data.append(interval_markers(name, distribution.percentiles, colour, symbol))
    note = f"{METRICS[metric][0]} of every request in the windows. Bars: 95 % intervals."
    return curves_figure(f"{metric}-curves", title, note, data, runs[1], (metric,))


def _settings_table(comparison: LoadComparison) -> Table | None:
    if not comparison.settings:
        return None
    rows = [
        [s.field, _value(s.left), _value(s.right), "load" if s.load else "setting"]
        for s in comparison.settings
    ]
    headings = ("field", _join_names(comparison.left), _join_names(comparison.right), "kind")
    return Table("Different settings.", headings, rows, words=(1, 2))


def _value(value: Any) -> str:
    return "-" if value is None else str(value)


def _runs_table(runs: Sequence[ReportedRun]) -> Table:
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


def _run_documents(runs: Sequence[ReportedRun]) -> list[tuple[str, str]]:
    sources: list[tuple[str, Mapping[str, Any]]] = []
    for run in runs:
        sources += [(f"Load plan of {run.folder.name}", run.plan)]
        sources += [(f"Environment and settings of {run.folder.name}", run.facts)]
    return [(name, json.dumps(v, ensure_ascii=False, indent=2)) for name, v in sources if v]
