# SPDX-License-Identifier: Apache-2.0
"""The figures of a load test while it runs, merged from the workers' progress lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from hdrh.histogram import HdrHistogram

from tritonctl.host.progress import Progress, Silent
from tritonctl.loadtest.analysis.counters import counter_increase
from tritonctl.loadtest.analysis.percentiles import histogram_percentiles, new_histogram

METRICS = ("ttft", "itl", "e2e")
RECENT_SECONDS = 10
_US_PER_MS = 1000
_COUNTS = ("planned", "sent", "done", "failed", "in_flight", "tokens", "empty")


@dataclass(frozen=True)
class Quantiles:
    """Median and 99th percentile of `n` values, in milliseconds; for live views only."""

    n: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class EngineFigures:
    """The server's figures for the computing model, over the last seconds."""

    model: str
    queue_ms: float | None
    batch_factor: float | None
    waiting: float | None
    active: float | None


@dataclass(frozen=True)
class LiveFigures:
    """The figures of all workers. Rates and `recent` cover the last ten seconds."""

    seconds: float
    remaining_seconds: float | None
    planned: int
    sent: int
    done: int
    failed: int
    in_flight: int
    tokens: int
    offered_rps: float
    achieved_rps: float
    tokens_per_s: float
    generator_cpu: float | None  # of the busiest worker, share of a core
    lag_p99_ms: float | None  # of the latest worker
    run: Mapping[str, Quantiles]
    recent: Mapping[str, Quantiles]
    histograms: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    engine: EngineFigures | None = None
    empty: int = 0  # answers without tokens

    def share_over(self, metric: str, limit_ms: float) -> float:
        """Return the share of responses so far above the limit; 0 without responses."""
        histogram = self.histograms.get(metric)
        if histogram is None or not histogram.get_total_count():
            return 0.0
        # The histogram has buckets only: the limit's own bucket counts as within.
        highest = histogram.get_highest_equivalent_value(int(limit_ms * _US_PER_MS))
        within = sum(
            item.count_added_in_this_iter_step
            for item in histogram.get_recorded_iterator()
            if item.value_iterated_to <= highest
        )
        return float(1 - within / histogram.get_total_count())


ShowFigures = Callable[[LiveFigures], None]


class LoadBoard(Progress, Protocol):
    """Receives the steps of a load test and, each second, its figures."""

    def watch_load(self, title: str) -> AbstractContextManager[ShowFigures]:
        """Return a context whose function displays figures."""


class SilentBoard(Silent):
    """A board that displays nothing."""

    @contextmanager
    def watch_load(self, title: str) -> Iterator[ShowFigures]:  # noqa: ARG002 - the Protocol's signature
        """Ignore all figures."""
        yield lambda _: None


class LiveMerger:
    """Merges the progress lines of all workers."""

    def __init__(self, expected_seconds: float | None) -> None:
        self._expected_seconds = expected_seconds
        self._run = {name: new_histogram() for name in METRICS}
        self._recent: deque[tuple[float, dict[str, Any]]] = deque()
        self._lines: dict[int, deque[dict[str, Any]]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a worker's line of one second; ignore its last line, which covers the whole run."""
        if "t" not in line:
            return
        self._lines.setdefault(int(line["worker"]), deque()).append(dict(line))
        second = {name: HdrHistogram.decode(line[name]) for name in METRICS if line.get(name)}
        for name, histogram in second.items():
            self._run[name].add(histogram)
        self._recent.append((float(line["t"]), second))
        self._drop_old(float(line["t"]) - RECENT_SECONDS)

    def _drop_old(self, cutoff: float) -> None:
        while self._recent and self._recent[0][0] <= cutoff:
            self._recent.popleft()
        for lines in self._lines.values():
            # Keep the last line before the cutoff: rates are differences.
            while len(lines) > 1 and lines[1]["t"] <= cutoff:
                lines.popleft()

    def figures(self, engine: EngineFigures | None = None) -> LiveFigures | None:
        """Return the current figures; None before the first line."""
        if not self._lines:
            return None
        latest = [lines[-1] for lines in self._lines.values()]
        seconds = max(float(line["t"]) for line in latest)
        counts = {name: sum(int(line.get(name) or 0) for line in latest) for name in _COUNTS}
        return LiveFigures(
            seconds=seconds,
            remaining_seconds=None
            if self._expected_seconds is None
            else max(0.0, self._expected_seconds - seconds),
            **counts,
            offered_rps=self._rate("planned"),
            achieved_rps=self._rate("done"),
            tokens_per_s=self._rate("tokens"),
            generator_cpu=_max_value(latest, "cpu"),
            lag_p99_ms=_milliseconds(_max_value(latest, "lag_p99_us")),
            run=_quantiles(self._run),
            recent=_quantiles(self._recent_histograms()),
            histograms=self._run,
            engine=engine,
        )

    def _rate(self, name: str) -> float:
        """Return the rate per second of all workers over the last ten seconds."""
        total = 0.0
        for lines in self._lines.values():
            first = lines[0] if len(lines) > 1 else {"t": 0.0, name: 0}
            span = float(lines[-1]["t"]) - float(first["t"])
            increase = int(lines[-1].get(name) or 0) - int(first.get(name) or 0)
            total += increase / span if span > 0 else 0.0
        return total

    def _recent_histograms(self) -> dict[str, Any]:
        merged = {name: new_histogram() for name in METRICS}
        for _, second in self._recent:
            for name, histogram in second.items():
                merged[name].add(histogram)
        return merged


def engine_figures(samples: Sequence[Mapping[str, Any]], model: str) -> EngineFigures | None:
    """Return the figures between the first and the last of these lines of server.jsonl."""
    if not samples:
        return None
    last = samples[-1]["models"].get(model, {})
    readings = [sample["models"].get(model, {}) for sample in samples]
    increases = {name: counter_increase(reading.get(name) for reading in readings) for name in last}
    gauges = samples[-1]["engine"]
    pending = last.get("pending")
    return EngineFigures(
        model=model,
        queue_ms=_milliseconds(_ratio(increases.get("queue_us"), increases.get("success"))),
        batch_factor=_ratio(increases.get("count"), increases.get("exec")),
        waiting=gauges.get("tritonctl_waiting_streams", pending),
        active=gauges.get("tritonctl_active_streams"),
    )


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _quantiles(histograms: Mapping[str, Any]) -> dict[str, Quantiles]:
    quantiles = {}
    for name, histogram in histograms.items():
        if ms := histogram_percentiles(histogram, [0.5, 0.99]):
            quantiles[name] = Quantiles(histogram.get_total_count(), ms[0.5], ms[0.99])
    return quantiles


def _max_value(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return max((float(line[name]) for line in lines if line.get(name) is not None), default=None)


def _milliseconds(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / _US_PER_MS
