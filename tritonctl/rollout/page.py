# SPDX-License-Identifier: Apache-2.0
"""A rollout as one HTML file that needs nothing else: every decision with its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tritonctl.host.version import __version__
from tritonctl.rollout.journal import Entry, Event
from tritonctl.rollout.standing import Rollout

_TEMPLATE = "rollout.html.j2"
_MOST_ROWS = 400
_WIDTH, _HEIGHT = 900, 160


def rollout_page(rollout: Rollout) -> str:
    """The page. Texts of the journal are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    decisions = [one for one in rollout.entries if one.event is Event.DECISION]
    moved = next((one.at for one in rollout.entries if one.event is Event.STEP), math.inf)
    return environment.get_template(_TEMPLATE).render(
        rollout=rollout,
        about=rollout.state.about,
        settings=rollout.state.about.get("settings", {}),
        events=[_event(one) for one in rollout.entries if one.event is not Event.DECISION],
        decisions=[_decision(one, moved=one.at >= moved) for one in _spread(decisions)],
        count=len(decisions),
        curve=_curve(decisions),
        size=(_WIDTH, _HEIGHT),
        version=__version__,
    )


def _spread(decisions: Sequence[Entry]) -> Sequence[Entry]:
    """All of them, or as many as one reads: each nth, and the last."""
    nth = math.ceil(len(decisions) / _MOST_ROWS) or 1
    return decisions[(len(decisions) - 1) % nth :: nth]


def _event(entry: Entry) -> dict[str, str]:
    about = entry.about
    what = {
        Event.STEP: f"{about.get('share', 0):g} % of the users",
        Event.MOVED: f"confirmed by the gateway: {'yes' if about.get('confirmed') else 'no'}, "
        f"{about.get('seconds', 0)} s",
    }
    said = what.get(entry.event, str(about.get("reason", "")))
    return {"at": _time(entry.at), "event": entry.event.value.replace("_", " "), "what": said}


def _decision(entry: Entry, *, moved: bool) -> dict[str, Any]:
    """moved: whether any user is the candidate's by then."""
    figures = entry.about.get("figures", {})
    return {
        "at": _time(entry.at),
        "standing": entry.about.get("standing", ""),
        "reason": entry.about.get("reason", ""),
        "share": figures.get("share") if moved else 0.0,
        **{name: figures.get(name) for name in ("total", "candidate", "stable")},
        "evidence": figures.get("evidence", {}),
    }


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _curve(decisions: Sequence[Entry]) -> str:
    """Points of the evidence over time, on a scale of logarithms from 0.01 to the limit."""
    points = [
        (one.at, float(one.about["figures"]["total"]), float(one.about["figures"]["limit"]))
        for one in _spread(decisions)
        if {"total", "limit"} <= {*one.about.get("figures", {})}
    ]
    if not points:
        return ""
    first, last = points[0][0], points[-1][0]
    return " ".join(
        f"{_WIDTH * (at - first) / max(1.0, last - first):.1f},"
        f"{_HEIGHT * (1 - _height(total, limit)):.1f}"
        for at, total, limit in points
    )


def _height(total: float, limit: float) -> float:
    """0 at a hundredth of 1 and below, 1 at the limit and above."""
    whole = math.log10(limit) + 2
    return min(1.0, max(0.0, (math.log10(max(total, 1e-9)) + 2) / whole))
