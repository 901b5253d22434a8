# SPDX-License-Identifier: Apache-2.0
"""Server figures: times per model, queues, CPU and memory, engine gauges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from tritonctl.loadtest.analysis.counters import growth, is_counter
from tritonctl.loadtest.analysis.server_figures import Scrape, cores_in_use
from tritonctl.loadtest.analysis.summary import ModelLoadFigures
from tritonctl.loadtest.report.figures import (
    DASHES,
    SYMBOLS,
    Axis,
    ChartSeries,
    ReportFigure,
    Row,
    format_ms,
    limit_line,
    line,
    round_figure,
    series_colour,
)
from tritonctl.loadtest.report.latency import shaded_spans, time_axis
from tritonctl.loadtest.report.load import max_in_flight
from tritonctl.loadtest.report.run import ReportedRun

GIB = 2**30
ENGINE_ROWS = 6
REPEATED_CALLS = 1.1
# Colour and pattern of each part of a request's time: first Triton's, then a text engine's.
PARTS: dict[str, tuple[str, Literal["", "/", "\\", "-", "x", "."]]] = {
    "queue": ("--queue", "/"),
    "input": ("--input", "."),
    "infer": ("--infer", ""),
    "output": ("--output", "x"),
    "prefill": ("--prefill", "\\"),
    "decode": ("--decode", "-"),
}
_NOTED_PARTS = ("queue", "infer", "prefill", "decode")

Points = tuple[list[float], list[float | None]]


def breakdown_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw a request's time per composing model, stacked by part."""
    models = _models(run)
    if not models or run.summary.server is None:
        return None
    parts = {name: _parts(run.summary.server.models[name]) for name in models}
    data = [
        _bars(label, {name: times[label] for name, times in parts.items() if label in times})
        for label in PARTS
        if any(label in times for times in parts.values())
    ]
    descriptions = [f"{name}: {_describe_parts(times)}" for name, times in parts.items()]
    note = "; ".join(descriptions) + "." + _repeated_calls_note(run, models)
    return ReportFigure(
        "breakdown",
        "Where the time goes, per composing model",
        note,
        data,
        Axis("ms for each request of that model"),
        [Row("", categories=models)],
        height=130 + 44 * len(models),
    )


def _parts(model: ModelLoadFigures) -> dict[str, float]:
    """Return milliseconds per part; a decoupled model's come from the engine, if published."""
    if engine_times := model.engine:
        queue = model.queue_ms + (engine_times.queue_ms or 0.0)
        return {
            "queue": queue,
            "prefill": engine_times.prefill_ms,
            "decode": engine_times.decode_ms,
        }
    if model.decoupled:
        return {"queue": model.queue_ms}
    names = ("queue", "input", "infer", "output")
    return {name: getattr(model, f"{name}_ms") for name in names}


def _describe_parts(parts: Mapping[str, float]) -> str:
    descriptions = [f"{name} {format_ms(parts[name])}" for name in _NOTED_PARTS if name in parts]
    return ", ".join(descriptions) + ("" if len(parts) > 1 else ", other times are unpublished")


def _repeated_calls_note(run: ReportedRun, models: Sequence[str]) -> str:
    """Name the steps that run several times per request: those after a streaming engine."""
    figures = run.summary.server.models if run.summary.server else {}
    model_figures = figures.get(run.summary.model)
    if model_figures is None or not model_figures.rate:
        return ""
    calls_per_request = {name: figures[name].rate / model_figures.rate for name in models}
    sentences = [
        f" {name} runs {n:.1f} times per request."
        for name, n in calls_per_request.items()
        if n > REPEATED_CALLS
    ]
    return "".join(sentences)


def _models(run: ReportedRun) -> list[str]:
    """Return the composing models in ensemble order; without an ensemble all measured models."""
    measured = run.summary.server.models if run.summary.server else {}
    steps = [name for name in run.facts.get("ensemble") or [] if name in measured]
    if steps:
        return steps
    return [name for name, figures in measured.items() if figures.request_ms > 0]


def _bars(name: str, values: Mapping[str, float]) -> ChartSeries:
    colour, pattern = PARTS[name]
    times = [round_figure(value) for value in values.values()]
    return ChartSeries(
        "bars", name, times, list(values), colour, hover="{y}: {x} ms", pattern=pattern
    )


