# SPDX-License-Identifier: Apache-2.0
"""Describe a report's charts: series, axes, limits and shaded spans.

A figure is plain data. The page embeds it as JSON, page.js draws it, and the tests read it from
there. Colours are style-sheet names (`--e2e`), which adapt to dark mode and print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

Dash = Literal["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"]
Symbol = Literal["circle", "diamond", "square", "triangle", "x", "cross", "star"]

SYMBOLS: tuple[Symbol, ...] = ("circle", "diamond", "square", "triangle", "star", "cross")
DASHES: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SERIES = 8
_MAX_LIMIT_RATIO = 1.5  # times the largest value: a higher limit line would flatten the data


@dataclass(frozen=True)
class ChartSeries:
    """Points, a line or bars with one name and colour; `x` and `y` have the same length."""

    kind: Literal["points", "line", "bars"]
    name: str
    x: Sequence[float | str | None]
    y: Sequence[float | str | None]  # None leaves a gap
    colour: str
    row: int = 0  # plot of the stack, 0 at the top
    # Text under the pointer; {x}, {y} and {text} are the point's.
    hover: str = "{y} at {x}"
    texts: Sequence[str] = ()  # one per point
    # Ends of an interval around each point, along the numeric axis; None is unbounded.
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    dash: Dash = "solid"
    width: float = 2  # of the line, in pixels
    steps: bool = False  # hold each value until the next x
    symbol: Symbol | None = None  # None: circles for points, no marks on a line
    size: float | Sequence[float] = 5  # diameter of the marks, in pixels
    filled: bool = True
    opacity: float = 1
    pattern: Literal["", "/", "\\", "-", "x", "."] = ""  # over the colour of bars
    legend: bool = True  # False: named with the series that its name begins with


@dataclass(frozen=True)
class Axis:
    """The horizontal axis. A percentile axis is logarithmic and has named ticks."""

    title: str
    range: tuple[float, float] | None = None
    logarithmic: bool = False
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Row:
    """One plot of a stack with its vertical axis; all rows share the horizontal axis."""

    title: str
    weight: float = 1  # share of the height, relative to the other rows
    heading: str = ""  # above the plot, for names too long for the axis
    categories: Sequence[str] = ()  # from top to bottom; replaces the numeric axis


@dataclass(frozen=True)
class Limit:
    """A dashed line over the whole width, with a label above its right end.

    A limit far above the data gets only a label at the upper edge: its line would flatten the data.
    """

    value: float
    text: str
    row: int
    colour: str
    beyond_data: bool


@dataclass(frozen=True)
class ShadedSpan:
    """A shaded period that does not count, with the reason."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class ReportFigure:
    """One chart and the text above it."""

    id: str
    title: str
    note: str
    series: Sequence[ChartSeries]
    x: Axis
    rows: Sequence[Row]
    limits: Sequence[Limit] = ()
    spans: Sequence[ShadedSpan] = ()
    scales: tuple[Literal["linear", "log"], ...] = ()  # to choose from; the first is the default
    height: int = 380  # pixels
    legend: bool = True

    def record(self) -> dict[str, Any]:
        """Return the record for the page's script; fields with default values are left out."""
        return {
            "id": self.id,
            "height": self.height,
            "scale": self.scales[0] if self.scales else "linear",
            "legend": self.legend,
            "x": _changed_fields(self.x),
            "rows": [_changed_fields(row) for row in self.rows],
            "series": [_changed_fields(series) for series in self.series],
            "limits": [_changed_fields(limit) for limit in self.limits],
            "spans": [_changed_fields(span) for span in self.spans],
        }


def _changed_fields(part: ChartSeries | Axis | Row | Limit | ShadedSpan) -> dict[str, Any]:
    values = {field: getattr(part, field.name) for field in fields(part)}
    return {f.name: v for f, v in values.items() if f.default is MISSING or v != f.default}


def line(
    name: str, x: Sequence[float], y: Sequence[float | None], colour: str, **options: Any
) -> ChartSeries:
    """Return a line through points, rounded; None leaves a gap."""
    rounded = [round_figure(value) for value in y]
    return ChartSeries("line", name, list(x), rounded, colour, **options)


def series_colour(index: int) -> str:
    """Return the colour of a numbered series."""
    return f"--series-{index % SERIES}"


def round_figure(value: float | None) -> float | None:
    """Round to six significant digits to keep the page small."""
    return None if value is None else float(f"{value:.6g}")


def format_ms(value: float | None) -> str:
    """Format a latency with three significant digits."""
    return "-" if value is None else f"{format_number(value)} ms"


def format_number(value: float) -> str:
    """Format a number with three significant digits and thousands separators."""
    digits = next((d for d, threshold in enumerate((100, 10, 1)) if abs(value) >= threshold), 3)
    digits = digits if value else 0
    return f"{value:,.{digits}f}"


def limit_line(
    value: float, text: str, data: Sequence[ChartSeries], *, row: int = 0, colour: str = "--limit"
) -> Limit:
    """Return a limit of a row. `data` decides whether it is drawn as a line."""
    drawn = [y for series in data if series.row == row for y in series.y]
    largest = max((y for y in drawn if isinstance(y, int | float)), default=value)
    return Limit(value, text, row, colour, beyond_data=value > _MAX_LIMIT_RATIO * largest)
