# SPDX-License-Identifier: Apache-2.0
"""Panels of a Grafana dashboard: what each shows, and its form in Grafana's JSON.

Plain dicts: tests check them against Grafana's own TypeScript schema, so no SDK is needed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Data = dict[str, Any]

DATASOURCE: Data = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_ROW_HEIGHT = 1

_TIME_SERIES_OPTIONS: Data = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_STAT_OPTIONS: Data = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "orientation": "auto",
    "colorMode": "value",
    "graphMode": "none",
    "justifyMode": "auto",
    "textMode": "auto",
    "percentChangeColorMode": "standard",
    "showPercentChange": False,
    "wideLayout": True,
}


@dataclass(frozen=True)
class Query:
    """An expression and the name of its lines."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One chart or figure. width: of 24 columns. top: the end of the axis, where it is fixed.

    colours: of lines whose names end in a word that means something; others get Grafana's in turn.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    top: float | None = None
    steps: tuple[tuple[str, float], ...] = ()  # each colour, and the value from which it is used
    colours: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


def grafana_panels(rows: Sequence[Row]) -> list[Data]:
    """Rows and panels with their positions."""
    panels: list[Data] = []
    top = 0
    for row in rows:
        panels.append(_heading(row, top))
        placed = list(_placed(row.panels, top + _ROW_HEIGHT))
        panels += [_panel(panel, position) for panel, position in placed]
        top = max(position["y"] + position["h"] for _, position in placed)
    return [panel | {"id": number} for number, panel in enumerate(panels, 1)]


def _placed(panels: Sequence[Panel], top: int) -> Iterator[tuple[Panel, Data]]:
    """Positions from left to right; a new line starts below the highest panel of the last."""
    left = height = 0
    for panel in panels:
        if left + panel.width > _COLUMNS:
            left, top, height = 0, top + height, 0
        yield panel, {"x": left, "y": top, "w": panel.width, "h": panel.height}
        left, height = left + panel.width, max(height, panel.height)


def _heading(row: Row, top: int) -> Data:
    position = {"x": 0, "y": top, "w": _COLUMNS, "h": _ROW_HEIGHT}
    return {
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": position,
        "panels": [],
    }


def _panel(panel: Panel, position: Data) -> Data:
    is_stat = panel.kind == "stat"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": position,
        "targets": [_target(n, query, instant=is_stat) for n, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _STAT_OPTIONS if is_stat else _TIME_SERIES_OPTIONS,
    }


def _target(number: int, query: Query, *, instant: bool) -> Data:
    return {
        "refId": chr(ord("A") + number),
        "datasource": DATASOURCE,
        "expr": query.expression,
        "legendFormat": query.legend,
        "instant": instant,
        "range": not instant,
    }


def _defaults(panel: Panel) -> Data:
    steps = [("green", None), *panel.steps]
    defaults: Data = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": colour, "value": value} for colour, value in steps],
        },
    }
    if panel.top is not None:
        defaults["max"] = panel.top
    if panel.kind == "timeseries":
        defaults["custom"] = _line(stacked=panel.stacked)
    return defaults


def _overrides(panel: Panel) -> list[Data]:
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/(^| ){word}$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for word, colour in panel.colours.items()
    ]


def _line(*, stacked: bool) -> Data:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else 10,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
