# SPDX-License-Identifier: Apache-2.0
"""Figures of latency: every request against time, and percentile curves with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log10

from tritonctl.loadtest.analysis.percentiles import decode
from tritonctl.loadtest.analysis.summary import Distribution, Percentile
from tritonctl.loadtest.report.figures import (
    Figure,
    Layout,
    Trace,
    add_limit,
    axis,
    base_layout,
    line,
    milliseconds,
    number,
    plain,
    rounded,
    shaded,
    stacked_layout,
)
from tritonctl.loadtest.report.run import FAILED, Request, Run

OK = "ok"
POINTS = 20_000
SVG_POINTS = 3_000
TAIL = 0.99
PIXELS = 600
CROWDED = 5
WIDE = 50
MESSAGE_LENGTH = 160
FAILURES = {
    "error": ("error", "x", "--bad"),
    "timeout": ("timeout", "cross", "--bad"),
    "abandoned": ("abandoned", "square-open", "--bad"),
    "cancelled": ("cancelled on purpose", "triangle-down-open", "--quiet"),
}
METRICS = {
    "ttft": ("TTFT", "--ttft", "diamond"),
    "e2e": ("end to end", "--e2e", "circle"),
    "itl": ("ITL", "--itl", "square"),
    "tpot": ("TPOT", "--tpot", "triangle-up"),
}
TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)


def latency_over_time(run: Run) -> Figure | None:
    """Every request at its planned time; failures marked, what does not count shaded."""
    if not run.requests:
        return None
    drawn = thinned(run.requests)
    answered = [request for request in drawn if request.record.outcome == OK]
    vector = {"type": "scatter", "cliponaxis": False}
    kind = {"type": "scattergl"} if len(drawn) > SVG_POINTS else vector
    data = [_points("end to end", answered, lambda r: r.e2e_ms, "--e2e", "circle")]
    if run.streams:
        data.append(_points("TTFT", answered, lambda r: r.ttft_ms, "--ttft", "diamond"))
    for outcome, (name, symbol, colour) in FAILURES.items():
        failed = [request for request in drawn if request.record.outcome == outcome]
        if failed:
            data.append(_points(name, failed, lambda r: r.e2e_ms, colour, symbol, size=9))
    x = "planned time, seconds since the start"
    layout = time_layout(run, 440, ["ms from the planned time"], x=x)
    _add_limits(layout, run, ("ttft", "e2e"), data)
    return Figure(
        "latency",
        "Latency against time",
        _latency_note(run, drawn),
        [trace | kind for trace in data if trace["x"]],
        layout,
        scales=scales([ms for trace in data for ms in trace["y"]]),
        height=440,
    )


def thinned(requests: Sequence[Request], points: int = POINTS) -> list[Request]:
    """At most about `points` requests: every failure, every one beyond P99, of the rest each n-th.

    The tail is what a latency chart is looked at for, so it is never thinned.
    """
    if len(requests) <= points:
        return list(requests)
    slow_e2e = _quantile([r.e2e_ms for r in requests], TAIL)
    slow_ttft = _quantile([t for r in requests if (t := r.ttft_ms) is not None], TAIL)
    kept: list[Request] = []
    rest: list[Request] = []
    for request in requests:
        tail = request.e2e_ms > slow_e2e or (request.ttft_ms or 0.0) > slow_ttft
        (kept if tail or request.record.outcome != OK else rest).append(request)
    step = max(1, -(-len(rest) // max(1, points - len(kept))))
    return sorted([*kept, *rest[::step]], key=lambda request: request.planned_s)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _points(
    name: str,
    requests: Iterable[Request],
    value: Callable[[Request], float | None],
    colour: str,
    symbol: str,
    size: int = 5,
) -> Trace:
    shown = [(request, ms) for request in requests if (ms := value(request)) is not None]
    return {
        "mode": "markers",
        "name": name,
        "x": [rounded(request.planned_s) for request, _ in shown],
        "y": [rounded(ms) for _, ms in shown],
        "text": [_hover(request) for request, _ in shown],
        "hovertemplate": "%{y:.4~g} ms at %{x:.4~g} s<br>%{text}<extra>" + name + "</extra>",
        "marker": {"color": colour, "symbol": symbol, "size": size, "opacity": 0.75},
    }


def _hover(request: Request) -> str:
    """Which request this is; what failed, if it did."""
    record = request.record
    text = f"request {record.index}, class {plain(record.class_name)}"
    if record.error:
        message = record.error.message[:MESSAGE_LENGTH]
        text += f"<br>{plain(record.error.kind)}: {plain(message)}"
    return text


def scales(values: Sequence[float]) -> tuple[str, str]:
    """The scales to choose from; logarithmic first where a linear one would show only the tail."""
    ordered = sorted(values)
    wide = ordered[-1] > WIDE * ordered[len(ordered) // 2]
    return ("log", "linear") if wide else ("linear", "log")


def _latency_note(run: Run, drawn: Sequence[Request]) -> str:
    total, shown = len(run.requests), len(drawn)
    failed = sum(request.record.outcome in FAILED for request in drawn)
    note = f"{total:,} requests, {failed:,} of them failed" if failed else f"{total:,} requests"
    note += ", each where it was planned."
    if shown < total:
        note += (
            f" {shown:,} are drawn: every failure, every one beyond P99,"
            " and of the rest an even sample."
        )
    return note


def time_layout(
    run: Run,
    height: int,
    rows: Sequence[str],
    heights: Sequence[float] = (),
    x: str = "seconds since the start",
) -> Layout:
    """Plots of the whole run against time; what lies outside the window that counts is shaded."""
    layout = stacked_layout(height, x, rows, heights or [1.0] * len(rows))
    layout["xaxis"]["range"] = [0, run.seconds]
    window = run.summary.window
    if window.from_s > 0:
        layout["shapes"].append(shaded(0, window.from_s, "warm-up"))
    if run.seconds > window.to_s + 1:
        layout["shapes"].append(shaded(window.to_s, run.seconds, "cool-down"))
    return layout


def _add_limits(layout: Layout, run: Run, metrics: Sequence[str], data: Sequence[Trace]) -> None:
    """Lines at the SLO targets of these metrics."""
    for target in run.summary.slo:
        metric = target.name.partition("_")[0]
        if metric in metrics and target.limit_ms:
            of = f"{percentile_name(1 - target.allowed_share)} of {METRICS[metric][0]}"
            add_limit(layout, target.limit_ms, f"SLO: {of} {target.limit_ms:g} ms", data)


def percentile_curves(run: Run) -> Figure | None:
    """TTFT and end to end, response and service time, on an axis of nines."""
    metrics = [("ttft", False), ("e2e", False), ("service_ttft", True), ("service_e2e", True)]
    title = "Percentiles of the response time"
    return _percentiles(run, "percentiles", title, metrics, ("ttft", "e2e"))


def gap_curves(run: Run) -> Figure | None:
    """Between tokens: every gap, and each request's mean."""
    metrics = [("itl", False), ("tpot", False)]
    title = "Percentiles between tokens"
    return _percentiles(run, "gaps", title, metrics, ("itl", "tpot"))


