# SPDX-License-Identifier: Apache-2.0
"""What the server's own metrics say about the window of a load test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tritonctl.loadtest.analysis.summary import EngineTimes, Gauge, ModelFigures, ServerFigures
from tritonctl.protocol.model_config import instances_of, is_decoupled, steps_of

Scrape = Mapping[str, Any]
_SCRAPE_SECONDS = 1.0


def server_figures(
    scrapes: Sequence[Scrape], facts: Mapping[str, Any], from_s: float, to_s: float
) -> ServerFigures | None:
    """The figures between the first and the last scrape of the window; None with fewer than two."""
    inside = _inside(scrapes, from_s, to_s)
    if len(inside) < 2:  # noqa: PLR2004
        return None
    seconds = float(inside[-1]["t"]) - float(inside[0]["t"])
    if seconds <= 0:
        return None
    cpu = list(cores_in_use(inside).values())
    resident = [int(scrape["rss_bytes"]) for scrape in inside if scrape.get("rss_bytes")]
    machine = [float(s["host_cpu"]) for s in inside if s.get("host_cpu") is not None]
    return ServerFigures(
        seconds=seconds,
        models=_models(inside, facts, seconds),
        engine=_engine(inside),
        cpu=_mean(cpu),
        cpu_max=max(cpu, default=None),
        host_cpu=_mean(machine),
        host_cpus=(facts.get("host") or {}).get("cpus"),
        rss_bytes=max(resident, default=None),
    )


def _inside(scrapes: Sequence[Scrape], from_s: float, to_s: float) -> list[Scrape]:
    """The scrapes of the window; the last may come just after it.

    The first may come before it only when there was no warm-up, whose counts it would bring along.
    """
    early = [scrape for scrape in scrapes if float(scrape["t"]) < from_s]
    late = [s for s in scrapes if from_s <= float(s["t"]) <= to_s + _SCRAPE_SECONDS]
    return early[-1:] + late if from_s == 0 else late


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def cores_in_use(scrapes: Sequence[Scrape]) -> dict[float, float]:
    """Cores in use between one scrape and the next, by the time of the later one."""
    known = [(float(s["t"]), float(s["cpu"])) for s in scrapes if s.get("cpu") is not None]
    pairs = pairwise(known)
    # A stub that ended takes its seconds with it.
    return {t: max(b - a, 0.0) / (t - s) for (s, a), (t, b) in pairs if t > s}


def _models(
    scrapes: Sequence[Scrape], facts: Mapping[str, Any], seconds: float
) -> dict[str, ModelFigures]:
    names = list(dict.fromkeys(name for s in scrapes for name in s.get("models") or {}))
    changes = {
        name: _changes([s["models"][name] for s in scrapes if name in s["models"]])
        for name in names
    }
    steps = [name for name in facts.get("ensemble") or names if name in changes]
    configs = facts.get("models") or {}
    models = {
        name: _model(changes[name], seconds, _pending(scrapes, name), configs.get(name) or {})
        for name in names
    }
    # Where nobody knows a model's time, what Triton says; the report then shows no share.
    busy = {n: models[n].rate * (models[n].whole_ms or models[n].request_ms) for n in steps}
    whole = sum(busy.values())
    shares = {name: time / whole for name, time in busy.items() if whole}
    return {name: replace(model, share=shares.get(name)) for name, model in models.items()}


def _changes(readings: Sequence[Mapping[str, Any]]) -> Callable[[str], float]:
    """How much a counter rose; a model that was reloaded counts from zero again."""

    def change(counter: str) -> float:
        values = [float(r[counter]) for r in readings if r.get(counter) is not None]
        pairs = pairwise(values)
        return sum(later - earlier if later >= earlier else later for earlier, later in pairs)

    return change


def _pending(scrapes: Sequence[Scrape], name: str) -> float | None:
    pending = (s["models"].get(name, {}).get("pending") for s in scrapes)
    return max((float(value) for value in pending if value is not None), default=None)


def _model(
    change: Callable[[str], float],
    seconds: float,
    pending: float | None,
    config: Mapping[str, Any],
) -> ModelFigures:
    requests, executions = change("success"), change("exec")
    each = {
        f"{part}_ms": change(f"{part}_us") / requests / 1000 if requests else 0.0
        for part in ("queue", "input", "infer", "output", "request")
    }
    return ModelFigures(
        rate=requests / seconds,
        failures=change("failure"),
        batch_factor=change("count") / executions if executions else None,
        **each,
        share=None,
        pending_max=pending,
        max_batch_size=config.get("max_batch_size"),
        instances=instances_of(config) or None,
        decoupled=is_decoupled(config) and not steps_of(config),
        engine=_engine_times(change),
    )


def _engine_times(change: Callable[[str], float]) -> EngineTimes | None:
    """Of an engine's own counters; None where it has none, or answered nothing."""
    begun, ended = change("ttft_n"), change("e2e_n")
    if not begun or not ended:
        return None
    first = 1000 * change("ttft_s") / begun
    # What it does not publish does not rise either: an engine that tells it has waited a little.
    queue = 1000 * change("queued_s") / begun or None
    prefill = max(first - (queue or 0.0), 0.0)
    return EngineTimes(queue, prefill, max(1000 * change("e2e_s") / ended - first, 0.0))


def _engine(scrapes: Sequence[Scrape]) -> dict[str, Gauge]:
    names = dict.fromkeys(name for s in scrapes for name in s.get("engine") or {})
    readings = {
        name: [float(s["engine"][name]) for s in scrapes if _number(s, name)] for name in names
    }
    return {
        name: Gauge(sum(values) / len(values), max(values), values[-1] - values[0])
        for name, values in readings.items()
        if values
    }


def _number(scrape: Scrape, name: str) -> bool:
    return isinstance((scrape.get("engine") or {}).get(name), int | float)
