# SPDX-License-Identifier: Apache-2.0
"""Latency figures: every request against time, and percentile curves with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import log10
from typing import Literal

from tritonctl.loadtest.analysis.percentiles import decode_histogram
from tritonctl.loadtest.analysis.summary import DurationDistribution, Percentile
from tritonctl.loadtest.report.figures import (
    Axis,
    ChartSeries,
    Dash,
    Limit,
    ReportFigure,
    Row,
    ShadedSpan,
    Symbol,
    format_ms,
    format_number,
    limit_line,
    line,
    round_figure,
)
from tritonctl.loadtest.report.run import FAILED, ReportedRun, TimedRequest

OK = "ok"
POINTS = 20_000
TAIL = 0.99
PIXELS = 600
CROWDED = 5
WIDE = 50
MESSAGE_LENGTH = 160
FAILURES: dict[str, tuple[str, Symbol, str]] = {
    "error": ("error", "x", "--bad"),
    "timeout": ("timeout", "cross", "--bad"),
    "abandoned": ("abandoned", "square", "--bad"),
    "cancelled": ("cancelled on purpose", "triangle", "--quiet"),
}
METRICS: dict[str, tuple[str, str, Symbol]] = {
    "ttft": ("TTFT", "--ttft", "diamond"),
    "e2e": ("end to end", "--e2e", "circle"),
    "itl": ("ITL", "--itl", "square"),
    "tpot": ("TPOT", "--tpot", "triangle"),
}
TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)


def latency_over_time(run: ReportedRun) -> ReportFigure | None:
    """Draw every request at its planned time, mark failures and shade uncounted periods."""
    if not run.requests:
        return None
    drawn = thin_requests(run.requests)
    answered = [request for request in drawn if request.record.outcome == OK]
    data = [_points("end to end", answered, lambda r: r.e2e_ms, "--e2e", "circle")]
    if run.is_streaming:
        data.append(_points("TTFT", answered, lambda r: r.ttft_ms, "--ttft", "diamond"))
    for outcome, (name, symbol, colour) in FAILURES.items():
        failed = [request for request in drawn if request.record.outcome == outcome]
        if failed:
            data.append(_points(name, failed, lambda r: r.e2e_ms, colour, symbol, size=9))
    return ReportFigure(
        "latency",
        "Latency against time",
        _latency_note(run, drawn),
        [series for series in data if series.x],
        time_axis(run, "planned time, seconds since the start"),
        [Row("ms from the planned time")],
        _limits(run, ("ttft", "e2e"), data),
        shaded_spans(run),
        scales=axis_scales(data),
        height=440,
    )


def thin_requests(requests: Sequence[TimedRequest], points: int = POINTS) -> list[TimedRequest]:
    """Select about `points` requests: all failures, all beyond P99, and every n-th of the others.

    The tail is the point of a latency chart, so it is never thinned.
    """
    if len(requests) <= points:
        return list(requests)
    slow_e2e = _quantile([r.e2e_ms for r in requests], TAIL)
    slow_ttft = _quantile([t for r in requests if (t := r.ttft_ms) is not None], TAIL)
    always_drawn: list[TimedRequest] = []
    typical: list[TimedRequest] = []
    for request in requests:
        tail = request.e2e_ms > slow_e2e or (request.ttft_ms or 0.0) > slow_ttft
        (always_drawn if tail or request.record.outcome != OK else typical).append(request)
    step = max(1, -(-len(typical) // max(1, points - len(always_drawn))))
    return sorted([*always_drawn, *typical[::step]], key=lambda request: request.planned_s)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _points(
    name: str,
    requests: Iterable[TimedRequest],
    value: Callable[[TimedRequest], float | None],
    colour: str,
    symbol: Symbol,
    size: int = 5,
) -> ChartSeries:
    points = [(request, ms) for request in requests if (ms := value(request)) is not None]
    return ChartSeries(
        "points",
        name,
        [round_figure(request.planned_s) for request, _ in points],
        [round_figure(ms) for _, ms in points],
        colour,
        hover="{y} ms at {x} s\n{text}",
        texts=[_hover_text(request) for request, _ in points],
        symbol=symbol,
        size=size,
        filled=symbol not in ("square", "triangle"),
        opacity=0.75,
    )


def _hover_text(request: TimedRequest) -> str:
    """Describe a request and its error, if any."""
    record = request.record
    text = f"request {record.index}, class {record.class_name}"
    if record.error:
        message = record.error.message[:MESSAGE_LENGTH]
        text += f"\n{record.error.kind}: {message}"
    return text


def axis_scales(
    data: Sequence[ChartSeries],
) -> tuple[Literal["linear", "log"], Literal["linear", "log"]]:
    """Return the axis scales; logarithmic first if a linear one would show only the tail."""
    ordered = sorted(y for series in data for y in series.y if isinstance(y, int | float))
    wide = ordered[-1] > WIDE * ordered[len(ordered) // 2]
    return ("log", "linear") if wide else ("linear", "log")


def _latency_note(run: ReportedRun, drawn: Sequence[TimedRequest]) -> str:
    total, drawn_count = len(run.requests), len(drawn)
    failed = sum(request.record.outcome in FAILED for request in drawn)
    note = f"{total:,} requests, {failed:,} of them failed" if failed else f"{total:,} requests"
    note += ", each at its planned time."
    if drawn_count < total:
        note += (
            f" {drawn_count:,} are drawn: every failure, every one beyond P99,"
            " and an even sample of the others."
        )
    return note


def time_axis(run: ReportedRun, title: str = "seconds since the start") -> Axis:
    """Return the axis of the whole run's time."""
    return Axis(title, range=(0, run.seconds))


