# SPDX-License-Identifier: Apache-2.0
"""Load figures: requests planned, sent and completed, and the generator's own behaviour."""

from __future__ import annotations

from collections.abc import Iterable

from tritonctl.loadtest.report.figures import (
    DASHES,
    ChartSeries,
    Dash,
    ReportFigure,
    Row,
    limit_line,
    line,
    series_colour,
)
from tritonctl.loadtest.report.latency import shaded_spans, time_axis
from tritonctl.loadtest.report.run import FAILED, MICROSECONDS, ReportedRun

CPU_LIMIT = 0.8


def throughput_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw the requests planned, sent and completed in each second, tokens below."""
    if not run.requests:
        return None
    planned = counts_per_second(run, (request.planned_s for request in run.requests))
    sent = counts_per_second(run, (request.sent_s for request in run.requests))
    done = counts_per_second(run, (r.end_s for r in run.requests if r.record.outcome == "ok"))
    failed = counts_per_second(run, (r.end_s for r in run.requests if r.record.outcome in FAILED))
    data = [
        _step_line("planned", planned, "--quiet", dash="dot", width=3),
        _step_line("sent", sent, "--ttft", dash="dash"),
        _step_line("completed", done, "--e2e"),
    ]
    if any(failed):
        data.append(_step_line("failed", failed, "--bad", dash="dashdot"))
    rows = [Row("requests/s", weight=3)]
    if run.is_streaming:
        rows.append(Row("tokens/s", weight=2))
        data.append(_step_line("tokens", tokens_per_second(run), "--itl", row=1))
    note = f"{sum(planned):,} planned, {sum(sent):,} sent, {sum(done):,} completed"
    note += f", {sum(failed):,} failed." if any(failed) else ", none failed."
    if run.is_streaming:
        note += f" {sum(tokens_per_second(run)):,} tokens in all."
    return ReportFigure(
        "throughput",
        "Throughput",
        note,
        data,
        time_axis(run),
        rows,
        spans=shaded_spans(run),
        height=460 if run.is_streaming else 340,
    )


def counts_per_second(run: ReportedRun, times: Iterable[float]) -> list[int]:
    """Count the times in each second of the run."""
    counts = [0] * run.seconds
    for time in times:
        counts[max(0, min(run.seconds - 1, int(time)))] += 1
    return counts


def tokens_per_second(run: ReportedRun) -> list[int]:
    """Count the tokens received in each second."""
    counts = [0] * run.seconds
    for request in run.requests:
        for at, tokens in zip(request.record.at, request.tokens, strict=True):
            counts[min(run.seconds - 1, int(at / MICROSECONDS))] += tokens
    return counts


def max_in_flight(run: ReportedRun) -> list[int]:
    """Return the maximum number of requests in flight in each second."""
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


def _step_line(
    name: str,
    counts: list[int],
    colour: str,
    *,
    dash: Dash = "solid",
    width: float = 2,
    row: int = 0,
) -> ChartSeries:
    """Draw a count per second as a step line."""
    x = [float(second) for second in range(len(counts) + 1)]
    return line(
        name,
        x,
        [*counts, counts[-1]],  # the last value closes the last step
        colour,
        row=row,
        dash=dash,
        width=width,
        steps=True,
        hover="{y} in second {x}",
    )


def generator_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw the generator's send lag and CPU."""
    if not run.progress:
        return None
    data: list[ChartSeries] = []
    for worker in sorted({int(entry["worker"]) for entry in run.progress}):
        worker_lines = [entry for entry in run.progress if entry["worker"] == worker]
        times = [float(entry["t"]) for entry in worker_lines]
        lag = [None if (us := e.get("lag_p99_us")) is None else us / 1e3 for e in worker_lines]
        cpu = [None if (share := e.get("cpu")) is None else share * 100 for e in worker_lines]
        dash, colour = DASHES[worker % len(DASHES)], series_colour(worker)
        data += [
            line(f"worker {worker}", times, lag, colour, dash=dash, hover="lag {y} ms at {x} s"),
            line(
                f"worker {worker}",
                times,
                cpu,
                colour,
                row=1,
                dash=dash,
                hover="CPU {y} % of a core at {x} s",
                legend=False,
            ),
        ]
    return ReportFigure(
        "generator",
        "The generator itself",
        _generator_note(run),
        data,
        time_axis(run),
        [Row("P99 of send lag, ms"), Row("CPU, % of a core")],
        [limit_line(CPU_LIMIT * 100, "above 80 % the run is invalid", data, row=1)],
        shaded_spans(run),
        height=420,
    )


def _generator_note(run: ReportedRun) -> str:
    cpu = [share for entry in run.progress if (share := entry.get("cpu")) is not None]
    lag = [us for entry in run.progress if (us := entry.get("lag_p99_us")) is not None]
    note = "Send lag (sent minus planned) and CPU of the generator."
    if cpu and lag:
        worst = f"{max(lag) / 1e3:,.2f} ms"
        note += f" Worst second: lag {worst}, CPU {max(cpu) * 100:.0f} % of a core."
    return note
