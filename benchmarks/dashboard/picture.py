# SPDX-License-Identifier: Apache-2.0
"""Takes a picture of the dashboard's panels with live data: docs/images/dashboard.png.

Usage: tritonctl up && python benchmarks/dashboard/picture.py [--seconds 180] [--output FILE]
This script makes traffic, Prometheus (apt-get install prometheus) scrapes the project's running
server, and plotly.js, not Grafana, draws each panel's queries where the dashboard has the panel, in
its colours. Rows without any data (GPUs) are left out. A headless Chromium takes the picture.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import json
import math
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from plotly.offline import get_plotlyjs  # noqa: E402

from tests.chromium import browser, chromium  # noqa: E402
from tests.prometheus_server import Prometheus, installed, prometheus  # noqa: E402
from tritonctl import (  # noqa: E402
    AsyncTritonClient,
    Project,
    SamplingParameters,
    TritonctlError,
    load_project,
    observability_files,
)
from tritonctl.server.observe.dashboard import dashboard  # noqa: E402
from tritonctl.server.state import Server, ServerFiles, read_state  # noqa: E402

WIDTH, UNIT_HEIGHT, GAP = 1500, 30, 8
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")
LANGUAGES = ("English", "Thai", "Chinese", "Roman")
MEAN_RATE, SWING, WAVE_SECONDS = 12.0, 8.0, 90.0
INVALID, IMPATIENT = 0.02, 0.05
STYLE = """
body { margin: 0; background: #f4f5f7; font: 13px system-ui, sans-serif; color: #1f2937; }
main { position: relative; margin: 12px; }
section { position: absolute; box-sizing: border-box; background: #fff; overflow: hidden;
  border: 1px solid #d9dce1; border-radius: 3px; }
section b { display: block; padding: 6px 10px; font-weight: 600; }
h2 { position: absolute; margin: 0; font-size: 15px; line-height: 30px; }
p { margin: 0; padding: 0 10px; font-size: 34px; color: #15803d; }
p.none { font-size: 13px; color: #9ca3af; }
"""
DRAW = """
for (const figure of FIGURES) { Plotly.newPlot(figure.id, figure.data, figure.layout,
  { staticPlot: true }); }
document.documentElement.dataset.drawn = FIGURES.length;
"""


def main() -> int:
    """Make traffic, then the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--project", type=Path, default=CHECKOUT / "tritonctl.yaml")
    parser.add_argument("--model", default="speller")
    parser.add_argument("--seconds", type=float, default=180.0, help="of traffic")
    output = CHECKOUT / "docs" / "images" / "dashboard.png"
    parser.add_argument("--output", type=Path, default=output)
    arguments = parser.parse_args()
    project = load_project(arguments.project)
    state = read_state(ServerFiles.of(project))
    if state is None or not installed() or chromium() is None:
        parser.error("needs a running server (tritonctl up), prometheus and chromium")
    with tempfile.TemporaryDirectory() as name:
        page = watch(project, state, arguments, Path(name))
        with browser(Path(name) / "profile") as chrome, chrome.page() as shown:
            shown.size(WIDTH, 900)
            shown.open(page)
            shown.wait_for("document.documentElement.dataset.drawn")
            shown.picture(arguments.output)
    print(f"wrote {arguments.output}")
    return 0


def watch(project: Project, state: Server, arguments: argparse.Namespace, folder: Path) -> Path:
    """The page with all that Prometheus scraped."""
    files = observability_files(project, targets=[urlsplit(state.metrics_url).netloc])
    with prometheus(folder / "prometheus", files) as looking:
        began = time.time()
        asyncio.run(traffic(state.grpc_url, arguments.model, arguments.seconds))
        page = folder / "page.html"
        page.write_text(drawn(looking, began, time.time()), encoding="utf-8")
    return page


async def traffic(url: str, model: str, seconds: float) -> None:
    """Send Poisson arrivals in waves; some requests are invalid, some clients leave."""
    chance = random.Random(7)
    began, tasks = time.monotonic(), set[asyncio.Task[None]]()
    async with AsyncTritonClient(url) as client:
        while (passed := time.monotonic() - began) < seconds:
            rate = MEAN_RATE + SWING * math.sin(2 * math.pi * passed / WAVE_SECONDS)
            await asyncio.sleep(chance.expovariate(rate))
            task = asyncio.create_task(one(client, model, chance.random(), chance))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)


async def one(client: AsyncTritonClient, model: str, kind: float, chance: random.Random) -> None:
    """Send one request."""
    prompt = f"{chance.randrange(10**6)} in {chance.choice(LANGUAGES)}:"
    tokens = -1 if kind < INVALID else chance.choice((16, 64, 200))
    try:
        async for _ in client.stream(model, prompt, SamplingParameters(max_tokens=tokens)):
            if kind > 1 - IMPATIENT:
                return
    except TritonctlError:
        return


def drawn(looking: Prometheus, began: float, ended: float) -> str:
    """The page, with the panels where the dashboard has them."""
    boxes, figures, bottom = [], [], 0
    for panel in _with_data(looking, dashboard()["panels"]):
        at = panel["gridPos"]
        bottom = max(bottom, at["y"] + at["h"])
        place = _place(at)
        if panel["type"] == "row":
            boxes.append(f'<h2 style="{place}">{html.escape(panel["title"])}</h2>')
            continue
        figure = None
        content = _figure(looking, panel) if panel["type"] == "stat" else ""
        if panel["type"] != "stat":
            figure = _lines(looking, panel, began, ended)
        if figure:
            figures.append(figure)
            content = f'<div id="{figure["id"]}"></div>'
        nothing = '<p class="none">no data on this machine</p>'
        title = html.escape(panel["title"])
        boxes.append(f'<section style="{place}"><b>{title}</b>{content or nothing}</section>')
    data = json.dumps(figures).replace("<", "\\u003c")
    height = bottom * UNIT_HEIGHT
    return (
        f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>"
        f'<main style="height:{height}px">{"".join(boxes)}</main>'
        f"<script>{get_plotlyjs()}</script><script>const FIGURES = {data};{DRAW}</script>"
    )


def _with_data(looking: Prometheus, panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without rows that this machine has nothing for: those of GPUs, at the end."""
    kept: list[dict[str, Any]] = []
    row: list[dict[str, Any]] = []
    for panel in [*panels, {"type": "row"}]:
        if panel["type"] == "row":
            asked = [t for shown in row[1:] for t in shown["targets"]]
            if any(looking.query(_expression(target)) for target in asked):
                kept += row
            row = []
        row.append(panel)
    return kept


def _place(at: dict[str, int]) -> str:
    column = (WIDTH - 24) / 24
    sizes = {
        "left": at["x"] * column,
        "top": at["y"] * UNIT_HEIGHT,
        "width": at["w"] * column - GAP,
        "height": at["h"] * UNIT_HEIGHT - GAP,
    }
    return ";".join(f"{name}:{size:.0f}px" for name, size in sizes.items())


def _expression(target: dict[str, Any]) -> str:
    return re.sub(r"\$(model|instance)\b", ".*", target["expr"])


def _figure(looking: Prometheus, panel: dict[str, Any]) -> str:
    [target] = panel["targets"]
    samples = looking.query(_expression(target))
    if not samples:
        return ""
    value = float(samples[0]["value"][1])
    factor, suffix = _scale(panel, value)
    return f"<p>{value * factor:.4g}{suffix}</p>"


def _lines(
    looking: Prometheus, panel: dict[str, Any], began: float, ended: float
) -> dict[str, Any] | None:
    lines = [
        (_legend(target["legendFormat"], series["metric"]), series["values"])
        for target in panel["targets"]
        for series in looking.query_range(_expression(target), began, ended, 1)
    ]
    if not lines:
        return None
    factor, suffix = _scale(panel, max(float(v) for _, values in lines for _, v in values))
    stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    data = [
        {
            "name": name,
            "x": [float(at) - began for at, _ in values],
            "y": [None if value == "NaN" else float(value) * factor for _, value in values],
            "mode": "lines",
            "line": {"color": _colour(panel, name, index), "width": 1.5},
            **({"stackgroup": "one"} if stacked else {}),
        }
        for index, (name, values) in enumerate(lines)
    ]
    return {"id": f"panel{panel['id']}", "data": data, "layout": _layout(panel, suffix, factor)}


def _legend(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), text)


def _colour(panel: dict[str, Any], name: str, index: int) -> str:
    """As the dashboard says, else the next."""
    for override in panel["fieldConfig"]["overrides"]:
        if re.search(override["matcher"]["options"].strip("/"), name):
            return str(override["properties"][0]["value"]["fixedColor"])
    return COLOURS[index % len(COLOURS)]


def _scale(panel: dict[str, Any], most: float) -> tuple[float, str]:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if unit == "percentunit":
        return 100, " %"
    if unit == "bytes":
        return 2**-30, " GiB"
    if unit == "s":
        return (1000, " ms") if most < 1 else (1, " s")
    if unit == "µs":
        return 0.001, " ms"
    return 1, {"reqps": "/s"}.get(unit, "")


def _layout(panel: dict[str, Any], suffix: str, factor: float) -> dict[str, Any]:
    at, top = panel["gridPos"], panel["fieldConfig"]["defaults"].get("max")
    axis: dict[str, Any] = {"ticksuffix": suffix, "rangemode": "tozero", "gridcolor": "#e5e7eb"}
    if top is not None:
        axis["range"] = [0, top * factor * 1.03]
    return {
        "width": at["w"] * (WIDTH - 24) / 24 - GAP - 4,
        "height": at["h"] * UNIT_HEIGHT - GAP - 32,
        "margin": {"l": 62, "r": 12, "t": 4, "b": 22},
        "font": {"size": 11},
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.12, "font": {"size": 10}},
        "xaxis": {"ticksuffix": " s", "gridcolor": "#f3f4f6"},
        "yaxis": axis,
    }


if __name__ == "__main__":
    sys.exit(main())
