# SPDX-License-Identifier: Apache-2.0
"""Scrape the metrics of both versions and of the gateway every second, concurrently."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from tritonctl.errors import ServerError
from tritonctl.gateway.clusters import (
    FRONTEND,
    GRPC,
    TRITON_REST,
    fallback_cluster_name,
    slot_cluster_name,
)
from tritonctl.gateway.shares import ANONYMOUS, USERS
from tritonctl.protocol.metrics import RESIDENT, Metrics, merge_scrapes, scrape
from tritonctl.releases.slots import Slot
from tritonctl.rollout.counting import SUCCESS, CounterTracker, histogram_of_series
from tritonctl.rollout.environment import GatewayRequests, Observation
from tritonctl.rollout.judge import RESPONSE
from tritonctl.rollout.metrics import Counters, Distances, Histogram, Scrape
from tritonctl.supervision.process_usage import ServerUsage
from tritonctl.top.counters import Reading, sum_known
from tritonctl.top.figures import ModelLayout

# The timeout of a scrape.
_SCRAPE_SECONDS = 2.0
_CANDIDATE = 1  # its index; stable has 0
_FILTER = "upstream_rq_t%7Cmembership_healthy"  # the first matches total and time
_CLUSTER, _TIME = "envoy_cluster_name", "envoy_cluster_upstream_rq_time_bucket"

_HEALTHY = "envoy_cluster_membership_healthy"

Answer = TypeVar("Answer")


class DistanceSource(Protocol):
    """A source of distances from questions that both versions answered."""

    @property
    def offset(self) -> int:
        """Bytes of the log read so far."""

    def new_distances(self) -> Sequence[Distances]:
        """Return the distances since the last call."""


@dataclass(frozen=True)
class ScrapeTarget:
    """The metrics endpoints of a version's servers."""

    urls: Sequence[str]
    layout: ModelLayout
    usage: ServerUsage | None = None  # of its processes, if known

    def memory(self, metrics: Metrics) -> int | None:
        """Return the bytes of its largest server, from its processes or its metrics; None: unknown.

        A sum would grow with each server that an autoscaler adds, and the versions may have
        different numbers of servers.
        """
        if self.usage is not None:
            return self.usage.read()[1]
        resident_bytes = [sample.value for sample in metrics.samples(RESIDENT)]
        return int(max(resident_bytes)) if resident_bytes else None


@dataclass(frozen=True)
class EnvoyClusterNames:
    """The names of Envoy's clusters by use.

    Envoy records response times at the cluster of the route: for moved users that is the one which
    falls back on the opposite slot.
    """

    sent: Sequence[str] = ()  # count the requests to the candidate's servers
    candidate: Sequence[str] = ()  # record its response times
    stable: Sequence[str] = ()  # likewise
    ready: Sequence[str] = ()  # count stable's healthy servers


@dataclass(frozen=True)
class _GatewayMetrics:
    """The gateway's part of `Scrape` and `Observation`."""

    sent: int | None = None
    requests: GatewayRequests | None = None
    candidate: Histogram | None = None
    stable: Histogram | None = None
    stable_ready: bool | None = None


