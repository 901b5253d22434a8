# SPDX-License-Identifier: Apache-2.0
"""The report of a load test in a real browser: drawn, quiet, self-contained, in light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chromium import Browser, Page, browser, chromium
from tests.loadtest_records import SyntheticRun
from tests.report_page import Figure, Reader, finished
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


# Of each series of a chart: x and y on the canvas of every point that has a value.
POSITIONS = """
(() => {
  const chart = Chart.getChart(document.querySelector("#%s canvas"));
  return chart.data.datasets.map((dataset, index) => {
    const { left, right } = chart.chartArea;
    const { top, bottom } = chart.scales[dataset.yAxisID];
    return chart.getDatasetMeta(index).data
      .filter((point) => !point.skip)
      .map(({ x, y }) => {
        const inside = x >= left - 1 && x <= right + 1 && y >= top - 1 && y <= bottom + 1;
        return [x, y, inside];
      });
  });
})()
"""
# How many pixels of a chart are of one of the colours of its series, nearly.
PAINTED = """
(() => {
  const chart = Chart.getChart(document.querySelector("#%s canvas"));
  const { width, height } = chart.canvas;
  const { data } = chart.canvas.getContext("2d").getImageData(0, 0, width, height);
  const style = getComputedStyle(document.documentElement);
  const named = (name) => parseInt(style.getPropertyValue(name).trim().slice(1), 16);
  const near = (at, colour) =>
    Math.abs(data[at] - (colour >> 16)) < 12 &&
    Math.abs(data[at + 1] - ((colour >> 8) & 255)) < 12 &&
    Math.abs(data[at + 2] - (colour & 255)) < 12;
  return %s.map(named).map((colour) => {
    let count = 0;
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 100 && near(at, colour)) count++;
    return count;
  });
})()
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_with_its_data(report: Path, page: Page, width: int) -> None:
    """A mark for each point, inside its plot and in its colour, on a wide and a narrow screen."""
    page.size(width, 800)
    shown(page, report)
    figures = Reader.of(report.read_text(encoding="utf-8")).figures()
    assert len(figures) == 14
    assert page.evaluate(DRAWN) == str(len(figures))
    assert count(page, "main", "figure canvas") > 2 * len(figures)  # of legends, too
    for name, figure in figures.items():
        positions = page.evaluate(POSITIONS % name)
        expected = [sum(y is not None for y in s["y"]) for s in figure["series"]]
        assert [len(points) for points in positions] == expected
        assert all(inside for points in positions for _, _, inside in points), name
        places = [{(x, y) for x, y, _ in points} for points in positions]
        assert all(len(place) > 1 for place, s in zip(places, expected, strict=True) if s > 1), name
        # Some bars are thinner than a pixel.
        wide = [s for s in figure["series"] if name != "breakdown" or max(s["x"]) > 1]
        names = [s["colour"] for s in wide]
        painted = dict(zip(names, page.evaluate(PAINTED % (name, json.dumps(names))), strict=True))
        assert min(painted.values()) > 10, (name, painted)
    assert page.problems() == []


def test_legends_name_and_hide_series(report: Path, page: Page) -> None:
    """A click takes a series away, with what belongs to it, and brings it back."""
    shown(page, report)
    figures = Reader.of(report.read_text(encoding="utf-8")).figures()
    for name, figure in figures.items():
        legend = page.evaluate(
            f"[...document.getElementById('{name}').parentElement"
            ".querySelectorAll('.legend button')].map((button) => button.textContent)"
        )
        named = [s["name"] for s in figure["series"] if s.get("legend", True)]
        assert legend == (named if figure["legend"] else [])
    button = "document.querySelector('#percentiles').parentElement.querySelector('.legend button')"
    for pressed in ("false", "true"):
        page.evaluate(f"{button}.click()")
        assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == pressed
        hidden = page.evaluate(
            f"{chart('percentiles')}.data.datasets.filter((d) => d.hidden).map((d) => d.label)"
        )
        mine = ["TTFT", "TTFT, too few samples", "TTFT, 95 % interval"]
        assert hidden == (mine if pressed == "false" else [])


def chart(figure: str) -> str:
    """The JavaScript expression of a figure's chart."""
    return f"Chart.getChart(document.querySelector('#{figure} canvas'))"


def count(page: Page, figure: str, selector: str) -> int:
    """How many elements of a chart match."""
    return int(page.evaluate(f"document.querySelectorAll('#{figure} {selector}').length"))


def hover(page: Page, figure: str, series: int, point: int, shift: int = 0) -> list[str]:
    """The lines that are shown with the mouse at a point, or `shift` pixels to its left."""
    page.evaluate(f"document.querySelector('#{figure}').scrollIntoView({{block: 'center'}})")
    x, y = page.evaluate(
        f"(({{x, y}}, r) => [r.left + x, r.top + y])({chart(figure)}.getDatasetMeta({series})"
        f".data[{point}], document.querySelector('#{figure} canvas').getBoundingClientRect())"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - shift, y=y)
    page.wait_for(f"{chart(figure)}.tooltip.opacity > 0")
    lines: list[str] = page.evaluate(f"{chart(figure)}.tooltip.body.flatMap((item) => item.lines)")
    return lines