def shaded_spans(run: ReportedRun) -> list[ShadedSpan]:
    """Return warm-up and cool-down, which the summary does not count, and each reload."""
    spans, window = [], run.summary.window
    if window.from_s > 0:
        spans.append(ShadedSpan(0, window.from_s, "warm-up"))
    if run.seconds > window.to_s + 1:
        spans.append(ShadedSpan(window.to_s, run.seconds, "cool-down"))
    return [*spans, *(ShadedSpan(start, end, "reload") for start, end in run.reloads)]


def _limits(run: ReportedRun, metrics: Sequence[str], data: Sequence[ChartSeries]) -> list[Limit]:
    """Return the SLO targets of these metrics."""
    limits = []
    for target in run.summary.slo:
        metric = target.name.partition("_")[0]
        if metric in metrics and target.limit_ms:
            of = f"{percentile_name(1 - target.allowed_share)} of {METRICS[metric][0]}"
            limits.append(limit_line(target.limit_ms, f"SLO: {of} {target.limit_ms:g} ms", data))
    return limits


def percentile_curves(run: ReportedRun) -> ReportFigure | None:
    """Draw TTFT and end to end, response and service time, on an axis of nines."""
    metrics = [("ttft", False), ("e2e", False), ("service_ttft", True), ("service_e2e", True)]
    title = "Percentiles of the response time"
    return _percentile_figure(run, "percentiles", title, metrics, ("ttft", "e2e"))


def gap_curves(run: ReportedRun) -> ReportFigure | None:
    """Draw the gaps between tokens, and each request's mean gap."""
    metrics = [("itl", False), ("tpot", False)]
    title = "Percentiles between tokens"
    return _percentile_figure(run, "gaps", title, metrics, ("itl", "tpot"))


def _percentile_figure(
    run: ReportedRun,
    name: str,
    title: str,
    metrics: Sequence[tuple[str, bool]],
    limited: Sequence[str],
) -> ReportFigure | None:
    distributions = run.summary.metrics
    data: list[ChartSeries] = []
    for metric, service in metrics:
        distribution = distributions.get(metric)
        if distribution and distribution.n:
            data += _curve(metric.removeprefix("service_"), distribution, service=service)
    note = _percentile_note(distributions, [metric for metric, service in metrics if not service])
    return curves_figure(name, title, note, data, run, limited)


def curves_figure(
    name: str,
    title: str,
    note: str,
    data: list[ChartSeries],
    run: ReportedRun,
    limited: Sequence[str],
) -> ReportFigure | None:
    """Draw percentile curves with the SLO targets of `run`; None without a curve."""
    if not data:
        return None
    return ReportFigure(
        name,
        title,
        note,
        data,
        _percentile_axis(max(x for s in data for x in s.x if isinstance(x, int | float))),
        [Row("ms")],
        _limits(run, limited, data),
        scales=axis_scales(data),
        height=400,
    )


def _percentile_axis(max_x: float) -> Axis:
    """Return the percentile axis: each nine has the same width."""
    ticks = [tick for tick in TICKS if 1 / (1 - tick) <= max_x * 1.001]
    if len(ticks) > CROWDED:
        ticks.remove(0.5)
    names = ["min" if tick == 0 else percentile_name(tick) for tick in ticks]
    positions = [float(f"{1 / (1 - tick):.6g}") for tick in ticks]
    return Axis(
        "percentile",
        range=(1, max_x),
        logarithmic=True,
        ticks=list(zip(positions, names, strict=True)),
    )