class MetricsScraper:
    """Scrapes both versions and the gateway. A version is None if it does not run.

    gateway: returns the URL of its metrics; None: do not scrape it. saved: the `saved_state` of an
    earlier scraper, used if it fits, so that smoothed counts do not fall in a new process.
    """

    def __init__(
        self,
        stable: ScrapeTarget | None,
        candidate: ScrapeTarget | None,
        gateway: Callable[[], str] | None,
        clusters: EnvoyClusterNames | None = None,
        shadowed: DistanceSource | None = None,
        saved: Mapping[str, Any] | None = None,
        scrape: Callable[[str, float], Metrics] = scrape,
    ) -> None:
        self._targets = [stable, candidate]
        self._trackers = self._new_trackers()
        self._successes: list[float] = []  # of each server of the candidate, at the last scrape
        self._restore(saved or {})
        self._gateway, self._clusters = gateway, clusters or EnvoyClusterNames()
        self._shadowed = shadowed
        self._scrape = scrape
        # One thread per endpoint: an endpoint that hangs is not scraped again meanwhile.
        self._pools = [ThreadPoolExecutor(1) for _ in range(3)]
        self._pending: list[Future[Any] | None] = [None, None, None]

    def observe(self, at: float) -> Observation:
        """Scrape everything now."""
        calls: list[Callable[[], Any]] = [
            lambda: self._counters(0),
            lambda: self._counters(1),
            self._scrape_gateway,
        ]
        futures = [self._submit(index, call) for index, call in enumerate(calls)]
        stable, candidate, gateway = (
            self._collect(index, future) for index, future in enumerate(futures)
        )
        gateway_metrics = gateway or _GatewayMetrics()
        answers = self._shadowed.new_distances() if self._shadowed is not None else ()
        scrape = Scrape(
            at,
            _with_response(stable, gateway_metrics.stable),
            _with_response(candidate, gateway_metrics.candidate),
            gateway_metrics.sent,
            answers,
            gateway_metrics.stable_ready,
        )
        return Observation(scrape, gateway_metrics.requests)

    def saved_state(self) -> Mapping[str, Any]:
        """Return the counters and the offset in the shadower's log."""
        counted = {
            "counted": [each.saved_state() for each in self._trackers],
            "successes": self._successes,
        }
        return counted | ({"shadowed": self._shadowed.offset} if self._shadowed else {})

    def _restore(self, saved: Mapping[str, Any]) -> None:
        try:
            for tracker, saved_counters in zip(self._trackers, saved["counted"], strict=True):
                tracker.restore(saved_counters)
            self._successes = [float(each) for each in saved["successes"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            self._trackers = self._new_trackers()

    def _new_trackers(self) -> list[CounterTracker]:
        return [CounterTracker(each.layout if each else ModelLayout()) for each in self._targets]

    def _submit(self, index: int, call: Callable[[], Answer]) -> Future[Answer] | None:
        pending = self._pending[index]
        if pending is not None and not pending.done():
            return None
        return self._pools[index].submit(call)

    def _collect(self, index: int, future: Future[Answer] | None) -> Answer | None:
        if future is None:
            return None
        self._pending[index] = future
        try:
            return future.result(_SCRAPE_SECONDS)
        except (TimeoutError, ServerError):
            return None

    def _counters(self, index: int) -> Counters | None:
        target = self._targets[index]
        if target is None:
            return None
        pages = [self._scrape(url, _SCRAPE_SECONDS) for url in target.urls]
        if target is self._targets[_CANDIDATE] and self._has_restarted_server(pages):
            return Counters(0, 0)
        metrics = pages[0] if len(pages) == 1 else merge_scrapes(pages)
        reading = Reading.of(metrics, 1.0, rss_bytes=target.memory(metrics))
        return self._trackers[index].counters(reading)

    def _has_restarted_server(self, pages: Sequence[Metrics]) -> bool:
        """Whether any server counts from 0 again: the sum may hide that."""
        previous, self._successes = self._successes, [page.total(SUCCESS) for page in pages]
        return any(
            current_count < previous_count
            for current_count, previous_count in zip(self._successes, previous, strict=False)
        )

    def _scrape_gateway(self) -> _GatewayMetrics | None:
        if self._gateway is None:
            return None
        url = f"{self._gateway()}?usedonly&filter={_FILTER}"
        metrics = self._scrape(url, _SCRAPE_SECONDS)
        sent = sum(
            metrics.total("envoy_cluster_upstream_rq", **{_CLUSTER: name})
            for name in self._clusters.sent
        )
        routes = {
            name: int(metrics.total("envoy_vhost_route_upstream_rq", envoy_route=name))
            for name in (USERS, ANONYMOUS)
        }
        healthy = sum_known(
            sample.value
            for name in self._clusters.ready
            for sample in metrics.samples(_HEALTHY, **{_CLUSTER: name})
        )
        return _GatewayMetrics(
            int(sent),
            GatewayRequests(sum(routes.values()), routes[USERS]),
            _response(metrics, self._clusters.candidate),
            _response(metrics, self._clusters.stable),
            None if healthy is None else healthy > 0,
        )


def envoy_cluster_names(candidate: Slot) -> EnvoyClusterNames:
    """Return the cluster names for a candidate in this slot and stable in the opposite one."""
    candidate_clusters, stable_clusters = (
        [
            cluster_name(name, slot)
            for name in (GRPC, TRITON_REST, FRONTEND)
            for cluster_name in (slot_cluster_name, fallback_cluster_name)
        ]
        for slot in (candidate, candidate.opposite)
    )
    sent = [slot_cluster_name(name, candidate) for name in (GRPC, TRITON_REST)]
    return EnvoyClusterNames(
        sent, candidate_clusters, stable_clusters, [slot_cluster_name(GRPC, candidate.opposite)]
    )


def _response(metrics: Metrics, clusters: Sequence[str]) -> Histogram | None:
    """Response times in milliseconds, over all protocols; None before the first response."""
    samples = [
        (float(sample.labels["le"]), sample.value)
        for name in clusters
        for sample in metrics.samples(_TIME, **{_CLUSTER: name})
    ]
    return histogram_of_series(samples)


def _with_response(counters: Counters | None, times: Histogram | None) -> Counters | None:
    if counters is None or times is None:
        return counters
    return replace(counters, times={**counters.times, RESPONSE: times})
