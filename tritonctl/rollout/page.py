# SPDX-License-Identifier: Apache-2.0
"""A rollout as one self-contained HTML file: every decision with its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tritonctl.host.version import __version__
from tritonctl.rollout.journal import JournalEntry, JournalEvent
from tritonctl.rollout.status import RolloutStatus

_TEMPLATE = "rollout.html.j2"
_MAX_ROWS = 400
_WIDTH, _HEIGHT = 900, 160


def rollout_page(rollout: RolloutStatus) -> str:
    """Render the page; texts from the journal are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    decisions = [entry for entry in rollout.entries if entry.event is JournalEvent.DECISION]
    first_move_at = next(
        (entry.at for entry in rollout.entries if entry.event is JournalEvent.STEP), math.inf
    )
    return environment.get_template(_TEMPLATE).render(
        rollout=rollout,
        about=rollout.state.details,
        settings=rollout.state.details.get("settings", {}),
        events=[
            _event(entry) for entry in rollout.entries if entry.event is not JournalEvent.DECISION
        ],
        decisions=[
            _decision(entry, moved=entry.at >= first_move_at) for entry in _sampled(decisions)
        ],
        count=len(decisions),
        curve=_curve(decisions),
        size=(_WIDTH, _HEIGHT),
        version=__version__,
    )


def _sampled(decisions: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
    """Every nth decision and the last, if there are too many to read."""
    nth = math.ceil(len(decisions) / _MAX_ROWS) or 1
    return decisions[(len(decisions) - 1) % nth :: nth]


def _event(entry: JournalEntry) -> dict[str, str]:
    about = entry.details
    descriptions = {
        JournalEvent.STEP: f"{about.get('share', 0):g} % of the users",
        JournalEvent.MOVED: "confirmed by the gateway: "
        f"{'yes' if about.get('confirmed') else 'no'}, {about.get('seconds', 0)} s",
    }
    description = descriptions.get(entry.event, str(about.get("reason", "")))
    return {
        "at": _time(entry.at),
        "event": entry.event.value.replace("_", " "),
        "what": description,
    }


def _decision(entry: JournalEntry, *, moved: bool) -> dict[str, Any]:
    """A row of the page. moved: whether the candidate has users by then."""
    figures = entry.details.get("figures", {})
    return {
        "at": _time(entry.at),
        "standing": entry.details.get("standing", ""),
        "reason": entry.details.get("reason", ""),
        "share": figures.get("share") if moved else 0.0,
        **{name: figures.get(name) for name in ("total", "candidate", "stable")},
        "evidence": figures.get("evidence", {}),
    }


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _curve(decisions: Sequence[JournalEntry]) -> str:
    """Points of the evidence over time, on a logarithmic scale from 0.01 to the limit."""
    points = [
        (
            decision.at,
            float(decision.details["figures"]["total"]),
            float(decision.details["figures"]["limit"]),
        )
        for decision in _sampled(decisions)
        if {"total", "limit"} <= {*decision.details.get("figures", {})}
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
    """The height from 0 (0.01 and below) to 1 (the limit and above)."""
    scale = math.log10(limit) + 2
    return min(1.0, max(0.0, (math.log10(max(total, 1e-9)) + 2) / scale))
