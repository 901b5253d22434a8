# SPDX-License-Identifier: Apache-2.0
"""Figures of the server: where a request's time went, what waited, what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tritonctl.loadtest.analysis.server_figures import Scrape, cores_in_use
from tritonctl.loadtest.analysis.summary import ModelFigures
from tritonctl.loadtest.report.figures import (
    DASHES,
    SYMBOLS,
    Figure,
    Layout,
    Trace,
    add_limit,
    axis,
    base_layout,
    line,
    milliseconds,
    on_row,
    plain,
    rounded,
    series_colour,
)
from tritonctl.loadtest.report.latency import time_layout
from tritonctl.loadtest.report.load import in_flight
from tritonctl.loadtest.report.run import Run

GIB = 2**30
ENGINE_ROWS = 6
OFTEN = 1.1
COUNTERS = ("_total", "_count", "_sum", "_us", "_success", "_failure")
# Colour and pattern of each part of a request's time: Triton's, then a text engine's own.
PARTS = {
    "queue": ("--queue", "/"),
    "input": ("--input", "."),
    "infer": ("--infer", ""),
    "output": ("--output", "x"),
    "prefill": ("--prefill", "\\"),
    "decode": ("--decode", "-"),
}
_TOLD = ("queue", "infer", "prefill", "decode")

Points = tuple[list[float], list[float | None]]


def breakdown(run: Run) -> Figure | None:
    """Where a request spends its time: per composing model, stacked."""
    models = _models(run)
    if not models or run.summary.server is None:
        return None
    parts = {name: _parts(run.summary.server.models[name]) for name in models}
    data = [
        _bars(label, {name: known[label] for name, known in parts.items() if label in known})
        for label in PARTS
        if any(label in known for known in parts.values())
    ]
    height = 130 + 44 * len(models)
    layout = base_layout(height)
    layout["barmode"] = "stack"
    layout["xaxis"] = axis("ms for each request of that model", rangemode="tozero")
    layout["yaxis"] = axis("", autorange="reversed", type="category")
    layout["yaxis"] |= {"categoryarray": [plain(name) for name in models]}
    told = [f"{name}: {_in_words(known)}" for name, known in parts.items()]
    note = "; ".join(told) + "." + _asked_more_often(run, models)
    title = "Where the time goes, per composing model"
    return Figure("breakdown", title, note, data, layout, height=height)


def _parts(model: ModelFigures) -> dict[str, float]:
    """Milliseconds of each part; of a decoupled model the engine's own: Triton sees no answers."""
    if own := model.engine:
        queue = model.queue_ms + (own.queue_ms or 0.0)
        return {"queue": queue, "prefill": own.prefill_ms, "decode": own.decode_ms}
    if model.decoupled:
        return {"queue": model.queue_ms}
    names = ("queue", "input", "infer", "output")
    return {name: getattr(model, f"{name}_ms") for name in names}


def _in_words(parts: Mapping[str, float]) -> str:
    named = [f"{name} {milliseconds(parts[name])}" for name in _TOLD if name in parts]
    return ", ".join(named) + ("" if len(parts) > 1 else ", the rest is not published")


def _asked_more_often(run: Run, models: Sequence[str]) -> str:
    """Which steps run several times for a request: those behind a streaming engine."""
    figures = run.summary.server.models if run.summary.server else {}
    whole = figures.get(run.summary.model)
    if whole is None or not whole.rate:
        return ""
    often = {name: figures[name].rate / whole.rate for name in models}
    sentences = [
        f" {name} is asked {n:.1f} times for each." for name, n in often.items() if n > OFTEN
    ]
    return "".join(sentences)


def _models(run: Run) -> list[str]:
    """The composing models in the order of the ensemble; else all that the server measured."""
    measured = run.summary.server.models if run.summary.server else {}
    steps = [name for name in run.facts.get("ensemble") or [] if name in measured]
    if steps:
        return steps
    return [name for name, figures in measured.items() if figures.request_ms > 0]


def _bars(name: str, values: Mapping[str, float]) -> Trace:
    colour, pattern = PARTS[name]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [plain(model) for model in values],
        "x": [rounded(value) for value in values.values()],
        "marker": {
            "color": colour,
            "pattern": {"shape": pattern, "fillmode": "overlay", "fgcolor": "--card", "size": 7},
        },
        "hovertemplate": "%{y}: %{x:.4~g} ms<extra>" + name + "</extra>",
    }


