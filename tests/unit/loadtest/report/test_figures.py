# SPDX-License-Identifier: Apache-2.0
"""Every figure's data, re-read from the page, is what the run's files and summary say."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest_records import STEPS, SyntheticRun
from tests.report_page import Figure, Reader, finished, series_of
from tritonctl.loadtest.analysis.records import LoadRecord, read_lines, read_records
from tritonctl.loadtest.analysis.summary import Summary, read_summary
from tritonctl.loadtest.report import page as report_page
from tritonctl.loadtest.report import requests
from tritonctl.loadtest.report.latency import POINTS, curve_points, thin_requests
from tritonctl.loadtest.report.run import TimedRequest

STYLE = Path(report_page.__file__).with_name("page.css")
RUN = SyntheticRun(
    seconds=20,
    rate=50,
    workers=2,
    coalesce=3,
    error_share=0.01,
    cancel_share=0.03,
    warm_up=(5.0, 4.0),
    timeout_seconds=1.0,
    slo={"ttft_p99_ms": 200.0, "itl_p99_ms": 15.0, "e2e_p99_ms": 400.0, "error_rate": 0.001},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything in it: failures, cancellations, a warm-up, two workers."""
    made = finished(RUN, tmp_path_factory.mktemp("run"))
    report_page.write_report(made)
    return made


