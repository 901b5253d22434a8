# SPDX-License-Identifier: Apache-2.0
"""The report of a load test in a real browser: drawn, quiet, self-contained, in light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import Browser, Page, browser, chromium
from tests.loadtest_records import SyntheticRun
from tests.report_page import Reader, finished
from tritonctl.loadtest.report.comparison import write_comparison
from tritonctl.loadtest.report.page import write_report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium() is None, reason="NO CHROMIUM: apt-get install chromium; nobody saw the page"
    ),
]

RUN = SyntheticRun(
    seconds=12,
    rate=50,
    workers=2,
    coalesce=3,
    error_share=0.02,
    cancel_share=0.05,
    warm_up=(3.0, 4.0),
    slo={"ttft_p99_ms": 200.0, "itl_p99_ms": 15.0, "error_rate": 0.001},
)
HOSTILE = "<img src=http://example.invalid/x onerror=alert(1)><script>alert(2)</script>"
DRAWN = "document.documentElement.dataset.drawn"
# Pixels of a colour of the style sheet in a picture; the page's own policy forbids fetch().
PIXELS = """
(async () => {
  const bytes = Uint8Array.from(atob("%s"), (c) => c.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const counts = {};
  for (let i = 0; i < data.length; i += 4) {
    const colour = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
    counts[colour] = (counts[colour] || 0) + 1;
  }
  return counts;
})()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every chart in it, and with text that would love to be markup."""
    folder = replace(RUN, classes={"short": 3.0, HOSTILE: 1.0}).write(
        tmp_path_factory.mktemp("run") / "run"
    )
    lines = (folder / "records.jsonl").read_text(encoding="utf-8")
    text = lines.replace("Exceeds maximum queue size", json.dumps(HOSTILE)[1:-1])
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    return write_report(folder)


@pytest.fixture(scope="module")
def chromium_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    with browser(tmp_path_factory.mktemp("chromium") / "profile") as running:
        yield running


@pytest.fixture
def page(chromium_process: Browser) -> Iterator[Page]:
    """A tab that knows nothing of the tests before."""
    with chromium_process.page() as opened:
        opened.size(1280, 900)
        yield opened


def shown(page: Page, path: Path, **media: str) -> Page:
    """The page with all its charts drawn."""
    if media:
        page.media(**media)
    page.open(path)
    page.wait_for(DRAWN)
    return page


def colours(page: Page, path: Path) -> dict[int, int]:
    """How many pixels of a PNG have which colour."""
    import base64

    content = base64.b64encode(path.read_bytes()).decode()
    return {int(k): v for k, v in page.evaluate(PIXELS % content).items()}


def colour(page: Page, name: str) -> int:
    """A colour of the style sheet as it is now."""
    style = "getComputedStyle(document.documentElement)"
    return int(str(page.evaluate(f"{style}.getPropertyValue('{name}').trim()")).lstrip("#"), 16)


def test_every_chart_is_drawn_with_its_data(report: Path, page: Page) -> None:
    """What plotly.js holds is what the file says, and there is a mark for each point."""
    shown(page, report)
    figures = Reader.of(report.read_text(encoding="utf-8")).figures()
    assert len(figures) == 14
    assert page.evaluate(DRAWN) == str(len(figures))
    for name, figure in figures.items():
        held = page.evaluate(f"document.getElementById('{name}').data.map(t => [t.name, t.x, t.y])")
        assert held == [[t["name"], t["x"], t["y"]] for t in figure["data"]]
        assert count(page, name, "svg.main-svg") >= 1
    points = sum(len(trace["x"]) for trace in figures["latency"]["data"])
    assert count(page, "latency", ".scatterlayer .point") == points
    # queue of three steps, three more parts of two, prefill and decode of the engine
    assert count(page, "breakdown", ".barlayer .point") == 3 + 3 * 2 + 2
    for side in ("input", "output"):
        [bars] = figures[f"{side}-length"]["data"]
        assert count(page, f"{side}-length", ".barlayer .point") == len(bars["x"])
    for name in ("concurrency", "prompt-length"):
        marks = sum(len(trace["x"]) for trace in figures[name]["data"])
        assert count(page, name, ".scatterlayer .point") == marks
    curves = ("percentiles-over-time", "percentiles", "gaps", "throughput", "queue", "machine")
    for name in (*curves, "generator", "engine"):
        lines = [t for t in figures[name]["data"] if "lines" in t["mode"]]
        drawn = page.evaluate(
            f"[...document.querySelectorAll('#{name} .scatterlayer path.js-line')]"
            ".map(path => path.getTotalLength())"
        )
        assert len(drawn) == len(lines)
        assert min(drawn) > 10, f"{name}: a line without length"


def count(page: Page, figure: str, selector: str) -> int:
    """How many elements of a chart match."""
    return int(page.evaluate(f"document.querySelectorAll('#{figure} {selector}').length"))


def test_nothing_is_asked_for_and_nothing_goes_wrong(report: Path, page: Page) -> None:
    """One request, for the file itself; a silent console, also when hovered over and rescaled."""
    shown(page, report)
    page.evaluate("document.querySelectorAll('.scale button').forEach(b => b.click())")
    page.evaluate("Plotly.Fx.hover('latency', [{curveNumber: 0, pointNumber: 3}])")
    assert count(page, "latency", ".hoverlayer .hovertext") == 1
    page.media(media="print")
    page.wait_for("getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'")
    assert page.problems() == []
    assert page.requests() == [report.resolve().as_uri()]
    assert page.evaluate("document.querySelectorAll('[data-title*=loud]').length") == 0


def test_linear_and_logarithmic(report: Path, page: Page) -> None:
    """The buttons change the scale; the name of a limit stays at its line on both."""
    shown(page, report)
    for scale in ("log", "linear"):
        page.evaluate(
            f"document.querySelector('[data-figure=latency] [data-scale={scale}]').click()"
        )
        page.wait_for(f"document.getElementById('latency').layout.yaxis.type === '{scale}'")
        label, limit = page.evaluate(
            "['.annotation-text', '.shapelayer path[style*=dasharray]'].map(s =>"
            " document.querySelector('#latency ' + s).getBoundingClientRect().bottom)"
        )
        assert abs(label - limit) < 15
        top = page.evaluate("document.getElementById('latency')._fullLayout.yaxis.range[1]")
        largest = page.evaluate(
            "Math.max(...document.getElementById('latency').data.flatMap(t => t.y))"
        )
        assert top < (2 * largest if scale == "linear" else math.log10(10 * largest))


def test_scripts_that_are_not_ours_do_not_run(report: Path, page: Page) -> None:
    """Even one that got past all escaping is stopped by the page's policy."""
    shown(page, report)
    assert page.evaluate("document.images.length") == 0
    assert HOSTILE in str(page.evaluate("document.body.innerText"))
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<i id=smuggled></i>');"
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.getElementById('smuggled').append(s);"
    )
    assert page.evaluate("window.ran === undefined")
    page.wait_for("document.readyState === 'complete'")
    assert any("Content Security Policy" in problem for problem in page.problems())


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.exhaustive)])
def test_pictures_are_not_blank(report: Path, page: Page, tmp_path: Path, scheme: str) -> None:
    """Cards, text, and points of both metrics in the colours of that scheme."""
    shown(page, report, prefers_color_scheme=scheme)
    height = page.evaluate("document.documentElement.scrollHeight")
    found = colours(page, page.picture(tmp_path / "page.png"))
    wanted = {name: colour(page, name) for name in ("--card", "--ink", "--e2e", "--ttft")}
    assert (wanted["--card"] > 0x808080) == (scheme == "light")
    assert found[wanted["--card"]] > 1280 * height / 4
    for name, least in (("--ink", 500), ("--e2e", 500), ("--ttft", 300)):
        assert found.get(wanted[name], 0) > least, name
    assert len(found) > 200