def _percentiles(
    run: Run, name: str, title: str, metrics: Sequence[tuple[str, bool]], limited: Sequence[str]
) -> Figure | None:
    distributions = run.summary.metrics
    data: list[Trace] = []
    for metric, service in metrics:
        distribution = distributions.get(metric)
        if distribution and distribution.n:
            data += _curve(metric.removeprefix("service_"), distribution, service=service)
    note = _percentile_note(distributions, [metric for metric, service in metrics if not service])
    return curves_figure(name, title, note, data, run, limited)


def curves_figure(
    name: str, title: str, note: str, data: list[Trace], run: Run, limited: Sequence[str]
) -> Figure | None:
    """Percentile curves with the SLO targets of `run` for these metrics; None without any curve."""
    if not data:
        return None
    layout = base_layout(400)
    layout["xaxis"] = _nines(max(x for trace in data for x in trace["x"]))
    layout["yaxis"] = axis("ms", rangemode="tozero")
    _add_limits(layout, run, limited, data)
    choice = scales([ms for trace in data for ms in trace["y"]])
    return Figure(name, title, note, data, layout, choice, height=400)


def _nines(furthest: float) -> Layout:
    """The axis of percentiles: each nine as wide as the one before."""
    ticks = [tick for tick in TICKS if 1 / (1 - tick) <= furthest * 1.001]
    if len(ticks) > CROWDED:
        ticks.remove(0.5)
    return axis(
        "percentile",
        type="log",
        tickangle=0,
        tickvals=[rounded(1 / (1 - tick)) for tick in ticks],
        ticktext=["min" if tick == 0 else f"P{tick * 100:.6g}" for tick in ticks],
    )


def _curve(metric: str, distribution: Distribution, *, service: bool) -> list[Trace]:
    """The curve; dotted beyond the last percentile that the sample is large enough for."""
    label, colour, symbol = METRICS[metric]
    name = f"{label}, service time" if service else label
    points = curve_points(distribution.histogram)
    known = distribution.percentiles
    edge = max((p.q for p in known), default=0.0)
    solid = [point for point in points if point[0] <= edge]
    beyond = [*solid[-1:], *(point for point in points if point[0] > edge)]
    width = 1.5 if service else 2.5
    dash = "dash" if service else "solid"
    traces = [curve_line(name, solid, colour, width, dash)]
    if len(beyond) > 1 and not service:
        more = {"showlegend": False, "opacity": 0.8}
        traces.append(curve_line(f"{name}, too few samples", beyond, colour, 1.5, "dot") | more)
    if not service:
        traces.append(intervals(name, known, colour, symbol))
    return traces


