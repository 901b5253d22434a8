# SPDX-License-Identifier: Apache-2.0
"""Percentiles against time: whether the service was the same at the end as at the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tritonctl.loadtest.analysis.summary import P99_REQUESTS
from tritonctl.loadtest.report.figures import Figure, Trace, line, on_row
from tritonctl.loadtest.report.latency import METRICS, OK, percentile_name, time_layout
from tritonctl.loadtest.report.run import Request, Run

_MOST_SLICES, _LEAST_SLICES = 60, 4
# A percentile, from how many requests of a slice on it is drawn, and its line.
_QUANTILES = {0.5: (10, "solid"), 0.9: (30, "dash"), 0.99: (P99_REQUESTS, "dot")}
_EACH = 50  # requests in a slice on average, so that few have too few for P90


def percentiles_over_time(run: Run) -> Figure | None:
    """P50, P90 and, where there are enough requests, P99 of equal slices of the run."""
    answered = [request for request in run.requests if request.record.outcome == OK]
    count = min(_MOST_SLICES, len(answered) // _EACH)
    if count < _LEAST_SLICES:
        return None
    width = max(1, ceil(max(request.planned_s for request in answered) / count))
    slices = _slices(answered, width)
    metrics = ["ttft", "e2e"] if run.streams else ["e2e"]
    data: list[Trace] = []
    for row, metric in enumerate(metrics):
        values = [sorted(_values(requests, metric)) for requests in slices]
        data += [on_row(trace, row) for trace in _lines(metric, values, width)]
    height = 180 + 150 * len(metrics)
    titles = [f"{METRICS[metric][0]}, ms" for metric in metrics]
    layout = time_layout(run, height, titles, x="planned time, seconds since the start")
    note = (
        f"Answered requests in slices of {width} s, each by the time at which it was planned."
        f" P99 takes {P99_REQUESTS} requests in a slice."
    )
    title = "Percentiles against time"
    return Figure("percentiles-over-time", title, note, data, layout, height=height)


def _slices(requests: Sequence[Request], width: int) -> list[list[Request]]:
    last = int(max(request.planned_s for request in requests) / width)
    slices: list[list[Request]] = [[] for _ in range(last + 1)]
    for request in requests:
        slices[int(request.planned_s / width)].append(request)
    return slices


def _values(requests: Sequence[Request], metric: str) -> list[float]:
    known = (request.ttft_ms if metric == "ttft" else request.e2e_ms for request in requests)
    return [value for value in known if value is not None]


def _lines(metric: str, slices: Sequence[Sequence[float]], width: int) -> list[Trace]:
    """A line for each percentile that some slice is large enough for, at the slices' middles."""
    label, colour, _ = METRICS[metric]
    middles = [width * (number + 0.5) for number in range(len(slices))]
    traces = []
    for q, (least, dash) in _QUANTILES.items():
        values = [quantile(known, q) if len(known) >= least else None for known in slices]
        if any(value is not None for value in values):
            name = f"{label} {percentile_name(q)}"
            traces.append(line(name, middles, values, colour, line={"dash": dash}))
    return traces


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest of the sorted values that a share `q` does not exceed."""
    return ordered[max(0, ceil(q * len(ordered)) - 1)]