@pytest.fixture(scope="module")
def page(folder: Path) -> Reader:
    """Its report."""
    return Reader.of((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def figures(page: Reader) -> dict[str, Figure]:
    """The charts."""
    return page.figures()


@pytest.fixture(scope="module")
def records(folder: Path) -> list[LoadRecord]:
    """What the charts are of."""
    return read_records(folder)


@pytest.fixture(scope="module")
def summary(folder: Path) -> Summary:
    """What was found out."""
    return read_summary(folder)


def close(values: Sequence[float | None]) -> Any:
    """Equal but for the page's six digits."""
    return pytest.approx(values, rel=1e-5, abs=1e-9)


def test_all_charts_are_there(figures: dict[str, Figure]) -> None:
    """None is left out of a run that has everything."""
    assert list(figures) == [
        *("latency", "percentiles-over-time", "percentiles", "gaps"),
        *("concurrency", "prompt-length", "input-length", "output-length"),
        *("throughput", "breakdown", "queue", "machine", "engine", "generator"),
    ]


def test_every_request_is_a_point(figures: dict[str, Figure], records: list[LoadRecord]) -> None:
    """At its planned time: the good ones twice, the others by their outcome."""
    assert {record.outcome for record in records} >= {"ok", "error", "cancelled", "timeout"}
    good = [record for record in records if record.outcome == "ok"]
    ends = series_of(figures["latency"], "end to end")
    firsts = series_of(figures["latency"], "TTFT")
    assert ends["x"] == firsts["x"] == close([r.planned / 1e6 for r in good])
    assert ends["y"] == close([(r.end - r.planned) / 1e3 for r in good])
    assert firsts["y"] == close([(r.at[0] - r.planned) / 1e3 for r in good])
    for outcome, name in (
        ("error", "error"),
        ("timeout", "timeout"),
        ("cancelled", "cancelled on purpose"),
    ):
        mine = [record for record in records if record.outcome == outcome]
        drawn = series_of(figures["latency"], name)
        assert drawn["x"] == close([r.planned / 1e6 for r in mine])
        assert drawn["y"] == close([(r.end - r.planned) / 1e3 for r in mine])
    [error, *_] = series_of(figures["latency"], "error")["texts"]
    assert "UNAVAILABLE: Exceeds maximum queue size" in error


def test_window_and_limits_are_marked(figures: dict[str, Figure], summary: Summary) -> None:
    """What does not count is shaded, each latency that was promised is a line."""
    assert summary.window.from_s > 0
    [warm_up] = [s for s in figures["latency"]["spans"] if s["text"] == "warm-up"]
    assert (warm_up["start"], warm_up["end"]) == (0, summary.window.from_s)
    limits = figures["latency"]["limits"]
    assert [(limit["value"], limit["text"]) for limit in limits] == [
        (200.0, "SLO: P99 of TTFT 200 ms"),
        (400.0, "SLO: P99 of end to end 400 ms"),
    ]
    assert [limit["value"] for limit in figures["gaps"]["limits"]] == [15.0]
    assert not any(limit["beyond_data"] for limit in limits)


@pytest.mark.parametrize(
    ("figure", "name", "metric"),
    [
        ("percentiles", "TTFT", "ttft"),
        ("percentiles", "end to end", "e2e"),
        ("gaps", "ITL", "itl"),
        ("gaps", "TPOT", "tpot"),
    ],
)
def test_percentiles_are_the_summary_s(
    figures: dict[str, Figure], summary: Summary, figure: str, name: str, metric: str
) -> None:
    """The marks are its percentiles and bounds, and the curve goes through them."""
    known = summary.metrics[metric].percentiles
    assert len(known) >= 4
    marks = series_of(figures[figure], f"{name}, 95 % interval")
    assert marks["x"] == close([1 / (1 - p.q) for p in known])
    assert marks["y"] == close([p.ms for p in known])
    assert marks["high"] == close([p.high_ms for p in known])
    assert marks["low"] == close([p.low_ms for p in known])
    curve = series_of(figures[figure], name)
    assert curve["x"] == sorted(curve["x"])
    assert curve["y"] == sorted(curve["y"])
    for p in known:
        nines = 1 / (1 - p.q)
        points = list(zip(curve["x"], curve["y"], strict=True))
        before = [y for x, y in points if x < nines * 0.95]
        after = [y for x, y in points if x > nines * 1.05]
        # A histogram has three digits.
        assert max(before) * 0.997 <= p.ms
        assert not after or p.ms <= min(after) * 1.003


def test_curves_are_dotted_where_the_sample_ends(
    figures: dict[str, Figure], summary: Summary
) -> None:
    """Solid up to the last percentile that is reported, dotted to the largest value."""
    edge = 1 / (1 - max(p.q for p in summary.metrics["e2e"].percentiles))
    curve = series_of(figures["percentiles"], "end to end")
    beyond = series_of(figures["percentiles"], "end to end, too few samples")
    assert max(curve["x"]) <= edge * 1.0001
    assert beyond["dash"] == "dot"
    assert beyond["y"][-1] == pytest.approx(summary.metrics["e2e"].max_ms, rel=2e-3)


def test_a_curve_keeps_its_ends_and_its_shape(summary: Summary) -> None:
    """Points that no eye can tell apart go; the first and the last stay."""
    points = curve_points(summary.metrics["itl"].histogram)
    assert points[0][0] == 0.0
    assert points[0][1] == pytest.approx(summary.metrics["itl"].min_ms, rel=2e-3)
    assert points[-1][1] == pytest.approx(summary.metrics["itl"].max_ms, rel=2e-3)
    assert len(points) < 2000


def test_throughput_counts_the_records(
    figures: dict[str, Figure], records: list[LoadRecord]
) -> None:
    """Each second's requests and tokens; the last value closes the last step."""
    figure = figures["throughput"]
    for name, times in (
        ("planned", [r.planned for r in records]),
        ("sent", [r.sent for r in records]),
        ("completed", [r.end for r in records if r.outcome == "ok"]),
        ("failed", [r.end for r in records if r.outcome in ("error", "timeout")]),
    ):
        counts = Counter(time // 1_000_000 for time in times)
        drawn = series_of(figure, name)["y"][:-1]
        assert drawn == [counts[second] for second in range(len(drawn))]
        assert sum(drawn) == len(times)
    tokens = series_of(figure, "tokens", row=1)["y"][:-1]
    assert sum(tokens) == sum(record.output_tokens or 0 for record in records)


def test_breakdown_is_the_summary_s(figures: dict[str, Figure], summary: Summary) -> None:
    """Composing models in the order of the ensemble, each part of their time.

    The engine's parts are its own: Triton sees a decoupled model take a request, not answer it.
    """
    assert summary.server is not None
    models = summary.server.models
    own = models[STEPS[1]].engine
    assert own is not None
    for part in ("queue", "input", "infer", "output"):
        bars = series_of(figures["breakdown"], part)
        steps = [n for n in STEPS if part == "queue" or n != STEPS[1]]
        assert bars["y"] == steps
        expected = [getattr(models[name], f"{part}_ms") for name in steps]
        if part == "queue":
            assert own.queue_ms == pytest.approx(1, rel=1e-6)
            expected[1] += own.queue_ms
        assert bars["x"] == close(expected)
    for part in ("prefill", "decode"):
        bars = series_of(figures["breakdown"], part)
        assert bars["y"] == [STEPS[1]]
        assert bars["x"] == close([getattr(own, f"{part}_ms")])
    assert figures["breakdown"]["rows"][0]["categories"] == list(STEPS)
    patterns = [bars.get("pattern", "") for bars in figures["breakdown"]["series"]]
    assert len(set(patterns)) == len(patterns), "told apart by colour only"


def test_queue_and_batches_are_the_server_s(folder: Path, figures: dict[str, Figure]) -> None:
    """Growth of the counters between scrapes, added up again."""
    scrapes = [scrape["models"][STEPS[1]] for scrape in read_lines(folder / "server.jsonl")]
    waiting, queued, batch = (series_of(figures["queue"], STEPS[1], row) for row in range(3))
    assert waiting["y"] == [scrape["pending"] for scrape in scrapes]
    ended = [b["success"] - a["success"] for a, b in itertools.pairwise(scrapes)]
    total = sum(y * n for y, n in zip(queued["y"], ended, strict=True) if y is not None)
    assert total == pytest.approx(
        (scrapes[-1]["queue_us"] - scrapes[0]["queue_us"]) / 1e3, rel=1e-4
    )
    runs = [b["exec"] - a["exec"] for a, b in itertools.pairwise(scrapes)]
    inferences = sum(y * n for y, n in zip(batch["y"], runs, strict=True) if y is not None)
    # Seconds without an execution have no factor.
    assert inferences == pytest.approx(scrapes[-1]["count"] - scrapes[0]["count"], rel=0.01)


def test_in_flight_is_the_records(figures: dict[str, Figure], records: list[LoadRecord]) -> None:
    """The peak of each second is at least what was under way at any of its moments."""
    drawn = series_of(figures["queue"], "in flight, client")["y"]
    for second, peak in enumerate(drawn):
        for moment in range(second * 1_000_000, (second + 1) * 1_000_000, 250_000):
            assert sum(r.sent <= moment < r.end for r in records) <= peak
    assert max(drawn) <= len(records)


def test_machine_is_the_server_s(folder: Path, figures: dict[str, Figure]) -> None:
    """Cores times seconds are the CPU seconds; memory as it was scraped."""
    scrapes = read_lines(folder / "server.jsonl")
    cores = series_of(figures["machine"], "server")
    assert sum(cores["y"]) == pytest.approx(scrapes[-1]["cpu"] - scrapes[0]["cpu"], rel=1e-4)
    memory = series_of(figures["machine"], "memory", row=1)
    assert memory["y"] == close([scrape["rss_bytes"] / 2**30 for scrape in scrapes])
    slots = series_of(figures["engine"], "tritonctl_active_streams")
    assert slots["y"] == [scrape["engine"]["tritonctl_active_streams"] for scrape in scrapes]


def test_generator_is_the_progress(folder: Path, figures: dict[str, Figure]) -> None:
    """Each worker's lag and CPU, second for second."""
    lines = [line for line in read_lines(folder / "progress.jsonl") if "t" in line]
    for worker in (0, 1):
        mine = [line for line in lines if line["worker"] == worker]
        lag = series_of(figures["generator"], f"worker {worker}")
        cpu = series_of(figures["generator"], f"worker {worker}", row=1)
        assert lag["x"] == cpu["x"] == [line["t"] for line in mine]
        expected = [None if us is None else us / 1e3 for us in (m["lag_p99_us"] for m in mine)]
        assert lag["y"] == expected
        assert cpu["y"] == close([line["cpu"] * 100 for line in mine])


def test_figures_are_consistent(figures: dict[str, Figure]) -> None:
    """Equal lengths, rows that exist, names told apart, colours of the style sheet."""
    known = set(re.findall(r"(--[\w-]+):", STYLE.read_text(encoding="utf-8")))
    for figure in figures.values():
        assert set(re.findall(r'"(--[\w-]+)"', json.dumps(figure))) <= known
        rows = len(figure["rows"])
        keys = [(s["name"], s.get("row", 0)) for s in figure["series"]]
        assert len(set(keys)) == len(keys)
        for series in figure["series"]:
            points = len(series["x"])
            assert points == len(series["y"]) > 0
            assert series.get("row", 0) < rows
            assert series.get("row", 0) == 0 or not figure["rows"][0].get("categories")
            for name in ("texts", "low", "high"):
                assert len(series.get(name, series["x"])) == points
            assert "{text}" not in series["hover"] or series["texts"]
        assert all(limit["row"] < rows for limit in figure["limits"])


def test_every_axis_has_a_title_and_hovering_names_units(figures: dict[str, Figure]) -> None:
    """Titles with units where there is a unit; rows of engine gauges have headings."""
    for figure in figures.values():
        assert figure["x"]["title"]
        for row in figure["rows"]:
            assert row.get("title") or row.get("heading") or row.get("categories")
    hovers = {s["hover"] for s in figures["machine"]["series"]}
    assert hovers == {"{y} cores at {x} s", "{y} GiB at {x} s"}


def test_both_schemes_have_every_colour() -> None:
    """A colour that the dark scheme lacks would be the light one's, unreadable."""
    css = STYLE.read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    assert set(re.findall(r"(--[\w-]+):", light)) == set(re.findall(r"(--[\w-]+):", dark))


def request(index: int, ms: int, outcome: str = "ok") -> TimedRequest:
    """A request of so many milliseconds, one planned each millisecond."""
    at = index * 1000
    end = at + ms * 1000
    told = {"i": index, "class": "a", "planned": at, "sent": at, "end": end, "outcome": outcome}
    return TimedRequest(LoadRecord.model_validate(told | {"at": [end]}))


def test_thinning_keeps_the_tail_and_every_failure() -> None:
    """Of 60,000 requests the slow and the failed stay all, of the others an even share."""
    many = [
        request(i, 900 + i % 7 if i % 150 == 0 else 10 + i % 20, "error" if i % 400 == 1 else "ok")
        for i in range(60_000)
    ]
    kept = thin_requests(many)
    indices = {r.record.index for r in kept}
    assert {r.record.index for r in many if r.e2e_ms >= 900} <= indices
    assert {r.record.index for r in many if r.record.outcome == "error"} <= indices
    assert POINTS / 2 < len(kept) <= POINTS
    assert [r.planned_s for r in kept] == sorted(r.planned_s for r in kept)
    early = sum(r.planned_s < 30 for r in kept)
    assert early == pytest.approx(len(kept) / 2, rel=0.02)
    assert thin_requests(many[:POINTS]) == many[:POINTS]


def test_a_limit_far_above_the_data_leaves_them_their_room(tmp_path: Path) -> None:
    """No line that would press them flat: its name at the upper edge; near, a line as ever."""
    far: dict[str, float | None] = {
        "ttft_p99_ms": 9000.0,
        "e2e_p99_ms": 9500.0,
        "itl_p99_ms": 900.0,
    }
    folder = finished(replace(RUN, slo=far, settings={}), tmp_path / "run")
    report_page.write_report(folder)
    drawn = Reader.of((folder / "report.html").read_text(encoding="utf-8")).figures()
    for name, limits in (("latency", 2), ("percentiles", 2), ("gaps", 1)):
        told = drawn[name]["limits"]
        assert len(told) == limits
        assert all(limit["beyond_data"] for limit in told)
    [cores] = drawn["machine"]["limits"]
    assert (cores["text"], cores["beyond_data"]) == ("all 4 cores", True)


def test_percentiles_against_time(figures: dict[str, Figure], records: list[LoadRecord]) -> None:
    """Of each slice those of its own requests, none from too few; the rows share the time."""
    good = [record for record in records if record.outcome == "ok"]
    median = series_of(figures["percentiles-over-time"], "end to end P50", row=1)
    width = median["x"][1] - median["x"][0]
    for middle, value in zip(median["x"], median["y"], strict=True):
        begin, end = (middle - width / 2) * 1e6, (middle + width / 2) * 1e6
        mine = sorted((r.end - r.planned) / 1e3 for r in good if begin <= r.planned < end)
        if len(mine) < 10:
            assert value is None
        else:
            assert value == pytest.approx(mine[math.ceil(len(mine) / 2) - 1], rel=1e-5)
    assert sum(value is not None for value in median["y"]) >= 8
    rows = [(s["name"], s.get("row", 0)) for s in figures["percentiles-over-time"]["series"]]
    assert rows == [("TTFT P50", 0), ("TTFT P90", 0), ("end to end P50", 1), ("end to end P90", 1)]


def test_lengths_are_the_records(figures: dict[str, Figure], records: list[LoadRecord]) -> None:
    """Each answered request in one bar, both sides."""
    good = [record for record in records if record.outcome == "ok"]
    for side, known in (
        ("input", Counter(r.input_tokens for r in good)),
        ("output", Counter(r.output_tokens for r in good)),
    ):
        bars = series_of(figures[f"{side}-length"], f"{side} tokens")
        assert sum(bars["y"]) == len(good)
        if side == "input":  # few lengths: a bar each
            assert dict(zip(bars["x"], bars["y"], strict=True)) == known
        first, last = figures[f"{side}-length"]["x"]["range"]
        assert first < min(filter(None, known)) <= max(filter(None, known)) < last


def test_the_first_token_against_what_delays_it(
    figures: dict[str, Figure], records: list[LoadRecord]
) -> None:
    """Each answered request at its own cause; the median rises where a queue grows."""
    good = [record for record in records if record.outcome == "ok"]
    concurrency = series_of(figures["concurrency"], "TTFT")
    expected = [sum(o.sent < r.sent < o.end for o in records if o.index != r.index) for r in good]
    assert concurrency["x"] == expected
    assert concurrency["y"] == close([(r.at[0] - r.planned) / 1e3 for r in good])
    prompt = series_of(figures["prompt-length"], "TTFT")
    assert prompt["x"] == [r.input_tokens for r in good]
    median = series_of(figures["concurrency"], "median")
    assert median["x"] == sorted(median["x"])
    assert median["y"][-1] > 2 * median["y"][0]


def test_alike_causes_are_not_drawn(tmp_path: Path) -> None:
    """Nothing depends on a prompt length that never changes; tensors have no lengths."""
    folder = finished(SyntheticRun(seconds=8, kind="tensors"), tmp_path / "tensors")
    drawn = Reader.of(report_page.write_report(folder).read_text(encoding="utf-8")).figures()
    assert not {"input-length", "output-length", "prompt-length"} & set(drawn)
    assert series_of(drawn["concurrency"], "End to end")["y"]


def test_the_median_is_of_all_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn of many keeps every slow one: its median would be too high."""
    folder = finished(replace(RUN, stall=(8.0, 2.0), seconds=15), tmp_path / "run")
    whole = Reader.of(report_page.write_report(folder).read_text(encoding="utf-8")).figures()
    monkeypatch.setattr(requests, "thin_requests", partial(thin_requests, points=60))
    part = Reader.of(report_page.write_report(folder).read_text(encoding="utf-8")).figures()
    for name in ("concurrency", "prompt-length"):
        assert (
            len(series_of(part[name], "TTFT")["x"]) < len(series_of(whole[name], "TTFT")["x"]) / 2
        )
        assert series_of(part[name], "median")["y"] == series_of(whole[name], "median")["y"]
