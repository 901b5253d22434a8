# SPDX-License-Identifier: Apache-2.0
"""Figures of the load: what was planned, sent and answered; how clean the generator itself was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tritonctl.loadtest.report.figures import (
    DASHES,
    Figure,
    Trace,
    add_limit,
    line,
    on_row,
    series_colour,
)
from tritonctl.loadtest.report.latency import time_layout
from tritonctl.loadtest.report.run import FAILED, MICROSECONDS, Run

CPU_LIMIT = 0.8


def throughput(run: Run) -> Figure | None:
    """Requests planned, sent and completed in each second, tokens below."""
    if not run.requests:
        return None
    planned = per_second(run, (request.planned_s for request in run.requests))
    sent = per_second(run, (request.sent_s for request in run.requests))
    done = per_second(run, (r.end_s for r in run.requests if r.record.outcome == "ok"))
    failed = per_second(run, (r.end_s for r in run.requests if r.record.outcome in FAILED))
    data = [
        _steps("planned", planned, "--quiet", dash="dot", width=3),
        _steps("sent", sent, "--ttft", dash="dash"),
        _steps("completed", done, "--e2e"),
    ]
    if any(failed):
        data.append(_steps("failed", failed, "--bad", dash="dashdot"))
    rows = ["requests/s"]
    if run.streams:
        rows.append("tokens/s")
        data.append(on_row(_steps("tokens", tokens_per_second(run), "--itl"), 1))
    height = 460 if run.streams else 340
    layout = time_layout(run, height, rows, (3, 2)[: len(rows)])
    note = f"{sum(planned):,} planned, {sum(sent):,} sent, {sum(done):,} completed"
    note += f", {sum(failed):,} failed." if any(failed) else ", none failed."
    if run.streams:
        note += f" {sum(tokens_per_second(run)):,} tokens in all."
    return Figure("throughput", "Throughput", note, data, layout, height=height)


def per_second(run: Run, times: Iterable[float]) -> list[int]:
    """How many of the times lie in each second of the run."""
    counts = [0] * run.seconds
    for time in times:
        counts[max(0, min(run.seconds - 1, int(time)))] += 1
    return counts


def tokens_per_second(run: Run) -> list[int]:
    """Tokens that arrived in each second."""
    counts = [0] * run.seconds
    for request in run.requests:
        for at, tokens in zip(request.record.at, request.tokens, strict=True):
            counts[min(run.seconds - 1, int(at / MICROSECONDS))] += tokens
    return counts


def in_flight(run: Run) -> list[int]:
    """The most requests under way at once in each second."""
    changes = sorted(
        change for request in run.requests for change in ((request.sent_s, 1), (request.end_s, -1))
    )
    peaks, now, position = [], 0, 0
    for second in range(run.seconds):
        peak = now
        while position < len(changes) and changes[position][0] < second + 1:
            now += changes[position][1]
            peak = max(peak, now)
            position += 1
        peaks.append(peak)
    return peaks


def _steps(
    name: str, counts: list[int], colour: str, dash: str = "solid", width: float = 2
) -> Trace:
    """A count of each second, drawn as the span that it is of."""
    x = [float(second) for second in range(len(counts) + 1)]
    more: dict[str, Any] = {"line": {"dash": dash, "width": width, "shape": "hv"}}
    hover = "%{y} in second %{x}<extra>" + name + "</extra>"
    return line(name, x, [*map(float, counts), float(counts[-1])], colour, **more) | {
        "hovertemplate": hover
    }


def generator(run: Run) -> Figure | None:
    """The instrument itself: how late it sent, how busy it was."""
    if not run.progress:
        return None
    data = []
    for worker in sorted({int(entry["worker"]) for entry in run.progress}):
        mine = [entry for entry in run.progress if entry["worker"] == worker]
        times = [float(entry["t"]) for entry in mine]
        lag = [None if (us := e.get("lag_p99_us")) is None else us / 1e3 for e in mine]
        cpu = [None if (share := e.get("cpu")) is None else share * 100 for e in mine]
        style = {"dash": DASHES[worker % len(DASHES)]}
        colour = series_colour(worker)
        data.append(line(f"worker {worker}, lag", times, lag, colour, line=style))
        busy = line(f"worker {worker}, CPU", times, cpu, colour, line=style, showlegend=False)
        data.append(on_row(busy, 1))
    layout = time_layout(run, 420, ["P99 of send lag, ms", "CPU, % of a core"])
    add_limit(layout, CPU_LIMIT * 100, "above 80 % the run is not trusted", data, row=1)
    note = _generator_note(run)
    return Figure("generator", "The generator itself", note, data, layout, height=420)


def _generator_note(run: Run) -> str:
    cpu = [share for entry in run.progress if (share := entry.get("cpu")) is not None]
    lag = [us for entry in run.progress if (us := entry.get("lag_p99_us")) is not None]
    note = "How late requests left (sent minus planned), and how busy the generator was."
    if cpu and lag:
        worst = f"{max(lag) / 1e3:,.2f} ms"
        note += f" Worst second: lag {worst}, CPU {max(cpu) * 100:.0f} % of a core."
    return note
