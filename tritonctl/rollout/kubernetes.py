# SPDX-License-Identifier: Apache-2.0
"""A rollout's world in a cluster: both slots' Deployments, and the gateway's routes in a ConfigMap.

The controller runs where the user runs it, and reaches the cluster by the user's kubectl. While the
cluster does not answer, users stay where they are: nobody can be moved, and nothing is judged.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tritonctl.errors import ConfigurationError, HostError, ServerError, TritonctlError, UsageError
from tritonctl.host.progress import Progress
from tritonctl.project.rollout import ALL
from tritonctl.project.schema import Project
from tritonctl.releases.store import Stored, already_served, stored_releases
from tritonctl.releases.verification import require_whole
from tritonctl.rollout.controller import Seen, World
from tritonctl.rollout.metrics import Counters
from tritonctl.rollout.pods import AWAY, Component, Pods, Reach
from tritonctl.rollout.scraping import MetricsScraper, Version, clusters_of
from tritonctl.server.gateway.placement import gateway_of
from tritonctl.server.gateway.shares import Division
from tritonctl.server.groups import refuse_other_tensors
from tritonctl.server.kubernetes import keda
from tritonctl.server.kubernetes.candidate import Charted, Copying
from tritonctl.server.kubernetes.chart import render_chart
from tritonctl.server.kubernetes.installation import GATEWAY, METRICS_PORT, TRITON
from tritonctl.server.kubernetes.installed import Installed, LiveRoutes, empty
from tritonctl.server.kubernetes.kubectl import Kubectl
from tritonctl.server.kubernetes.loading import load
from tritonctl.server.kubernetes.refusals import ClusterError
from tritonctl.server.kubernetes.slots import in_slot
from tritonctl.server.slots import Slot
from tritonctl.server.top.layout import layout_of

KUBERNETES = "kubernetes"
RIGHTS = (
    ("get", "deployments.apps"),
    ("create", "deployments.apps"),
    ("patch", "deployments.apps"),
    ("get", "configmaps"),
    ("create", "configmaps"),
    ("patch", "configmaps"),
    ("list", "pods"),
    ("patch", "pods"),
    ("delete", "pods"),
    ("create", "pods/portforward"),
    ("get", "horizontalpodautoscalers.autoscaling"),
    ("create", "horizontalpodautoscalers.autoscaling"),
    ("patch", "horizontalpodautoscalers.autoscaling"),
)
_LOOK_SECONDS = 3.0  # for a request of the controller
_AGAIN_SECONDS = 2.0
_TELL_SECONDS = 60.0  # without the cluster, before the log says what to do
_CONFIRM_SECONDS = 20.0  # a kubelet's and Envoy's, where it was told to look at once
_READS = "envoy_http_rds_update_success"
_STATS = "/stats/prometheus"
_TRIES = 5
_LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class Cluster:
    """`places.Place`: an installation of the chart."""

    def __init__(self, project: Project, kubectl: Kubectl, name: str) -> None:
        self._project = project
        self._installed = Installed(kubectl, name)
        self._routes = LiveRoutes(self._installed, project)

    def about(self) -> Mapping[str, Any]:
        """For the journal."""
        kubectl = self._installed.kubectl
        return {
            "on": KUBERNETES,
            "context": kubectl.context,
            "namespace": kubectl.own_namespace,
            "name": self._installed.name,
        }

    def prepare(self, number: int) -> None:
        """Refuse what would fail later. Raises ConfigurationError, HostError, UsageError."""
        kubectl = self._installed.kubectl
        if self._project.rollout.shadow:
            raise ConfigurationError(
                "rollout.shadow: in a cluster nobody asks both releases what users ask",
                remedy="leave it out here, --set rollout.shadow=0, and ask both yourself: "
                "`tritonctl rollout compare` with ports that kubectl forwards to both slots",
            )
        lacking = _lacking(kubectl, RIGHTS)
        if not lacking:
            name = self._installed.called(TRITON, self._routes.division().stable)
            lacking = _lacking(kubectl, keda.RIGHTS) if keda.scales(kubectl, name) else []
        if lacking:
            raise HostError(
                f"you lack rights that a rollout needs: {', '.join(lacking)}",
                remedy="ask the cluster's owner for a Role with them in namespace "
                f"{kubectl.own_namespace}",
            )
        self._routes.require_as_installed()
        other = self._routes.rollout()
        if other and other not in (self._mark(number - 1), self._mark(number)):
            raise UsageError(
                f"another rollout of this installation is under way: {other}",
                remedy=f"steer it there; if it is over, `kubectl{kubectl.flags} annotate configmap "
                f"{self._installed.called('routes')} tritonctl/rollout-`",
            )
        self._routes.claim(self._mark(number))

    def free_slot(self) -> Slot:
        """Where a candidate is loaded."""
        return self._routes.division().stable.other

    def served(self) -> str:
        """The release that has the users."""
        return self._installed.release(self._routes.division().stable).partition("@")[0]

    def load(self, stored: Stored, progress: Progress, *, breaking: bool) -> None:
        """As many servers as the stable release has, in the free slot; nobody is moved."""
        slot = self.free_slot()
        try:
            self._load(stored, slot, progress, breaking=breaking)
        except BaseException:
            with suppress(TritonctlError):
                self.unload(slot)
            raise

    def _load(self, stored: Stored, slot: Slot, progress: Progress, *, breaking: bool) -> None:
        served = self._served(stored)
        require_whole(stored, progress)
        if not breaking:
            refuse_other_tensors(served, stored)
        before, after = (self._charted(each) for each in (served, stored))
        if after.values["weights"]["from"] == "image":
            raise ConfigurationError(
                "weights.from is image: a candidate would need another image volume",
                remedy="serve releases from a claim, `weights: {from: claim}`",
            )
        self._routes.write(Division(slot.other, 0))
        load(Copying(self._installed, before, after, slot), progress)

    def unload(self, slot: Slot) -> None:
        """At once, where it was not finished; nobody uses it."""
        empty(self._installed, self._routes, slot, at_once=True)
        self._routes.claim(None)

    def counts(self, slot: Slot) -> Counters:
        """What its servers have counted. Raises ServerError when they do not answer."""
        reach = Reach()
        version = Version([_url(in_slot(TRITON, slot), "/metrics")], self._layout(slot))
        components = self._components(reach, [slot], gateway=False)
        scraper = MetricsScraper(version, None, None, scrape=Pods(components).scrape)
        try:
            for _ in range(_TRIES):  # the first one has to connect
                if (counters := scraper.look(0.0).scrape.stable) is not None:
                    return counters
        finally:
            for component in components.values():
                component.close()
        raise ServerError(
            f"the pods of {in_slot(TRITON, slot)} give no metrics",
            remedy=f"`kubectl{self._installed.kubectl.flags} port-forward deployment/"
            f"{self._installed.called(TRITON, slot)} {METRICS_PORT}` shows why",
        )

    def take_back(self) -> None:
        """All users are stable's: one patch, whoever controls the rollout. Raises HostError."""
        self._routes.write(Division(self._routes.division().stable, 0))

    def world(self, about: Mapping[str, Any], folder: Path) -> World:
        """For the rollout that began with `about`."""
        _ = folder
        candidate = Slot(about["slot"])
        kubectl = replace(self._installed.kubectl, seconds=_LOOK_SECONDS)
        there = Cluster(self._project, kubectl, self._installed.name)
        return there._world(candidate)

    def _world(self, candidate: Slot) -> World:
        reach = Reach()
        slots = [candidate.other, candidate]
        names = [in_slot(TRITON, slot) for slot in slots]
        components = self._components(reach, slots)
        pods = Pods(components)
        service = ClusterService(self._installed, self._routes, components[GATEWAY], reach)

        def scraper(kept: Mapping[str, Any]) -> PodsScraper:
            for name, gone in kept.get("gone", {}).items():
                components[name].restore(gone)
            stable, new = (
                Version([_url(name, "/metrics")], self._layout(slot))
                for name, slot in zip(names, slots, strict=True)
            )
            metrics = MetricsScraper(
                stable,
                new,
                lambda: _url(GATEWAY, _STATS),
                clusters_of(candidate),
                scrape=pods.scrape,
                kept=kept,
            )
            return PodsScraper(metrics, components, names[1], reach)

        return World(
            scraper,
            service,
            reach.clock,
            time.time,
            lambda seconds: time.sleep(min(seconds, 1.0)),
        )

    def _components(
        self, reach: Reach, slots: Sequence[Slot], *, gateway: bool = True
    ) -> dict[str, Component]:
        """By the names that stand for hosts in URLs of metrics."""
        made = {
            in_slot(TRITON, slot): Component(self._installed, TRITON, slot, METRICS_PORT, reach)
            for slot in slots
        }
        if gateway:
            port = gateway_of(self._project).admin_port
            made[GATEWAY] = Component(self._installed, GATEWAY, Slot.A, port, reach)
        return made

    def _served(self, stored: Stored) -> Stored:
        name = self.served()
        if name == stored.name:
            raise already_served(stored)
        for one in stored_releases(self._project):
            if one.name == name:
                return one
        raise ConfigurationError(
            f"release {name or 'of no name'}, which the cluster serves, is not one of this project",
            remedy="start the rollout where it was published: `tritonctl releases list`",
        )

    def _layout(self, slot: Slot) -> Any:
        name = self._installed.release(slot).partition("@")[0]
        releases = stored_releases(self._project)
        folder = next((each.repository for each in releases if each.name == name), Path())
        return layout_of(folder)

    def _charted(self, stored: Stored) -> Charted:
        return Charted.of(render_chart(self._project, stored))

    def _mark(self, number: int) -> str:
        return f"rollout {number} of {self._project.root} on {socket.gethostname()}"


