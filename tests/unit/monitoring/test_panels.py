# SPDX-License-Identifier: Apache-2.0
"""What a panel says in Grafana's JSON: colours by meaning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tritonctl.frontend.metrics import COUNTERS, GAUGES, HISTOGRAMS
from tritonctl.monitoring import dashboard as dashboard_module
from tritonctl.monitoring.dashboard import dashboard


def colours(title: str) -> dict[str, str]:
    """Colours of a panel by the expression that names of lines are matched with."""
    [panel] = [panel for panel in dashboard()["panels"] if panel["title"] == title]
    overrides: list[dict[str, Any]] = panel["fieldConfig"]["overrides"]
    return {
        override["matcher"]["options"].strip("/"): override["properties"][0]["value"]["fixedColor"]
        for override in overrides
        if override["matcher"]["id"] == "byRegexp"
    }


def colour(title: str, line: str) -> str | None:
    """The colour of a line, None where Grafana chooses."""
    found = [value for words, value in colours(title).items() if re.search(words, line)]
    assert len(found) < 2
    return found[0] if found else None


def test_colours_mean_something() -> None:
    """An answer that ended is not red, an error is; waiting is the same on every panel."""
    assert colour("Requests by outcome", "speller error") == colour(
        "Failures by reason", "x failed"
    )
    assert colour("Requests by outcome", "speller stop") != colour("Requests by outcome", "x error")
    waiting = {colour("Streams", "x waiting"), colour("Time per request", "x queue")}
    assert waiting == {colour("Failures by reason", "speller queue_full")}
    assert colour("Requests by outcome", "nonstop") is None
    for title in ("Requests by outcome", "Failures by reason", "Time per request", "Streams"):
        used = list(colours(title).values())
        assert len(set(used)) == len(used) > 1


def test_other_lines_keep_their_palette() -> None:
    """Names that mean nothing get Grafana's colours in turn."""
    assert colours("Requests by model") == {}
    assert colour("Time to first token", "speller p99") == colour("Inter-token latency", "x p99")


@pytest.mark.parametrize("name", ["dashboard.json", "alerts.yml.j2"])
def test_every_series_of_the_frontend_exists(name: str) -> None:
    """Data files cannot import the names of its metrics."""
    text = Path(dashboard_module.__file__).with_name(name).read_text(encoding="utf-8")
    series = set(re.findall(r"tritonctl_frontend_\w+", text))
    families = {re.sub(r"_(total|bucket|count|sum)$", "", one) for one in series}
    assert families
    assert families <= {*COUNTERS, *GAUGES, *HISTOGRAMS}
