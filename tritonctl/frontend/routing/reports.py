# SPDX-License-Identifier: Apache-2.0
"""Read a replica's report from its metrics: running and waiting streams, KV cache usage.

Only the required lines are parsed: a page of Triton has hundreds, and it is read several times a
second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tritonctl.protocol.engine_gauges import ACTIVE, KV_FREE, KV_USED, WAITING, Sources

_FIGURES: dict[str, Sources] = {
    "active": ACTIVE,
    "waiting": WAITING,
    "kv_used": KV_USED,
    "kv_free": KV_FREE,
}
_NAMES = sorted({name for sources in _FIGURES.values() for name, _ in sources})
_LINE = re.compile(rf"^({'|'.join(_NAMES)})\{{([^}}]*)\}} ([0-9.eE+-]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class ReplicaReport:
    """Load of all models at one replica."""

    active: float  # requests
    waiting: float  # requests
    kv_used: float  # usage of the fullest KV cache, 0 to 1; 0 without any
    at: float  # when the page was requested, seconds of the frontend's clock

    def is_fresh(self, now: float, seconds: float) -> bool:
        """Whether the report is at most this old."""
        return 0 <= now - self.at <= seconds


def read_report(page: str, at: float) -> ReplicaReport:
    """Parse the report from a page of metrics."""
    figures: dict[str, dict[str, float]] = {name: {} for name in _FIGURES}
    for name, text, value in _LINE.findall(page):
        labels = dict(_LABEL.findall(text))
        for figure, sources in _FIGURES.items():
            if any(
                name == series and required_labels.items() <= labels.items()
                for series, required_labels in sources
            ):
                by_model, model = figures[figure], labels.get("model", "")
                by_model[model] = by_model.get(model, 0.0) + float(value)  # sum of its instances
    shares = [
        used / (used + free)
        for model, used in figures["kv_used"].items()
        if used + (free := figures["kv_free"].get(model, 0.0))
    ]
    active, waiting = (sum(figures[name].values()) for name in ("active", "waiting"))
    return ReplicaReport(active, waiting, max(shares, default=0.0), at)
