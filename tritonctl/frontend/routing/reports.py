# SPDX-License-Identifier: Apache-2.0
"""What a replica says of itself in its metrics: streams that run and wait, its KV cache.

Only the few lines that are needed are read: a page of Triton's has hundreds, and this one is read
several times a second.
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
class Report:
    """Of all models at one replica. at: when it was read, seconds of the frontend's clock.

    active, waiting: requests. kv_used: share of the fullest KV cache, 0 to 1; 0 without any.
    """

    active: float
    waiting: float
    kv_used: float
    at: float

    def is_fresh(self, now: float, seconds: float) -> bool:
        """Whether it is young enough to be believed."""
        return 0 <= now - self.at <= seconds


def read_report(page: str, at: float) -> Report:
    """The report in a page of metrics."""
    figures: dict[str, dict[str, float]] = {name: {} for name in _FIGURES}
    for name, text, value in _LINE.findall(page):
        labels = dict(_LABEL.findall(text))
        for figure, sources in _FIGURES.items():
            if any(
                name == series and wanted.items() <= labels.items() for series, wanted in sources
            ):
                by_model, model = figures[figure], labels.get("model", "")
                by_model[model] = by_model.get(model, 0.0) + float(value)  # over its instances
    shares = [
        used / (used + free)
        for model, used in figures["kv_used"].items()
        if used + (free := figures["kv_free"].get(model, 0.0))
    ]
    active, waiting = (sum(figures[name].values()) for name in ("active", "waiting"))
    return Report(active, waiting, max(shares, default=0.0), at)