def queue(run: Run) -> Figure | None:
    """Who waits where: requests in flight, pending per model, requests in a batch."""
    models = _models(run)
    if not run.server or not models:
        return None
    flight = [float(count) for count in in_flight(run)]
    times = [float(second) for second in range(len(flight))]
    data = [line("in flight, client", times, flight, "--quiet", line={"dash": "dot"})]
    for number, model in enumerate(models):
        colour, dash = series_colour(number), {"dash": DASHES[number % len(DASHES)]}
        pending = [(s["t"], s["models"][model].get("pending")) for s in _with(run, model)]
        waiting = [
            ([t for t, _ in pending], [count for _, count in pending]),
            _ratio(run, model, lambda m: m["queue_us"] / 1e3, lambda m: m["success"]),
            _ratio(run, model, lambda m: m["count"], lambda m: m["exec"]),
        ]
        for row, (at, values) in enumerate(waiting):
            drawn = line(model, at, values, colour, line=dash, showlegend=row == 0)
            data.append(on_row(drawn, row))
    layout = time_layout(run, 560, ["in flight, pending", "queue, ms", "batch factor"])
    note = (
        "Requests under way at the client, and waiting in front of each model; how long those of"
        " each second waited; how many inferences one execution carried."
    )
    return Figure("queue", "Queue and batches", note, data, layout, height=560)


def _ratio(
    run: Run, model: str, above: Callable[[Scrape], float], below: Callable[[Scrape], float]
) -> Points:
    """Growth of one counter over that of another, between scrapes; a gap where that is still."""
    times: list[float] = []
    values: list[float | None] = []
    for earlier, later in pairwise(_with(run, model)):
        before, after = earlier["models"][model], later["models"][model]
        events = below(after) - below(before)
        times.append(later["t"])
        values.append((above(after) - above(before)) / events if events > 0 else None)
    return times, values


def _with(run: Run, model: str) -> list[Scrape]:
    return [scrape for scrape in run.server if model in scrape["models"]]


def machine(run: Run) -> Figure | None:
    """CPU and memory of the server, the generator's CPU beside it."""
    cpu = cores_in_use(run.server)
    memory = [(s["t"], s["rss_bytes"] / GIB) for s in run.server if s.get("rss_bytes")]
    if not cpu and not memory:
        return None
    busy = [(p["t"], p["cpu"]) for p in run.progress if p.get("cpu") is not None]
    data = [
        line("server", list(cpu), list(cpu.values()), "--infer"),
        line(
            "generator", [t for t, _ in busy], [c for _, c in busy], "--quiet", line={"dash": "dot"}
        ),
        on_row(
            line(
                "memory", [t for t, _ in memory], [m for _, m in memory], "--itl", showlegend=False
            ),
            1,
        ),
    ]
    layout = time_layout(run, 440, ["CPU, cores", "server memory, GiB"])
    cores = (run.facts.get("host") or {}).get("cpus")
    if cores:
        add_limit(layout, cores, f"all {cores} cores", data, colour="--quiet")
    note = _machine_note(list(cpu.values()), [m for _, m in memory])
    return Figure("machine", "CPU and memory", note, data, layout, height=440)


def _machine_note(cpu: Sequence[float], memory: Sequence[float]) -> str:
    parts = ["Triton with its stub processes."]
    if cpu:
        parts.append(f"CPU at most {max(cpu):.2f} cores.")
    if memory:
        parts.append(f"Memory {memory[0]:.2f} GiB at the start, at most {max(memory):.2f} GiB.")
    return " ".join(parts)


def engine(run: Run) -> Figure | None:
    """The text engine's own figures that change: KV cache, slots."""
    names = _changing(run)
    if not names:
        return None
    data = []
    for number, name in enumerate(names):
        known = [(s["t"], s["engine"][name]) for s in run.server if name in s.get("engine", {})]
        symbol = {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 4}
        trace = line(
            name, [t for t, _ in known], [v for _, v in known], series_colour(number), marker=symbol
        )
        data.append(on_row(trace | {"mode": "lines+markers"}, number))
    height = 110 + 120 * len(names)
    layout = time_layout(run, height, [""] * len(names)) | {"showlegend": False}
    layout["annotations"] += [_row_title(layout, row, name) for row, name in enumerate(names)]
    note = "What the server publishes of its engine, as it is; values that never changed left out."
    return Figure("engine", "The engine", note, data, layout, height=height)


def _row_title(layout: Layout, row: int, name: str) -> Layout:
    """The name of a plot, above its left end."""
    top = layout["yaxis" if row == 0 else f"yaxis{row + 1}"]["domain"][1]
    place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top}
    font = {"size": 11.5, "color": "--quiet"}
    return place | {"yanchor": "bottom", "text": plain(name), "showarrow": False, "font": font}


def _changing(run: Run) -> list[str]:
    """Names of the engine's gauges that were not the same all the time, the first few."""
    seen: dict[str, set[float]] = {}
    for scrape in run.server:
        for name, value in scrape.get("engine", {}).items():
            if not name.partition("{")[0].endswith(COUNTERS):
                seen.setdefault(name, set()).add(value)
    return [name for name, values in sorted(seen.items()) if len(values) > 1][:ENGINE_ROWS]