def curve_line(
    name: str, points: Sequence[tuple[float, float]], colour: str, width: float, dash: str
) -> Trace:
    """A percentile curve of (share, ms) points."""
    trace = line(
        name,
        [float(f"{1 / (1 - q):.6g}") for q, _ in points],
        [ms for _, ms in points],
        colour,
        line={"width": width, "dash": dash},
    )
    share = [rounded(q * 100) for q, _ in points]
    hover = "P%{customdata:.6~g}: %{y:.4~g} ms<extra>" + name + "</extra>"
    return trace | {"customdata": share, "hovertemplate": hover}


def intervals(
    name: str, percentiles: Sequence[Percentile], colour: str, symbol: str = "circle"
) -> Trace:
    """The percentiles that the verdict rests on, with their confidence intervals."""
    bounds = [(_bound_or(p.low_ms, p.ms), _bound_or(p.high_ms, p.ms)) for p in percentiles]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name}, 95 % interval",
        "showlegend": False,
        "x": [rounded(1 / (1 - p.q)) for p in percentiles],
        "y": [rounded(p.ms) for p in percentiles],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [rounded(h - p.ms) for p, (_, h) in zip(percentiles, bounds, strict=True)],
            "arrayminus": [
                rounded(p.ms - w) for p, (w, _) in zip(percentiles, bounds, strict=True)
            ],
            "color": colour,
            "thickness": 1.5,
            "width": 5,
        },
        "marker": {"color": colour, "size": 7, "symbol": symbol},
        "text": [f"{percentile_name(p.q)}: {with_interval(p)}" for p in percentiles],
        "hovertemplate": "%{text}<extra>" + name + "</extra>",
    }


def _bound_or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else bound


def percentile_name(q: float) -> str:
    """0.999 as P99.9."""
    return f"P{q * 100:.6g}"


def interval(percentile: Percentile) -> str:
    """The bounds of a percentile; the sample may be too small for one of them."""
    low, high = percentile.low_ms, percentile.high_ms
    if low is None or high is None:
        known = [f"≥ {number(low)}"] if low is not None else []
        known += [f"≤ {number(high)}"] if high is not None else []
        return f"{known[0]} ms" if known else "unbounded"
    return f"{number(low)} – {number(high)} ms"


def with_interval(percentile: Percentile) -> str:
    """The value and its bounds."""
    return f"{milliseconds(percentile.ms)} ({interval(percentile)})"


def _percentile_note(distributions: dict[str, Distribution], metrics: Sequence[str]) -> str:
    """The figures as text, for those who cannot see the chart."""
    parts, unbounded = [], False
    for metric in metrics:
        known = distributions[metric].percentiles if metric in distributions else ()
        unbounded |= any(p.low_ms is None or p.high_ms is None for p in known)
        if known:
            ends = dict.fromkeys((known[0], known[-1]))
            values = ", ".join(f"{percentile_name(p.q)} {with_interval(p)}" for p in ends)
            parts.append(f"{METRICS[metric][0]}: {values}.")
    if unbounded:
        parts.append("A bar without an end has no bound there.")
    return " ".join(parts) + " Bars: 95 % intervals. Dotted: too few samples to say."


def curve_points(encoded: str) -> list[tuple[float, float]]:
    """(share, ms) along an HdrHistogram, the largest value at share 1 - 1/(2 n)."""
    histogram = decode(encoded)
    total, below = histogram.get_total_count(), 0
    points: list[tuple[float, float]] = []
    # Its own iterator walks every empty bucket in Python: ten times as long.
    for index, count in enumerate(histogram.counts[:]):
        if not count:
            continue
        value = histogram.get_value_from_index(index)
        ms = histogram.get_highest_equivalent_value(value) / 1e3
        points.append((below / total, ms))
        below += count
        points.append((min(below / total, 1 - 1 / (2 * total)), ms))
    return _visible(points)


def _visible(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without points that no eye can tell from the one before: less than a pixel away."""
    if not points:
        return []
    least_x = -log10(1 - points[-1][0]) / PIXELS
    least_y = points[-1][1] / PIXELS
    kept = [points[0]]
    for (share, ms), after in zip(points[1:], [*points[2:], None], strict=True):
        right = log10((1 - kept[-1][0]) / (1 - share))
        if after is None or right >= least_x or ms - kept[-1][1] >= least_y:
            kept.append((share, ms))
    return kept
