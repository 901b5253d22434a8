# SPDX-License-Identifier: Apache-2.0
"""The frontend's Prometheus metrics by tenant and model: requests, tokens, budgets, times.

Counting costs a dictionary access and a bisection, because it happens for every token;
`prometheus_client` writes the page on each scrape. Labels are bounded: they hold tenants and models
that the frontend has resolved, never text from a client. Beyond `MAX_LABEL_VALUES` of either the
label is `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
MAX_LABEL_VALUES = 500
OTHER_LABEL, NO_LABEL = "other", "none"

REQUESTS = "tritonctl_frontend_requests"
REFUSALS = "tritonctl_frontend_refusals"
PROMPT_TOKENS = "tritonctl_frontend_prompt_tokens"
OUTPUT_TOKENS = "tritonctl_frontend_output_tokens"
RESERVED_TOKENS = "tritonctl_frontend_reserved_tokens"
REFUNDED_TOKENS = "tritonctl_frontend_refunded_tokens"
EXPECTED_TOKENS = "tritonctl_frontend_expected_tokens"
PLACEMENTS = "tritonctl_frontend_placements"
ANSWERS = "tritonctl_frontend_answers"
IN_FLIGHT = "tritonctl_frontend_in_flight"
TTFT = "tritonctl_frontend_time_to_first_token_seconds"
ITL = "tritonctl_frontend_inter_token_latency_seconds"
DURATION = "tritonctl_frontend_request_duration_seconds"

# How a request ended. `ok`: the answer has no finish reason. `refused`: the status is below 500.
OUTCOMES = ("stop", "length", "tool_calls", "ok", "cancelled", "refused", "error")
# Why a request was refused or failed, grouped by remedy.
REASONS = (
    *("invalid", "too_long", "unauthorised", "unknown_model", "over_budget"),
    *("overloaded", "unavailable", "failed"),
)
COUNTERS = {
    REQUESTS: "Requests by endpoint and outcome",
    REFUSALS: "Requests answered with an error, by reason",
    PROMPT_TOKENS: "Tokens of prompts that a model has read",
    OUTPUT_TOKENS: "Tokens of answers",
    RESERVED_TOKENS: "Tokens reserved at admission: the prompt's and the most the answer may have",
    REFUNDED_TOKENS: "Tokens of these that were not used, given back",
    EXPECTED_TOKENS: "Tokens of prompts and of the answers that were expected, before placing",
    PLACEMENTS: "Answers placed on a server, by `replica` and `reason`",
    ANSWERS: "Requests that a model answered, by its version (the release's number) and outcome",
}
GAUGES = {IN_FLIGHT: "Requests that are being answered"}
HISTOGRAMS = {
    TTFT: "From the request's head to the first token of its answer",
    ITL: "Time per token after the first",
    DURATION: "From the request's head to the end of its answer",
}
LABELS = {
    REQUESTS: ("tenant", "model", "endpoint", "outcome"),
    REFUSALS: ("tenant", "model", "reason"),
    PLACEMENTS: ("replica", "reason"),
    ANSWERS: ("model", "version", "outcome"),
}
_TENANT_AND_MODEL = ("tenant", "model")
# Same as the engines' (python_backends/textlib/triton/engine_metrics.py), so that both compare.
BOUNDS = {
    TTFT: (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    ITL: (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5),
    DURATION: (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
}

Labels = tuple[str, ...]


@dataclass
class _Histogram:
    """Counts per bucket; `buckets` makes them cumulative."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float, times: int) -> None:
        """Add `times` events of this duration."""
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.total += seconds * times

    def buckets(self) -> list[tuple[str, float]]:
        """Pairs for `HistogramMetricFamily`: (le, number of events up to it)."""
        buckets, cumulative = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            cumulative += count
            buckets.append((str(bound), float(cumulative)))
        return buckets


class _BoundedLabel:
    """A label with at most `MAX_LABEL_VALUES` values."""

    def __init__(self) -> None:
        self._values: set[str] = {OTHER_LABEL, NO_LABEL}

    def bounded(self, name: str | None) -> str:
        if not name:
            return NO_LABEL
        if name not in self._values:
            if len(self._values) >= MAX_LABEL_VALUES:
                return OTHER_LABEL
            self._values.add(name)
        return name


class FrontendMetrics(Collector):
    """Metrics of one frontend since its start. Not thread-safe: for the event loop's thread."""

    def __init__(self) -> None:
        self._tenants, self._models, self._versions = (
            _BoundedLabel(),
            _BoundedLabel(),
            _BoundedLabel(),
        )
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in (*COUNTERS, *GAUGES)}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {name: {} for name in HISTOGRAMS}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def labels(self, tenant: str | None, model: str | None) -> tuple[str, str]:
        """The bounded label values of a tenant and a model; `none` for None."""
        return self._tenants.bounded(tenant), self._models.bounded(model)

    def version_label(self, version: str) -> str:
        """The bounded label value of a model's version."""
        return self._versions.bounded(version)

    def add(self, name: str, labels: Labels, value: float = 1) -> None:
        """Add to a counter, or to a gauge."""
        values = self._values[name]
        values[labels] = values.get(labels, 0) + value

    def observe(self, name: str, labels: Labels, seconds: float, times: int = 1) -> None:
        """Add `times` events of this duration to a histogram."""
        histograms = self._histograms[name]
        if (histogram := histograms.get(labels)) is None:
            histogram = histograms[labels] = _Histogram(BOUNDS[name])
        histogram.add(seconds, times)

    def page(self) -> bytes:
        """The page in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The metric families, for `prometheus_client`."""
        for table, kind in ((COUNTERS, CounterMetricFamily), (GAUGES, GaugeMetricFamily)):
            for name, text in table.items():
                family = kind(name, text, labels=LABELS.get(name, _TENANT_AND_MODEL))
                for labels, value in self._values[name].items():
                    family.add_metric(labels, value)
                yield family
        for name, text in HISTOGRAMS.items():
            histograms = HistogramMetricFamily(name, text, labels=_TENANT_AND_MODEL)
            for labels, histogram in self._histograms[name].items():
                histograms.add_metric(labels, histogram.buckets(), histogram.total)
            yield histograms
