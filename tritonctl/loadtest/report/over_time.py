# SPDX-License-Identifier: Apache-2.0
"""Percentiles against time, to see whether the service changed during the run."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tritonctl.loadtest.analysis.summary import P99_REQUESTS
from tritonctl.loadtest.report.figures import ChartSeries, Dash, ReportFigure, Row, line
from tritonctl.loadtest.report.latency import (
    METRICS,
    OK,
    percentile_name,
    shaded_spans,
    time_axis,
)
from tritonctl.loadtest.report.run import ReportedRun, TimedRequest

_MAX_SLICES, _MIN_SLICES = 60, 4
# Percentiles with the minimum requests per slice and the line style.
_QUANTILES: dict[float, tuple[int, Dash]] = {
    0.5: (10, "solid"),
    0.9: (30, "dash"),
    0.99: (P99_REQUESTS, "dot"),
}
_REQUESTS_PER_SLICE = 50  # on average, so that few slices lack a P90


def percentiles_over_time(run: ReportedRun) -> ReportFigure | None:
    """Draw P50, P90 and, with enough requests, P99 of equal slices of the run."""
    answered = [request for request in run.requests if request.record.outcome == OK]
    count = min(_MAX_SLICES, len(answered) // _REQUESTS_PER_SLICE)
    if count < _MIN_SLICES:
        return None
    width = max(1, ceil(max(request.planned_s for request in answered) / count))
    slices = _slices(answered, width)
    metrics = ["ttft", "e2e"] if run.is_streaming else ["e2e"]
    data: list[ChartSeries] = []
    for row, metric in enumerate(metrics):
        values = [sorted(_values(requests, metric)) for requests in slices]
        data += _lines(metric, values, width, row)
    note = (
        f"Successful requests in slices of {width} s by planned time."
        f" P99 needs {P99_REQUESTS} requests in a slice."
    )
    return ReportFigure(
        "percentiles-over-time",
        "Percentiles against time",
        note,
        data,
        time_axis(run, "planned time, seconds since the start"),
        [Row(f"{METRICS[metric][0]}, ms") for metric in metrics],
        spans=shaded_spans(run),
        height=180 + 150 * len(metrics),
    )


def _slices(requests: Sequence[TimedRequest], width: int) -> list[list[TimedRequest]]:
    last = int(max(request.planned_s for request in requests) / width)
    slices: list[list[TimedRequest]] = [[] for _ in range(last + 1)]
    for request in requests:
        slices[int(request.planned_s / width)].append(request)
    return slices


def _values(requests: Sequence[TimedRequest], metric: str) -> list[float]:
    latencies = (request.ttft_ms if metric == "ttft" else request.e2e_ms for request in requests)
    return [value for value in latencies if value is not None]


def _lines(
    metric: str, slices: Sequence[Sequence[float]], width: int, row: int
) -> list[ChartSeries]:
    """Draw a line per percentile that some slice supports, at the slices' midpoints."""
    label, colour, _ = METRICS[metric]
    middles = [width * (number + 0.5) for number in range(len(slices))]
    lines = []
    for q, (min_requests, dash) in _QUANTILES.items():
        values = [
            quantile(latencies, q) if len(latencies) >= min_requests else None
            for latencies in slices
        ]
        if any(value is not None for value in values):
            name = f"{label} {percentile_name(q)}"
            hover = "{y} ms at {x} s"
            lines.append(line(name, middles, values, colour, row=row, dash=dash, hover=hover))
    return lines


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the smallest of the sorted values that a share `q` does not exceed."""
    return ordered[max(0, ceil(q * len(ordered)) - 1)]