def _lacking(kubectl: Kubectl, rights: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{verb} {kind}" for verb, kind in rights if not kubectl.may(verb, kind)]


class ClusterService:
    """`controller.Service`: what it asks of a cluster that does not answer, it asks again."""

    def __init__(
        self, installed: Installed, routes: LiveRoutes, gateway: Component, reach: Reach
    ) -> None:
        self._installed, self._routes = installed, routes
        self._gateway, self._reach = gateway, reach
        self._reads: Mapping[str, float] = {}  # of each pod, before the last change

    def share(self) -> float:
        """By the ConfigMap."""
        return self._insist(self._routes.division).share

    def move(self, share: float) -> None:
        """Give the candidate more. Raises ConfigurationError for less."""
        division = self._insist(self._routes.division)
        if not division.share <= share <= ALL or share <= 0:
            raise ConfigurationError(
                f"rollout.steps: the candidate has {division.share:g} % of the users, "
                f"{share:g} % is no step from there",
                remedy="a share only grows, up to 100; to take users back, roll back",
            )
        self._write(replace(division, share=share))

    def roll_back(self) -> None:
        """All are stable's, by one patch."""
        self._write(replace(self._insist(self._routes.division), share=0))

    def make_stable(self, slot: str) -> None:
        """The servers of this slot have all users. Raises ServerError where there are none."""
        chosen = Slot(slot)
        found = self._insist(lambda: self._installed.deployment(TRITON, chosen)) or {}
        if not found.get("status", {}).get("readyReplicas"):
            raise ServerError(
                f"no server runs in slot {slot}",
                remedy="load a release there first: `tritonctl rollout start`",
            )
        self._write(Division(chosen, 0))

    def read_by_gateway(self, seconds: float) -> bool:
        """Whether every pod of the gateway has read its routes again since the last change."""
        deadline = time.monotonic() + max(seconds, _CONFIRM_SECONDS)
        while time.monotonic() < deadline:
            now = self._read_until_now()
            if now and all(count != self._reads.get(uid) for uid, count in now.items()):
                return True
            time.sleep(0.2)
        return False

    def stop(self, slot: str, *, at_once: bool) -> str:
        """Unload."""
        self._insist(lambda: empty(self._installed, self._routes, Slot(slot), at_once=at_once))
        self._insist(lambda: self._routes.claim(None))
        return slot

    def _write(self, division: Division) -> None:
        self._reads = self._read_until_now()
        self._insist(lambda: self._routes.write(division))

    def _read_until_now(self) -> Mapping[str, float]:
        """How often each pod of the gateway has read routes; {} while they do not answer."""
        try:
            found = self._gateway.metrics(f"{_STATS}?filter=rds", 2.0)
        except ServerError:
            return {}
        return {uid: metrics.total(_READS) for uid, metrics in found.items()}

    def _insist(self, act: Callable[[], Answer]) -> Answer:
        """Do it, as soon as the cluster answers. Raises what it refuses."""
        told = False
        while True:
            try:
                answer = act()
            except ClusterError as error:
                if error.reason not in AWAY:
                    raise
                self._reach.lost(error.problem)
                if not told and self._reach.seconds > _TELL_SECONDS:
                    told = True
                    _LOG.warning(away(self._reach))
                time.sleep(_AGAIN_SECONDS)
                continue
            self._reach.found()
            return answer


class PodsScraper:
    """`controller.Scraper`: says so when the cluster is not reached, and sees restarts of pods."""

    def __init__(
        self,
        metrics: MetricsScraper,
        components: Mapping[str, Component],
        candidate: str,
        reach: Reach,
    ) -> None:
        self._metrics, self._components, self._reach = metrics, components, reach
        self._candidate = components[candidate]
        self._restarts: int | None = None

    def look(self, at: float) -> Seen:
        """Now."""
        seen = self._metrics.look(at)
        if self._reach.seconds:
            return replace(seen, trouble=away(self._reach))
        restarts = self._candidate.restarts()
        if self._restarts is not None and restarts > self._restarts:
            # Other pods may have counted more since than the one that has lost its counts.
            seen = replace(seen, scrape=replace(seen.scrape, candidate=Counters(0, 0)))
        self._restarts = restarts
        return seen

    def about(self) -> Mapping[str, Any]:
        """What pods had counted that are gone."""
        gone = {name: each.kept() for name, each in self._components.items() if name != GATEWAY}
        return {**self._metrics.about(), "gone": gone}


def away(reach: Reach) -> str:
    """That the cluster is not reached, and what to do."""
    told = f"{reach.problem}: users stay where they are"
    if reach.seconds < _TELL_SECONDS:
        return told
    return (
        f"{told}, for {reach.seconds:.0f} s now. If the candidate is bad, take users back from a "
        "machine that reaches it: `tritonctl rollout abort`"
    )


def _url(component: str, path: str) -> str:
    return f"http://{component}{path}"
