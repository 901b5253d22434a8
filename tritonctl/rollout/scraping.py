# SPDX-License-Identifier: Apache-2.0
"""A look each second: both versions' metrics and the gateway's, side by side, none waits long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from tritonctl.errors import ServerError
from tritonctl.protocol.metrics import RESIDENT, Metrics, added, scrape
from tritonctl.rollout.controller import Reached, Seen
from tritonctl.rollout.counting import SUCCESS, Counting, of_series
from tritonctl.rollout.judge import RESPONSE
from tritonctl.rollout.metrics import Counters, Distances, Histogram, Scrape
from tritonctl.server.gateway.clusters import FRONTEND, GRPC, REST, of_slot, slot_first
from tritonctl.server.gateway.shares import OTHERS, USERS
from tritonctl.server.slots import Slot
from tritonctl.server.top.counters import Reading, sum_known
from tritonctl.server.top.figures import Layout
from tritonctl.server.usage import ServerUsage

# Beyond it a version is not heard of in this look.
_SECONDS = 2.0
_CANDIDATE = 1  # its place; stable has 0
_FILTER = "upstream_rq_t%7Cmembership_healthy"  # of the first: total and time
_CLUSTER, _TIME = "envoy_cluster_name", "envoy_cluster_upstream_rq_time_bucket"

_HEALTHY = "envoy_cluster_membership_healthy"

Answer = TypeVar("Answer")


class Shadowed(Protocol):
    """The questions that were asked of both versions."""

    @property
    def offset(self) -> int:
        """Bytes of their lines that were read so far."""

    def news(self) -> Sequence[Distances]:
        """Those since the last call."""


@dataclass(frozen=True)
class Version:
    """Where the metrics of a version's servers are. usage: of its processes, where known."""

    urls: Sequence[str]
    layout: Layout
    usage: ServerUsage | None = None

    def memory(self, metrics: Metrics) -> int | None:
        """Bytes of its largest server, of its processes or as these metrics tell; None: unknown.

        A sum would grow with each server that an autoscaler adds, and be compared with that of a
        version which has another number of them.
        """
        if self.usage is not None:
            return self.usage.read()[1]
        told = [sample.value for sample in metrics.samples(RESIDENT)]
        return int(max(told)) if told else None


@dataclass(frozen=True)
class Clusters:
    """Envoy's names. sent: that count what was sent to the candidate's servers.

    candidate, stable: that count how long whole answers took. Envoy does so where a route leads:
    for users who were moved, that is the cluster which falls back on the other slot. ready: that
    know which of stable's servers are.
    """

    sent: Sequence[str] = ()
    candidate: Sequence[str] = ()
    stable: Sequence[str] = ()
    ready: Sequence[str] = ()


@dataclass(frozen=True)
class _AtGateway:
    """What `Scrape` and `Seen` have of it."""

    sent: int | None = None
    reached: Reached | None = None
    candidate: Histogram | None = None
    stable: Histogram | None = None
    stable_ready: bool | None = None


