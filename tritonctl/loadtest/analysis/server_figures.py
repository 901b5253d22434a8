# SPDX-License-Identifier: Apache-2.0
"""Compute the server's figures in the window of a load test from its own metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tritonctl.loadtest.analysis.counters import counter_increase, is_counter, reload_times
from tritonctl.loadtest.analysis.summary import (
    EngineTimes,
    Gauge,
    ModelLoadFigures,
    ServerLoadFigures,
)
from tritonctl.protocol.model_config import instances_of, is_decoupled, steps_of

Scrape = Mapping[str, Any]
_SCRAPE_SECONDS = 1.0


def server_figures(
    scrapes: Sequence[Scrape], facts: Mapping[str, Any], from_s: float, to_s: float
) -> ServerLoadFigures | None:
    """Return the figures between the window's first and last scrape; None without two scrapes."""
    samples = _window_scrapes(scrapes, from_s, to_s)
    if len(samples) < 2:  # noqa: PLR2004
        return None
    seconds = float(samples[-1]["t"]) - float(samples[0]["t"])
    if seconds <= 0:
        return None
    cpu = list(cores_in_use(samples).values())
    resident = [int(scrape["rss_bytes"]) for scrape in samples if scrape.get("rss_bytes")]
    machine = [float(s["host_cpu"]) for s in samples if s.get("host_cpu") is not None]
    return ServerLoadFigures(
        seconds=seconds,
        models=_model_figures(samples, facts, seconds),
        engine=_engine_gauges(samples),
        cpu=_mean(cpu),
        cpu_max=max(cpu, default=None),
        host_cpu=_mean(machine),
        host_cpus=(facts.get("host") or {}).get("cpus"),
        rss_bytes=max(resident, default=None),
    )


def _window_scrapes(scrapes: Sequence[Scrape], from_s: float, to_s: float) -> list[Scrape]:
    """Return the scrapes of the window; the last may come just after it.

    The first may come before it only without a warm-up, because it would include its counts.
    """
    early = [scrape for scrape in scrapes if float(scrape["t"]) < from_s]
    late = [s for s in scrapes if from_s <= float(s["t"]) <= to_s + _SCRAPE_SECONDS]
    return early[-1:] + late if from_s == 0 else late


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def cores_in_use(scrapes: Sequence[Scrape]) -> dict[float, float]:
    """Return the cores in use between scrapes, by the time of the later one."""
    readings = [(float(s["t"]), float(s["cpu"])) for s in scrapes if s.get("cpu") is not None]
    pairs = pairwise(readings)
    # The CPU seconds of an exited stub disappear from the sum.
    return {t: max(b - a, 0.0) / (t - s) for (s, a), (t, b) in pairs if t > s}


def _model_figures(
    scrapes: Sequence[Scrape], facts: Mapping[str, Any], seconds: float
) -> dict[str, ModelLoadFigures]:
    names = list(dict.fromkeys(name for s in scrapes for name in s.get("models") or {}))
    changes = {
        name: _counter_increases([s["models"].get(name) or {} for s in scrapes]) for name in names
    }
    steps = [name for name in facts.get("ensemble") or names if name in changes]
    configs = facts.get("models") or {}
    models = {
        name: replace(
            _build_model_figures(
                changes[name], seconds, _max_pending(scrapes, name), configs.get(name) or {}
            ),
            reloads=len(reload_times(scrapes, name)),
        )
        for name in names
    }
    # Use Triton's time for a model with unpublished times; the report then omits all shares.
    busy_time = {n: models[n].rate * (models[n].total_ms or models[n].request_ms) for n in steps}
    total = sum(busy_time.values())
    shares = {name: time / total for name, time in busy_time.items() if total}
    return {name: replace(model, share=shares.get(name)) for name, model in models.items()}


def _counter_increases(readings: Sequence[Mapping[str, Any]]) -> Callable[[str], float]:
    """Return a function for a counter's increase; a reloaded model counts from zero again."""
    return lambda counter: counter_increase(reading.get(counter) for reading in readings)


def _max_pending(scrapes: Sequence[Scrape], name: str) -> float | None:
    pending = (s["models"].get(name, {}).get("pending") for s in scrapes)
    return max((float(value) for value in pending if value is not None), default=None)


def _build_model_figures(
    increase: Callable[[str], float],
    seconds: float,
    pending: float | None,
    config: Mapping[str, Any],
) -> ModelLoadFigures:
    requests, executions = increase("success"), increase("exec")
    mean_times: dict[str, Any] = {
        f"{part}_ms": increase(f"{part}_us") / requests / 1000 if requests else 0.0
        for part in ("queue", "input", "infer", "output", "request")
    }
    return ModelLoadFigures(
        rate=requests / seconds,
        failures=increase("failure"),
        batch_factor=increase("count") / executions if executions else None,
        **mean_times,
        share=None,
        pending_max=pending,
        max_batch_size=config.get("max_batch_size"),
        instances=instances_of(config) or None,
        decoupled=is_decoupled(config) and not steps_of(config),
        engine=_engine_times(increase),
    )


def _engine_times(increase: Callable[[str], float]) -> EngineTimes | None:
    """Return the times from an engine's counters; None without counters or responses."""
    started, finished = increase("ttft_n"), increase("e2e_n")
    if not started or not finished:
        return None
    first = 1000 * increase("ttft_s") / started
    # An unpublished counter does not rise; an engine that publishes it always waits a little.
    queue = 1000 * increase("queued_s") / started or None
    prefill = max(first - (queue or 0.0), 0.0)
    return EngineTimes(queue, prefill, max(1000 * increase("e2e_s") / finished - first, 0.0))


def _engine_gauges(scrapes: Sequence[Scrape]) -> dict[str, Gauge]:
    names = dict.fromkeys(name for s in scrapes for name in s.get("engine") or {})
    readings = {
        name: [float(s["engine"][name]) for s in scrapes if _has_number(s, name)] for name in names
    }
    return {
        name: Gauge(
            sum(values) / len(values),
            max(values),
            counter_increase(values) if is_counter(name) else values[-1] - values[0],
        )
        for name, values in readings.items()
        if values
    }


def _has_number(scrape: Scrape, name: str) -> bool:
    return isinstance((scrape.get("engine") or {}).get(name), int | float)