@pytest.mark.exhaustive
def test_the_scheme_can_change_while_it_is_open(report: Path, page: Page) -> None:
    """Charts are drawn anew in the colours of the other scheme, their zoom kept."""
    shown(page, report, prefers_color_scheme="light")
    before = page.evaluate("document.getElementById('latency').data[0].marker.color")
    zoomed = drag_over(page, "latency")
    page.media(prefers_color_scheme="dark")
    page.wait_for(f"document.getElementById('latency').data[0].marker.color !== '{before}'")
    assert page.evaluate(RANGE) == zoomed


RANGE = "document.getElementById('latency').layout.xaxis.range"


def drag_over(page: Page, figure: str) -> list[float]:
    """Zoom as a person does, with the mouse; the range that is then shown."""
    page.evaluate(f"document.getElementById('{figure}').scrollIntoView()")
    area = f"document.querySelector('#{figure} .nsewdrag').getBoundingClientRect()"
    left, top, width = page.evaluate(f"(r => [r.left, r.top, r.width])({area})")
    before = page.evaluate(RANGE)
    places = [(left + width * share, top + 60) for share in (0.3, 0.4, 0.6)]
    for kind, (x, y) in zip(("mousePressed", "mouseMoved", "mouseMoved"), places, strict=True):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    x, y = places[-1]
    page.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left")
    page.wait_for(f"JSON.stringify({RANGE}) !== '{json.dumps(before)}'.replaceAll(' ', '')")
    found: list[float] = page.evaluate(RANGE)
    assert before[0] < found[0] < found[1] < before[1]
    return found


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.exhaustive), 390])
def test_it_fits(report: Path, page: Page, width: int) -> None:
    """No page wider than the window, no chart wider than its card; wide tables scroll alone."""
    page.size(width, 800)
    shown(page, report)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    too_wide = page.evaluate(
        "[...document.querySelectorAll('figure')].filter(f => [...f.querySelectorAll('svg')]"
        ".some(s => s.getBoundingClientRect().right > f.getBoundingClientRect().right + 1)).length"
    )
    assert too_wide == 0