class MetricsScraper:
    """Looks at the versions and at the gateway. None for a version: it does not run.

    gateway: says where its metrics are; None: it is not asked. kept: what an earlier one was about,
    with which it goes on where that fits: counts that have been smoothed do not fall for a new
    process.
    """

    def __init__(
        self,
        stable: Version | None,
        candidate: Version | None,
        gateway: Callable[[], str] | None,
        clusters: Clusters | None = None,
        shadowed: Shadowed | None = None,
        kept: Mapping[str, Any] | None = None,
        scrape: Callable[[str, float], Metrics] = scrape,
    ) -> None:
        self._versions = [stable, candidate]
        self._counting = self._new_counting()
        self._successes: list[float] = []  # of each server of the candidate, at the last look
        self._go_on(kept or {})
        self._gateway, self._clusters = gateway, clusters or Clusters()
        self._shadowed = shadowed
        self._scrape = scrape
        # A thread each, and no more than one at a time: what hangs is not asked again.
        self._pools = [ThreadPoolExecutor(1) for _ in range(3)]
        self._late: list[Future[Any] | None] = [None, None, None]

    def look(self, at: float) -> Seen:
        """Now."""
        calls: list[Callable[[], Any]] = [
            lambda: self._counters(0),
            lambda: self._counters(1),
            self._at_gateway,
        ]
        waiting = [self._begin(place, call) for place, call in enumerate(calls)]
        stable, candidate, gateway = (
            self._end(place, future) for place, future in enumerate(waiting)
        )
        there = gateway or _AtGateway()
        answers = self._shadowed.news() if self._shadowed is not None else ()
        scrape = Scrape(
            at,
            _with_response(stable, there.stable),
            _with_response(candidate, there.candidate),
            there.sent,
            answers,
            there.stable_ready,
        )
        return Seen(scrape, there.reached)

    def about(self) -> Mapping[str, Any]:
        """How far the shadow's answers were read, and what has been counted."""
        counted = {
            "counted": [each.kept() for each in self._counting],
            "successes": self._successes,
        }
        return counted | ({"shadowed": self._shadowed.offset} if self._shadowed else {})

    def _go_on(self, kept: Mapping[str, Any]) -> None:
        try:
            for counting, one in zip(self._counting, kept["counted"], strict=True):
                counting.restore(one)
            self._successes = [float(each) for each in kept["successes"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            self._counting = self._new_counting()

    def _new_counting(self) -> list[Counting]:
        return [Counting(each.layout if each else Layout()) for each in self._versions]

    def _begin(self, place: int, call: Callable[[], Answer]) -> Future[Answer] | None:
        late = self._late[place]
        if late is not None and not late.done():
            return None
        return self._pools[place].submit(call)

    def _end(self, place: int, future: Future[Answer] | None) -> Answer | None:
        if future is None:
            return None
        self._late[place] = future
        try:
            return future.result(_SECONDS)
        except (TimeoutError, ServerError):
            return None

    def _counters(self, place: int) -> Counters | None:
        version = self._versions[place]
        if version is None:
            return None
        pages = [self._scrape(url, _SECONDS) for url in version.urls]
        if version is self._versions[_CANDIDATE] and self._has_lost(pages):
            return Counters(0, 0)
        metrics = pages[0] if len(pages) == 1 else added(pages)
        reading = Reading.of(metrics, 1.0, rss_bytes=version.memory(metrics))
        return self._counting[place].counters(reading)

    def _has_lost(self, pages: Sequence[Metrics]) -> bool:
        """Whether a server counts from 0 again: others may have counted more since in the sum."""
        before, self._successes = self._successes, [page.total(SUCCESS) for page in pages]
        return any(now < then for now, then in zip(self._successes, before, strict=False))

    def _at_gateway(self) -> _AtGateway | None:
        if self._gateway is None:
            return None
        url = f"{self._gateway()}?usedonly&filter={_FILTER}"
        metrics = self._scrape(url, _SECONDS)
        sent = sum(
            metrics.total("envoy_cluster_upstream_rq", **{_CLUSTER: name})
            for name in self._clusters.sent
        )
        routes = {
            name: int(metrics.total("envoy_vhost_route_upstream_rq", envoy_route=name))
            for name in (USERS, OTHERS)
        }
        healthy = sum_known(
            sample.value
            for name in self._clusters.ready
            for sample in metrics.samples(_HEALTHY, **{_CLUSTER: name})
        )
        return _AtGateway(
            int(sent),
            Reached(sum(routes.values()), routes[USERS]),
            _response(metrics, self._clusters.candidate),
            _response(metrics, self._clusters.stable),
            None if healthy is None else healthy > 0,
        )


def clusters_of(candidate: Slot) -> Clusters:
    """With the candidate in this slot, and stable in the other one."""
    own, others = (
        [named(name, slot) for name in (GRPC, REST, FRONTEND) for named in (of_slot, slot_first)]
        for slot in (candidate, candidate.other)
    )
    sent = [of_slot(name, candidate) for name in (GRPC, REST)]
    return Clusters(sent, own, others, [of_slot(GRPC, candidate.other)])


def _response(metrics: Metrics, clusters: Sequence[str]) -> Histogram | None:
    """Milliseconds of whole answers, both protocols together; None before the first one."""
    samples = [
        (float(sample.labels["le"]), sample.value)
        for name in clusters
        for sample in metrics.samples(_TIME, **{_CLUSTER: name})
    ]
    return of_series(samples)


def _with_response(counters: Counters | None, times: Histogram | None) -> Counters | None:
    if counters is None or times is None:
        return counters
    return replace(counters, times={**counters.times, RESPONSE: times})
