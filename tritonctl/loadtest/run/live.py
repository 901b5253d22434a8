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
from tritonctl.loadtest.analysis.percentiles import histogram_percentiles, new_histogram

METRICS = ("ttft", "itl", "e2e")
RECENT_SECONDS = 10
_US_PER_MS = 1000
_COUNTS = ("planned", "sent", "done", "failed", "in_flight", "tokens")


@dataclass(frozen=True)
class Quantiles:
    """Median and 99th percentile of `n` values, milliseconds; to watch, not to judge by."""

    n: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class EngineFigures:
    """The server's own figures of the model that does the work, over the last seconds."""

    model: str
    queue_ms: float | None
    batch_factor: float | None
    waiting: float | None
    active: float | None


@dataclass(frozen=True)
class LiveFigures:
    """The figures of all workers together. Rates and `recent` cover the last ten seconds."""

    seconds: float
    seconds_left: float | None
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

    def share_over(self, metric: str, limit_ms: float) -> float:
        """The share of answers so far that took longer; 0 without any."""
        histogram = self.histograms.get(metric)
        if histogram is None or not histogram.get_total_count():
            return 0.0
        # Only buckets are known: the bucket of the limit itself counts as within.
        highest = histogram.get_highest_equivalent_value(int(limit_ms * _US_PER_MS))
        within = sum(
            item.count_added_in_this_iter_step
            for item in histogram.get_recorded_iterator()
            if item.value_iterated_to <= highest
        )
        return float(1 - within / histogram.get_total_count())


Show = Callable[[LiveFigures], None]


class LoadBoard(Progress, Protocol):
    """Receives the steps of a load test, and each second its figures."""

    def watch_load(self, title: str) -> AbstractContextManager[Show]:
        """Show the figures while the context lasts."""


class SilentBoard(Silent):
    """A board that shows nothing."""

    @contextmanager
    def watch_load(self, title: str) -> Iterator[Show]:  # noqa: ARG002 - the Protocol's signature
        """Show nothing."""
        yield lambda _: None


class LiveMerger:
    """Adds up progress lines."""

    def __init__(self, expected_seconds: float | None) -> None:
        self._expected = expected_seconds
        self._run = {name: new_histogram() for name in METRICS}
        self._recent: deque[tuple[float, dict[str, Any]]] = deque()
        self._lines: dict[int, deque[dict[str, Any]]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """A worker's line of one second; its last line, of the whole run, adds nothing."""
        if "t" not in line:
            return
        self._lines.setdefault(int(line["worker"]), deque()).append(dict(line))
        second = {name: HdrHistogram.decode(line[name]) for name in METRICS if line.get(name)}
        for name, histogram in second.items():
            self._run[name].add(histogram)
        self._recent.append((float(line["t"]), second))
        self._forget(float(line["t"]) - RECENT_SECONDS)

    def _forget(self, before: float) -> None:
        while self._recent and self._recent[0][0] <= before:
            self._recent.popleft()
        for lines in self._lines.values():
            # The last line from before stays: rates are differences.
            while len(lines) > 1 and lines[1]["t"] <= before:
                lines.popleft()

    def figures(self, engine: EngineFigures | None = None) -> LiveFigures | None:
        """The figures now; None before the first line."""
        if not self._lines:
            return None
        latest = [lines[-1] for lines in self._lines.values()]
        seconds = max(float(line["t"]) for line in latest)
        counts = {name: sum(int(line.get(name) or 0) for line in latest) for name in _COUNTS}
        return LiveFigures(
            seconds=seconds,
            seconds_left=None if self._expected is None else max(0.0, self._expected - seconds),
            **counts,
            offered_rps=self._rate("planned"),
            achieved_rps=self._rate("done"),
            tokens_per_s=self._rate("tokens"),
            generator_cpu=_largest(latest, "cpu"),
            lag_p99_ms=_milliseconds(_largest(latest, "lag_p99_us")),
            run=_quantiles(self._run),
            recent=_quantiles(self._last_seconds()),
            histograms=self._run,
            engine=engine,
        )

    def _rate(self, name: str) -> float:
        """Per second, over the last ten seconds, of all workers."""
        total = 0.0
        for lines in self._lines.values():
            first = lines[0] if len(lines) > 1 else {"t": 0.0, name: 0}
            span = float(lines[-1]["t"]) - float(first["t"])
            grown = int(lines[-1].get(name) or 0) - int(first.get(name) or 0)
            total += grown / span if span > 0 else 0.0
        return total

    def _last_seconds(self) -> dict[str, Any]:
        merged = {name: new_histogram() for name in METRICS}
        for _, second in self._recent:
            for name, histogram in second.items():
                merged[name].add(histogram)
        return merged


def engine_figures(samples: Sequence[Mapping[str, Any]], model: str) -> EngineFigures | None:
    """The figures between the first and the last of some lines of server.jsonl."""
    if not samples:
        return None
    first, last = (sample["models"].get(model, {}) for sample in (samples[0], samples[-1]))
    grown = {name: last[name] - first.get(name, 0) for name in last}
    gauges = samples[-1]["engine"]
    pending = last.get("pending")
    return EngineFigures(
        model=model,
        queue_ms=_milliseconds(_ratio(grown.get("queue_us"), grown.get("success"))),
        batch_factor=_ratio(grown.get("count"), grown.get("exec")),
        waiting=gauges.get("tritonctl_waiting_streams", pending),
        active=gauges.get("tritonctl_active_streams"),
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _quantiles(histograms: Mapping[str, Any]) -> dict[str, Quantiles]:
    quantiles = {}
    for name, histogram in histograms.items():
        if ms := histogram_percentiles(histogram, [0.5, 0.99]):
            quantiles[name] = Quantiles(histogram.get_total_count(), ms[0.5], ms[0.99])
    return quantiles


def _largest(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return max((float(line[name]) for line in lines if line.get(name) is not None), default=None)


def _milliseconds(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / _US_PER_MS