def test_values_are_shown_under_the_mouse(report: Path, page: Page) -> None:
    """Name, value with its unit, and of which request; hostile text stays text."""
    shown(page, report)
    figures = Reader.of(report.read_text(encoding="utf-8")).figures()
    failed = next(n for n, s in enumerate(figures["latency"]["series"]) if s["name"] == "error")
    lines = hover(page, "latency", failed, 0)
    x, y = (figures["latency"]["series"][failed][axis][0] for axis in ("x", "y"))
    assert lines[0] == f"error: {y:,.4g} ms at {x:.4g} s"
    assert any(line.startswith("UNAVAILABLE: ") for line in lines)
    assert HOSTILE.replace(" ", "") in "".join(lines).replace(" ", "")
    lines = hover(page, "throughput", 0, 5)
    assert "planned: {:g} in second 5".format(figures["throughput"]["series"][0]["y"][5]) in lines
    [line] = hover(page, "breakdown", 0, 1, shift=4)
    assert line.startswith("queue: speller_engine: ")
    assert line.endswith(" ms")


def test_nothing_is_asked_for_and_nothing_goes_wrong(report: Path, page: Page) -> None:
    """One request, for the file itself; a silent console, also when rescaled and printed."""
    shown(page, report)
    page.evaluate("document.querySelectorAll('.scale button').forEach(b => b.click())")
    page.evaluate("document.querySelectorAll('.legend button').forEach(b => b.click())")
    page.media(media="print")
    page.wait_for("getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'")
    assert page.problems() == []
    assert page.requests() == [report.resolve().as_uri()]


def test_linear_and_logarithmic(report: Path, page: Page) -> None:
    """The buttons change the scale; a limit and all points stay inside the plot on both."""
    shown(page, report)
    largest = page.evaluate(
        f"Math.max(...{chart('latency')}.data.datasets.flatMap(d => d.data.map(p => p.y)))"
    )
    for scale, kind in (("log", "logarithmic"), ("linear", "linear")):
        page.evaluate(
            f"document.querySelector('[data-figure=latency] [data-scale={scale}]').click()"
        )
        axis = f"{chart('latency')}.scales.y0"
        assert page.evaluate(f"{axis}.type") == kind
        assert largest <= page.evaluate(f"{axis}.max") < (2 if scale == "linear" else 10) * largest
        top, limit, bottom = page.evaluate(
            f"(a => [a.top, a.getPixelForValue(200), a.bottom])({axis})"
        )
        assert top <= limit <= bottom


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
    colour_used = f"{chart('latency')}.data.datasets[0].backgroundColor"
    before = page.evaluate(colour_used)
    zoomed = drag_over(page, "latency")
    page.media(prefers_color_scheme="dark")
    page.wait_for(f"{colour_used} !== '{before}'")
    assert page.evaluate(RANGE) == zoomed


def test_a_drag_zooms_and_a_double_click_ends_it(report: Path, page: Page) -> None:
    """Along the horizontal axis, with the mouse."""
    shown(page, report)
    whole = page.evaluate(RANGE)
    drag_over(page, "latency")
    page.evaluate("document.querySelector('#latency canvas').dispatchEvent(new Event('dblclick'))")
    assert page.evaluate(RANGE) == whole
    assert page.problems() == []


RANGE = "(x => [x.min, x.max])(Chart.getChart(document.querySelector('#latency canvas')).scales.x)"


def drag_over(page: Page, figure: str) -> list[float]:
    """Zoom as a person does, with the mouse; the range that is then shown."""
    page.evaluate(f"document.getElementById('{figure}').scrollIntoView()")
    area = f"document.querySelector('#{figure} canvas').getBoundingClientRect()"
    left, top, width = page.evaluate(
        f"((r, a) => [r.left + a.left, r.top + a.top, a.width])({area}, {chart(figure)}.chartArea)"
    )
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
        "[...document.querySelectorAll('figure')].filter(f => [...f.querySelectorAll('canvas')]"
        ".some(s => s.getBoundingClientRect().right > f.getBoundingClientRect().right + 1)).length"
    )
    assert too_wide == 0


def test_many_requests_are_drawn(page: Page, tmp_path: Path) -> None:
    """Thousands of points, each of them, and the nearest one is still named at once."""
    folder = finished(replace(RUN, rate=400, servers=60, seconds=10), tmp_path / "run")
    path = write_report(folder)
    figure: Figure = Reader.of(path.read_text(encoding="utf-8")).figures()["latency"]
    assert len(figure["series"][0]["x"]) > 3000
    shown(page, path)
    positions = page.evaluate(POSITIONS % "latency")
    assert [len(points) for points in positions] == [len(s["x"]) for s in figure["series"]]
    assert hover(page, "latency", 0, 1000)[0].split(": ")[0] in [
        s["name"] for s in figure["series"]
    ]


def test_two_runs_on_one_page(page: Page, tmp_path: Path) -> None:
    """The comparison is drawn by the same script: a mark for each change, both curves."""
    before = finished(RUN, tmp_path / "before")
    after = finished(replace(RUN, seed=2, token_ms=4.0), tmp_path / "after")
    path = write_comparison(before, after)
    shown(page, path)
    rows = Reader.of(path.read_text(encoding="utf-8")).table("Each figure")[1:]
    marks = page.evaluate(POSITIONS % "changes-chart")
    assert sum(map(len, marks)) == len(rows)
    assert len({y for points in marks for _, y, _ in points}) == len(rows), "a line for each"
    for metric in ("ttft", "e2e", "itl"):
        curves = page.evaluate(POSITIONS % f"{metric}-curves")
        assert len(curves) == 4, "a curve and its intervals for each run"
        assert all(inside for points in curves for _, _, inside in points)
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