def _curve(metric: str, distribution: DurationDistribution, *, service: bool) -> list[ChartSeries]:
    """Draw a curve, dotted beyond the last percentile that the sample supports."""
    label, colour, symbol = METRICS[metric]
    name = f"{label}, service time" if service else label
    points = curve_points(distribution.histogram)
    percentiles = distribution.percentiles
    edge = max((p.q for p in percentiles), default=0.0)
    solid = [point for point in points if point[0] <= edge]
    beyond = [*solid[-1:], *(point for point in points if point[0] > edge)]
    width = 1.5 if service else 2.5
    curves = [curve_line(name, solid, colour, width, "dash" if service else "solid")]
    if len(beyond) > 1 and not service:
        unsupported = curve_line(f"{name}, too few samples", beyond, colour, 1.5, "dot")
        curves.append(replace(unsupported, legend=False, opacity=0.8))
    if not service:
        curves.append(interval_markers(name, percentiles, colour, symbol))
    return curves


def curve_line(
    name: str, points: Sequence[tuple[float, float]], colour: str, width: float, dash: Dash
) -> ChartSeries:
    """Draw a percentile curve of (share, ms) points."""
    return line(
        name,
        [float(f"{1 / (1 - q):.6g}") for q, _ in points],
        [ms for _, ms in points],
        colour,
        width=width,
        dash=dash,
        hover="{text}: {y} ms",
        texts=[percentile_name(q) for q, _ in points],
    )


def interval_markers(
    name: str, percentiles: Sequence[Percentile], colour: str, symbol: Symbol = "circle"
) -> ChartSeries:
    """Draw the percentiles with their confidence intervals."""
    return ChartSeries(
        "points",
        f"{name}, 95 % interval",
        [float(f"{1 / (1 - p.q):.6g}") for p in percentiles],
        [round_figure(p.ms) for p in percentiles],
        colour,
        hover="{text}",
        texts=[f"{percentile_name(p.q)}: {format_with_interval(p)}" for p in percentiles],
        low=[round_figure(p.low_ms) for p in percentiles],
        high=[round_figure(p.high_ms) for p in percentiles],
        symbol=symbol,
        size=7,
        legend=False,
    )


def percentile_name(q: float) -> str:
    """Format a quantile: 0.999 as P99.9."""
    return f"P{q * 100:.6g}"


def format_interval(percentile: Percentile) -> str:
    """Format the bounds of a percentile; a small sample may lack one or both."""
    low, high = percentile.low_ms, percentile.high_ms
    if low is None or high is None:
        bounds = [f"≥ {format_number(low)}"] if low is not None else []
        bounds += [f"≤ {format_number(high)}"] if high is not None else []
        return f"{bounds[0]} ms" if bounds else "unbounded"
    return f"{format_number(low)} – {format_number(high)} ms"


def format_with_interval(percentile: Percentile) -> str:
    """Format a percentile and its bounds."""
    return f"{format_ms(percentile.ms)} ({format_interval(percentile)})"


def _percentile_note(distributions: dict[str, DurationDistribution], metrics: Sequence[str]) -> str:
    """Describe the figures for readers who cannot see the chart."""
    parts, unbounded = [], False
    for metric in metrics:
        percentiles = distributions[metric].percentiles if metric in distributions else ()
        unbounded |= any(p.low_ms is None or p.high_ms is None for p in percentiles)
        if percentiles:
            extremes = dict.fromkeys((percentiles[0], percentiles[-1]))
            values = ", ".join(
                f"{percentile_name(p.q)} {format_with_interval(p)}" for p in extremes
            )
            parts.append(f"{METRICS[metric][0]}: {values}.")
    if unbounded:
        parts.append("An open bar is unbounded there.")
    return " ".join(parts) + " Bars: 95 % intervals. Dotted: too few samples."


def curve_points(encoded: str) -> list[tuple[float, float]]:
    """Return (share, ms) along an HdrHistogram, the maximum at share 1 - 1/(2 n)."""
    histogram = decode_histogram(encoded)
    total, below = histogram.get_total_count(), 0
    points: list[tuple[float, float]] = []
    # hdrh's iterator visits every empty bucket in Python: ten times slower.
    for index, count in enumerate(histogram.counts[:]):
        if not count:
            continue
        value = histogram.get_value_from_index(index)
        ms = histogram.get_highest_equivalent_value(value) / 1e3
        points.append((below / total, ms))
        below += count
        points.append((min(below / total, 1 - 1 / (2 * total)), ms))
    return _drop_invisible(points)


def _drop_invisible(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Drop points less than a pixel away from the previous one."""
    if not points:
        return []
    min_dx = -log10(1 - points[-1][0]) / PIXELS
    min_dy = points[-1][1] / PIXELS
    visible = [points[0]]
    for (share, ms), next_point in zip(points[1:], [*points[2:], None], strict=True):
        right = log10((1 - visible[-1][0]) / (1 - share))
        if next_point is None or right >= min_dx or ms - visible[-1][1] >= min_dy:
            visible.append((share, ms))
    return visible
