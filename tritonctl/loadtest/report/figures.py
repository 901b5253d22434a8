# SPDX-License-Identifier: Apache-2.0
"""What the figures of a report share: plain plotly.js figures, their axes, their words.

A figure is data, not calls: the page carries it as JSON, and the tests read it from there. Colours
are names of the style sheet (`--e2e`), so that a page in the dark looks as good as one on paper.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Trace = dict[str, Any]
Layout = dict[str, Any]

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "pentagon", "hexagon", "star", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SERIES = 8
MANY_ROWS = 4
_NEAR = 1.5  # times the largest value: as far above it a limit still belongs to the picture


@dataclass(frozen=True)
class Figure:
    """One chart: what it shows in words, then as plotly.js wants it."""

    id: str
    title: str
    note: str
    data: list[Trace]
    layout: Layout
    scales: tuple[str, ...] = ()
    height: int = 380

    def record(self) -> dict[str, Any]:
        """What the page's script needs."""
        scale = self.scales[0] if self.scales else None
        return {"id": self.id, "scale": scale, "data": self.data, "layout": self.layout}


def stacked_layout(height: int, x: str, rows: Sequence[str], heights: Sequence[float]) -> Layout:
    """Plots above one another that share their x axis, from top to bottom."""
    layout = base_layout(height)
    for row, (title, domain) in enumerate(zip(rows, _domains(heights), strict=True)):
        layout["yaxis" if row == 0 else f"yaxis{row + 1}"] = axis(
            title, rangemode="tozero", domain=domain
        )
    layout["xaxis"] = axis(x, anchor="y" if len(rows) == 1 else f"y{len(rows)}")
    return layout


def _domains(heights: Sequence[float]) -> list[list[float]]:
    """Shares of the height, a gap between them."""
    gap = 0.11 if len(heights) < MANY_ROWS else 0.06
    room = (1 - gap * (len(heights) - 1)) / sum(heights)
    domains, top = [], 1.0
    for share in heights:
        bottom = max(0.0, top - share * room)
        domains.append([round(bottom, 4), round(top, 4)])
        top = bottom - gap
    return domains


def base_layout(height: int) -> Layout:
    """Fonts, margins, legend and colours that every figure has."""
    return {
        "height": height,
        "margin": {"l": 62, "r": 18, "t": 44, "b": 46},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, sans-serif", "size": 12.5, "color": "--ink"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "hoverlabel": {"bgcolor": "--hover", "bordercolor": "--line", "font": {"color": "--ink"}},
        "showlegend": True,  # a single trace has a meaning, too
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "--quiet", "activecolor": "--accent"},
        "shapes": [],
        "annotations": [],
    }


def axis(title: str, **more: Any) -> Layout:
    """An axis in the page's colours."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 12.5}},
        "gridcolor": "--grid",
        "linecolor": "--line",
        "zerolinecolor": "--line",
        "automargin": True,
    } | more


def line(
    name: str, x: Sequence[float], y: Sequence[float | None], colour: str, **more: Any
) -> Trace:
    """A line through points; None leaves a gap."""
    style = {"color": colour, "width": 2} | more.pop("line", {})
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "x": list(x),
        "y": [rounded(value) for value in y],
        "line": style,
    } | more


def on_row(trace: Trace, row: int) -> Trace:
    """The trace in a lower plot of the stack."""
    return trace if row == 0 else trace | {"yaxis": f"y{row + 1}"}


def series_colour(index: int) -> str:
    """The colour of a numbered series."""
    return f"--series-{index % SERIES}"


def plain(text: object) -> str:
    """Text as text: plotly.js takes names and labels for a kind of HTML."""
    return html.escape(str(text), quote=False)


def rounded(value: float | None) -> float | None:
    """Six significant digits: a page need not carry more."""
    return None if value is None else float(f"{value:.6g}")


def milliseconds(value: float | None) -> str:
    """A latency as people read it: three digits that matter."""
    return "-" if value is None else f"{number(value)} ms"


def number(value: float) -> str:
    """Three digits that matter, thousands apart."""
    digits = next((d for d, least in enumerate((100, 10, 1)) if abs(value) >= least), 3)
    digits = digits if value else 0
    return f"{value:,.{digits}f}"


def add_limit(
    layout: Layout,
    y: float,
    text: str,
    data: Sequence[Trace],
    *,
    row: int = 0,
    colour: str = "--limit",
) -> None:
    """A limit: a dashed line over the whole width, its name above its right end.

    Far above all that is drawn, the line would press the data flat: its name at the upper edge
    says that it is there.
    """
    yref = "y" if row == 0 else f"y{row + 1}"
    drawn = [v for trace in data if trace.get("yaxis", "y") == yref for v in trace["y"]]
    if y > _NEAR * max((value for value in drawn if value is not None), default=y):
        _add_beyond(layout, f"↑ {text}", f"{yref} domain", colour)
        return
    span = {"xref": "paper", "x0": 0, "x1": 1, "yref": yref, "y0": y, "y1": y}
    shape = {"type": "line", "line": {"color": colour, "width": 1.5, "dash": "dash"}}
    layout["shapes"].append(span | shape)
    layout["annotations"].append(_label(text, yref, colour) | {"y": y, "yanchor": "bottom"})


def _add_beyond(layout: Layout, text: str, yref: str, colour: str) -> None:
    """A limit's name at the upper edge, below those that are there already."""
    above = sum(label["yref"] == yref for label in layout["annotations"])
    place = {"y": 1, "yanchor": "top", "yshift": -16 * above}
    layout["annotations"].append(_label(text, yref, colour) | place)


def _label(text: str, yref: str, colour: str) -> Layout:
    """A limit's name at the right."""
    return {
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "yref": yref,
        "yshift": 1,
        "text": plain(text),
        "showarrow": False,
        "bgcolor": "--card",
        "opacity": 0.9,
        "borderpad": 1,
        "font": {"color": colour, "size": 11},
    }


def shaded(x0: float, x1: float, text: str) -> Layout:
    """A span of time that does not count, and why."""
    return {
        "type": "rect",
        "yref": "paper",
        "x0": x0,
        "x1": x1,
        "y0": 0,
        "y1": 1,
        "fillcolor": "--shade",
        "line": {"width": 0},
        "layer": "below",
        "label": {
            "text": text,
            "textposition": "top left",
            "font": {"color": "--quiet", "size": 11},
        },
    }
