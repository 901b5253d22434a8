# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard of `dashboard.json`: overview, models, text, releases, GPUs, frontend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("dashboard.json")
_FRONTEND_ROW = "Frontend"  # the last one, so that no position depends on it


def dashboard(*, frontend: bool = False) -> dict[str, Any]:
    """The dashboard as Grafana reads it. frontend: with the row of the OpenAI API."""
    board: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    if not frontend:
        titles = [panel["title"] for panel in board["panels"]]
        board["panels"] = board["panels"][: titles.index(_FRONTEND_ROW)]
    return board