def test_many_requests_are_drawn_with_webgl_or_without(page: Page, tmp_path: Path) -> None:
    """Above a few thousand points a canvas takes over; without WebGL the same points are SVG."""
    folder = finished(replace(RUN, rate=400, servers=60, seconds=10), tmp_path / "run")
    path = write_report(folder)
    [trace, *_] = Reader.of(path.read_text(encoding="utf-8")).figures()["latency"]["data"]
    assert trace["type"] == "scattergl"
    shown(page, path)
    assert drawn_points(page) == ("scattergl", len(trace["x"]))
    assert count(page, "latency", "canvas") >= 1
    page.call(
        "Page.addScriptToEvaluateOnNewDocument",
        source="HTMLCanvasElement.prototype.getContext = () => null",
    )
    page.open(path)
    page.wait_for(f"{DRAWN} && document.getElementById('latency').data[0].type === 'scatter'")
    assert drawn_points(page) == ("scatter", len(trace["x"]))
    points = "[...document.querySelectorAll('#latency .scatterlayer .trace')][0]"
    assert page.evaluate(f"{points}.querySelectorAll('.point').length") == len(trace["x"])


def drawn_points(page: Page) -> tuple[Any, Any]:
    """How the first trace is drawn, and how many points it has."""
    kind, points = page.evaluate(
        "(t => [t.type, t.x.length])(document.getElementById('latency').data[0])"
    )
    return kind, points


def test_two_runs_on_one_page(page: Page, tmp_path: Path) -> None:
    """The comparison is drawn by the same script: a mark for each change, both curves."""
    before = finished(RUN, tmp_path / "before")
    after = finished(replace(RUN, seed=2, token_ms=4.0), tmp_path / "after")
    path = write_comparison(before, after)
    shown(page, path)
    rows = Reader.of(path.read_text(encoding="utf-8")).table("Each figure")[1:]
    assert count(page, "changes-chart", ".scatterlayer .point") == len(rows)
    for metric in ("ttft", "e2e", "itl"):
        assert count(page, f"{metric}-curves", ".scatterlayer path.js-line") == 2
    assert page.problems() == []
    assert page.requests() == [path.resolve().as_uri()]


@pytest.mark.exhaustive
def test_it_prints(report: Path, page: Page, tmp_path: Path) -> None:
    """On paper: light even where the screen is dark, charts within the page."""
    shown(page, report, prefers_color_scheme="dark")
    printed = page.call("Page.printToPDF", preferCSSPageSize=True)
    assert len(printed["data"]) > 50_000
    page.media(media="print", prefers_color_scheme="dark")
    page.wait_for("getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'")
    assert colour(page, "--card") == 0xFFFFFF
