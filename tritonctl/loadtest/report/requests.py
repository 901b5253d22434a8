# SPDX-License-Identifier: Apache-2.0
"""Figures of the requests: prompt and response lengths, and causes of a late first token."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from tritonctl.loadtest.report.figures import (
    Axis,
    ChartSeries,
    ReportFigure,
    Row,
    line,
    round_figure,
)
from tritonctl.loadtest.report.latency import OK, axis_scales, thin_requests
from tritonctl.loadtest.report.over_time import quantile
from tritonctl.loadtest.report.run import ReportedRun, TimedRequest

_BARS = 40
_GROUPS = 12
_MIN_GROUP_SIZE = 10  # requests of a group, from which its median is drawn
_HEIGHT = 320
_NUMBERS = {"input": "input_tokens", "output": "output_tokens"}


def input_length_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw the lengths of prompts in tokens."""
    return _length_figure(run, "input")


def output_length_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw the lengths of responses in tokens."""
    return _length_figure(run, "output")


def _length_figure(run: ReportedRun, side: str) -> ReportFigure | None:
    token_counts = [
        getattr(r.record, _NUMBERS[side]) for r in run.requests if r.record.outcome == OK
    ]
    tokens = sorted(value for value in token_counts if value is not None)
    if not tokens:
        return None
    width = -(-(tokens[-1] - tokens[0] + 1) // _BARS)
    counts = Counter((value - tokens[0]) // width for value in tokens)
    bin_starts = [tokens[0] + width * number for number in range(max(counts) + 1)]
    colour = "--ttft" if side == "input" else "--itl"
    bars = ChartSeries(
        "bars",
        f"{side} tokens",
        [bin_start + (width - 1) / 2 for bin_start in bin_starts],
        [counts[number] for number in range(len(bin_starts))],
        colour,
        hover="{text} tokens: {y} requests",
        texts=[_bin_label(bin_start, width) for bin_start in bin_starts],
    )
    quantiles = ", ".join(
        f"{name} {quantile(tokens, q):,}" for name, q in (("P50", 0.5), ("P90", 0.9))
    )
    note = (
        f"{quantiles}, longest {tokens[-1]:,}; {sum(tokens):,} tokens in {len(tokens):,} requests."
    )
    return ReportFigure(
        f"{side}-length",
        f"{side.capitalize()} length",
        note,
        [bars],
        Axis("tokens", range=(bin_starts[0] - 0.5, bin_starts[-1] + width - 0.5)),
        [Row("requests")],
        height=_HEIGHT,
        legend=False,
    )


def _bin_label(bin_start: int, width: int) -> str:
    return f"{bin_start:,}" if width == 1 else f"{bin_start:,} to {bin_start + width - 1:,}"


def concurrency_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw TTFT (end to end without tokens) against the requests in flight."""
    in_flight = in_flight_at_sending(run.requests)
    axis_title = "other requests in flight when it was sent"
    title = f"{_metric_and_colour(run)[0]} against concurrency"
    return _scatter_figure(
        run, "concurrency", title, axis_title, dict(zip(_ids(run), in_flight, strict=True))
    )


def prompt_length_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw TTFT (end to end without tokens) against the prompt length."""
    prompt_tokens = {
        r.record.index: r.record.input_tokens
        for r in run.requests
        if r.record.input_tokens is not None
    }
    title = f"{_metric_and_colour(run)[0]} against prompt length"
    return _scatter_figure(run, "prompt-length", title, "tokens of the prompt", prompt_tokens)


def in_flight_at_sending(requests: Sequence[TimedRequest]) -> list[int]:
    """Return, for each request, the number of other requests in flight when it was sent."""
    send_times = sorted(request.record.sent for request in requests)
    end_times = sorted(request.record.end for request in requests)
    return [
        bisect_left(send_times, request.record.sent) - bisect_right(end_times, request.record.sent)
        for request in requests
    ]


def _ids(run: ReportedRun) -> list[int]:
    return [request.record.index for request in run.requests]


def _metric_and_colour(run: ReportedRun) -> tuple[str, str]:
    """Return the drawn metric and its colour."""
    return ("TTFT", "--ttft") if run.is_streaming else ("End to end", "--e2e")


def _scatter_figure(
    run: ReportedRun, name: str, title: str, axis_title: str, causes: Mapping[int, int]
) -> ReportFigure | None:
    """Draw a point per successful request, and medians of groups with a similar cause.

    With many requests the points are a sample with too many slow ones; the medians use all.
    """
    label, colour = _metric_and_colour(run)
    points = _points(run, thin_requests(run.requests), causes)
    if not points or len(set(causes.values())) == 1:
        return None
    marks = ChartSeries(
        "points",
        label,
        [cause for cause, _ in points],
        [round_figure(ms) for _, ms in points],
        colour,
        hover="{y} ms at {x}",
        size=4,
        opacity=0.45,
    )
    medians = _medians(_points(run, run.requests, causes))
    median_line = line(
        "median",
        [x for x, _ in medians],
        [y for _, y in medians],
        "--ink",
        width=2.5,
        symbol="diamond",
        size=7,
        hover="{y} ms at {x}",
    )
    return ReportFigure(
        name,
        title,
        _median_note(label, medians, axis_title),
        [marks, median_line] if len(medians) > 1 else [marks],
        Axis(axis_title),
        [Row("ms from the planned time")],
        scales=axis_scales([marks]),
        height=_HEIGHT,
    )


def _points(
    run: ReportedRun, requests: Sequence[TimedRequest], causes: Mapping[int, int]
) -> list[tuple[int, float]]:
    """Return (cause, ms) of the successful requests."""
    return [
        (causes[request.record.index], ms)
        for request in requests
        if request.record.outcome == OK and request.record.index in causes
        if (ms := request.ttft_ms if run.is_streaming else request.e2e_ms) is not None
    ]


def _median_note(label: str, medians: Sequence[tuple[float, float]], axis_title: str) -> str:
    """Describe both ends of the median line."""
    if len(medians) < 2:  # noqa: PLR2004
        return f"Successful requests. Too similar in {axis_title} for more than one median."
    (low, first), (high, last) = medians[0], medians[-1]
    return f"Median {label} {first:.3g} ms at {low:.3g}, {last:.3g} ms at {high:.3g} {axis_title}."


def _medians(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return (mean cause, median) of groups of similar size; equal causes share a group."""
    ordered = sorted(points)
    min_size = max(_MIN_GROUP_SIZE, -(-len(ordered) // _GROUPS))
    groups: list[list[tuple[int, float]]] = []
    for cause, ms in ordered:
        if not groups or (len(groups[-1]) >= min_size and groups[-1][-1][0] != cause):
            groups.append([])
        groups[-1].append((cause, ms))
    return [
        (
            sum(cause for cause, _ in group) / len(group),
            quantile(sorted(ms for _, ms in group), 0.5),
        )
        for group in groups
        if len(group) >= _MIN_GROUP_SIZE
    ]