def queue_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw requests in flight, pending requests, queue time and batch factor per model."""
    models = _models(run)
    if not run.server or not models:
        return None
    in_flight = [float(count) for count in max_in_flight(run)]
    times = [float(second) for second in range(len(in_flight))]
    hover = "{y} requests at {x} s"
    data = [line("in flight, client", times, in_flight, "--quiet", dash="dot", hover=hover)]
    for number, model in enumerate(models):
        pending = [(s["t"], s["models"][model].get("pending")) for s in _scrapes_of(run, model)]
        waiting = {
            "{y} pending at {x} s": ([t for t, _ in pending], [count for _, count in pending]),
            "queue {y} ms at {x} s": _ratio(run, model, "queue_us", "success", scale=1e-3),
            "batch factor {y} at {x} s": _ratio(run, model, "count", "exec"),
        }
        data += [
            line(
                model,
                at,
                values,
                series_colour(number),
                row=row,
                dash=DASHES[number % len(DASHES)],
                hover=hover,
                legend=row == 0,
            )
            for row, (hover, (at, values)) in enumerate(waiting.items())
        ]
    note = (
        "Requests in flight at the client and pending per model; mean queue time per second;"
        " inferences per execution."
    )
    return ReportFigure(
        "queue",
        "Queue and batches",
        note,
        data,
        time_axis(run),
        [Row("in flight, pending"), Row("queue, ms"), Row("batch factor")],
        spans=shaded_spans(run),
        height=560,
    )


def _ratio(
    run: ReportedRun,
    model: str,
    numerator: str,
    denominator: str,
    *,
    scale: float = 1.0,
) -> Points:
    """Divide one counter's increase by another's between scrapes.

    A gap where nothing was counted, or where a counter is unknown.
    """
    times: list[float] = []
    values: list[float | None] = []
    for earlier, later in pairwise(_scrapes_of(run, model)):
        total, events = (
            _growth_between(earlier["models"][model], later["models"][model], counter)
            for counter in (numerator, denominator)
        )
        times.append(later["t"])
        values.append(scale * total / events if events and total is not None else None)
    return times, values


def _growth_between(earlier: Scrape, later: Scrape, counter: str) -> float | None:
    """Return a counter's growth; None if it is absent on either side."""
    if earlier.get(counter) is None or later.get(counter) is None:
        return None
    return growth(float(earlier[counter]), float(later[counter]))


def _scrapes_of(run: ReportedRun, model: str) -> list[Scrape]:
    return [scrape for scrape in run.server if model in (scrape.get("models") or {})]


def machine_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw CPU and memory of the server, and the generator's CPU."""
    cpu = cores_in_use(run.server)
    memory = [(s["t"], s["rss_bytes"] / GIB) for s in run.server if s.get("rss_bytes")]
    if not cpu and not memory:
        return None
    busy = [(p["t"], p["cpu"]) for p in run.progress if p.get("cpu") is not None]
    hover = "{y} cores at {x} s"
    data = [
        line("server", list(cpu), list(cpu.values()), "--infer", hover=hover),
        line(
            "generator",
            [t for t, _ in busy],
            [c for _, c in busy],
            "--quiet",
            dash="dot",
            hover=hover,
        ),
        line(
            "memory",
            [t for t, _ in memory],
            [m for _, m in memory],
            "--itl",
            row=1,
            hover="{y} GiB at {x} s",
            legend=False,
        ),
    ]
    cores = (run.facts.get("host") or {}).get("cpus")
    limits = [limit_line(cores, f"all {cores} cores", data, colour="--quiet")] if cores else []
    return ReportFigure(
        "machine",
        "CPU and memory",
        _machine_note(list(cpu.values()), [m for _, m in memory]),
        data,
        time_axis(run),
        [Row("CPU, cores"), Row("server memory, GiB")],
        limits,
        shaded_spans(run),
        height=440,
    )


def _machine_note(cpu: Sequence[float], memory: Sequence[float]) -> str:
    parts = ["Triton and its stub processes."]
    if cpu:
        parts.append(f"CPU at most {max(cpu):.2f} cores.")
    if memory:
        parts.append(f"Memory {memory[0]:.2f} GiB at the start, at most {max(memory):.2f} GiB.")
    return " ".join(parts)


def engine_figure(run: ReportedRun) -> ReportFigure | None:
    """Draw the text engine's gauges that change, such as KV cache and slots."""
    names = _changing_gauges(run)
    if not names:
        return None
    data = []
    for number, name in enumerate(names):
        readings = [(s["t"], s["engine"][name]) for s in run.server if name in s.get("engine", {})]
        data.append(
            line(
                name,
                [t for t, _ in readings],
                [v for _, v in readings],
                series_colour(number),
                row=number,
                symbol=SYMBOLS[number % len(SYMBOLS)],
                hover="{y} at {x} s",
            )
        )
    return ReportFigure(
        "engine",
        "The engine",
        "Metrics of the engine as the server publishes them, without constant ones.",
        data,
        time_axis(run),
        [Row("", heading=name) for name in names],
        spans=shaded_spans(run),
        height=110 + 120 * len(names),
        legend=False,
    )


def _changing_gauges(run: ReportedRun) -> list[str]:
    """Return the names of the first few engine gauges that changed."""
    seen: dict[str, set[float]] = {}
    for scrape in run.server:
        for name, value in scrape.get("engine", {}).items():
            if not is_counter(name):
                seen.setdefault(name, set()).add(value)
    return [name for name, values in sorted(seen.items()) if len(values) > 1][:ENGINE_ROWS]
