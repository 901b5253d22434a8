# SPDX-License-Identifier: Apache-2.0
"""The rollout environment of a cluster: a Deployment per slot, and routes in a ConfigMap.

The controller runs on the user's machine and reaches the cluster through kubectl. While the cluster
does not answer, users stay where they are and the judge pauses.
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
from tritonctl.gateway.placement import gateway_of
from tritonctl.gateway.shares import TrafficSplit
from tritonctl.host.progress import Progress
from tritonctl.project.rollout import ALL
from tritonctl.project.schema import Project
from tritonctl.releases.slots import Slot
from tritonctl.releases.store import StoredRelease, already_served_error, stored_releases
from tritonctl.rollout.environment import RolloutEnvironment
from tritonctl.rollout.metrics import Counters
from tritonctl.rollout.pods import UNREACHABLE_REASONS, ClusterConnectivity, PodGroup, PodMetrics
from tritonctl.rollout.pods_scraper import ADVICE_SECONDS, PodsScraper, unreachable_message
from tritonctl.rollout.scraping import MetricsScraper, ScrapeTarget, envoy_cluster_names
from tritonctl.rollout.served_routes import ROUTES_QUERY, serves_routes
from tritonctl.runtimes.kubernetes import keda
from tritonctl.runtimes.kubernetes.api_errors import ClusterError
from tritonctl.runtimes.kubernetes.candidate import CandidateObjects, ChartRelease
from tritonctl.runtimes.kubernetes.candidate_loading import load_candidate
from tritonctl.runtimes.kubernetes.chart import render_chart
from tritonctl.runtimes.kubernetes.installation import GATEWAY, METRICS_PORT, TRITON
from tritonctl.runtimes.kubernetes.kubectl import Kubectl
from tritonctl.runtimes.kubernetes.live_installation import LiveRoutes, SlotInstallation, empty_slot
from tritonctl.runtimes.kubernetes.slots import name_in_slot
from tritonctl.runtimes.slot_servers import refuse_breaking_tensors
from tritonctl.store.entries import require_unchanged
from tritonctl.top.layout import layout_of

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
_REQUEST_SECONDS = 3.0  # timeout of a controller's request
_RETRY_SECONDS = 2.0
_CONFIRM_SECONDS = 20.0  # for the kubelet and Envoy to read a change
_STATS = "/stats/prometheus"
_TRIES = 5
_LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class KubernetesPlatform:
    """`RolloutPlatform` for an installation of the chart."""

    def __init__(self, project: Project, kubectl: Kubectl, name: str) -> None:
        self._project = project
        self._installed = SlotInstallation(kubectl, name)
        self._routes = LiveRoutes(self._installed, project)

    def journal_details(self) -> Mapping[str, Any]:
        """Return how to find the installation again, for the journal."""
        kubectl = self._installed.kubectl
        return {
            "on": KUBERNETES,
            "context": kubectl.context,
            "namespace": kubectl.effective_namespace,
            "name": self._installed.name,
        }

    def prepare(self, number: int) -> None:
        """Check rights and settings, and claim the installation.

        Raises ConfigurationError, HostError, UsageError.
        """
        kubectl = self._installed.kubectl
        if self._project.rollout.shadow:
            raise ConfigurationError(
                "rollout.shadow is not supported on Kubernetes",
                remedy="disable it, --set rollout.shadow=0, and compare both releases with "
                "`tritonctl rollout compare` through ports that kubectl forwards to both slots",
            )
        missing_rights = _missing_rights(kubectl, RIGHTS)
        if not missing_rights:
            deployment_name = self._installed.object_name(
                TRITON, self._routes.traffic_split().stable
            )
            missing_rights = (
                _missing_rights(kubectl, keda.RIGHTS)
                if keda.is_keda_scaled(kubectl, deployment_name)
                else []
            )
        if missing_rights:
            raise HostError(
                f"you lack rights for a rollout: {', '.join(missing_rights)}",
                remedy="ask the cluster's owner for a Role with them in namespace "
                f"{kubectl.effective_namespace}",
            )
        self._routes.require_as_installed()
        claimed_by = self._routes.rollout()
        if claimed_by and claimed_by not in (
            self._claim_text(number - 1),
            self._claim_text(number),
        ):
            raise UsageError(
                f"another rollout of this installation is under way: {claimed_by}",
                remedy=f"control it there; if it is over, `kubectl{kubectl.flags} annotate "
                f"configmap {self._installed.object_name('routes')} tritonctl/rollout-`",
            )
        self._routes.claim(self._claim_text(number))

    def free_slot(self) -> Slot:
        """Return the slot for the candidate."""
        return self._routes.traffic_split().stable.opposite

    def live_release(self) -> str:
        """Name the release that has the users."""
        return self._installed.release(self._routes.traffic_split().stable).partition("@")[0]

    def load(self, stored: StoredRelease, progress: Progress, *, breaking: bool) -> None:
        """Load a release in the free slot with as many servers as stable; no user moves."""
        slot = self.free_slot()
        try:
            self._load(stored, slot, progress, breaking=breaking)
        except BaseException:
            with suppress(TritonctlError):
                self.unload(slot)
            raise

    def _load(
        self, stored: StoredRelease, slot: Slot, progress: Progress, *, breaking: bool
    ) -> None:
        live = self._live_stored_release(stored)
        require_unchanged(stored, progress)
        if not breaking:
            refuse_breaking_tensors(live, stored)
        live_chart, candidate_chart = (self._charted(each) for each in (live, stored))
        if candidate_chart.values["weights"]["from"] == "image":
            raise ConfigurationError(
                "weights.from is image: a candidate would need another image volume",
                remedy="serve releases from a claim: `weights: {from: claim}`",
            )
        self._routes.write(TrafficSplit(slot.opposite, 0))
        load_candidate(
            CandidateObjects(self._installed, live_chart, candidate_chart, slot), progress
        )

    def unload(self, slot: Slot) -> None:
        """Remove an unfinished candidate at once; it has no users."""
        empty_slot(self._installed, self._routes, slot, at_once=True)
        self._routes.claim(None)

    def counters(self, slot: Slot) -> Counters:
        """Read the counters of a slot's servers. Raises ServerError if they do not answer."""
        reach = ClusterConnectivity()
        version = ScrapeTarget([_url(name_in_slot(TRITON, slot), "/metrics")], self._layout(slot))
        components = self._components(reach, [slot], gateway=False)
        scraper = MetricsScraper(version, None, None, scrape=PodMetrics(components).scrape)
        try:
            for _ in range(_TRIES):  # the first one has to connect
                if (counters := scraper.observe(0.0).scrape.stable) is not None:
                    return counters
        finally:
            for component in components.values():
                component.close()
        raise ServerError(
            f"the pods of {name_in_slot(TRITON, slot)} return no metrics",
            remedy=f"`kubectl{self._installed.kubectl.flags} port-forward deployment/"
            f"{self._installed.object_name(TRITON, slot)} {METRICS_PORT}` shows why",
        )

    def take_back(self) -> None:
        """Move all users to stable with one patch, with or without a controller.

        Raises HostError.
        """
        self._routes.write(TrafficSplit(self._routes.traffic_split().stable, 0))

    def environment(self, details: Mapping[str, Any], folder: Path) -> RolloutEnvironment:
        """Return the environment of the rollout with these start details."""
        _ = folder
        candidate = Slot(details["slot"])
        kubectl = replace(self._installed.kubectl, seconds=_REQUEST_SECONDS)
        platform = KubernetesPlatform(self._project, kubectl, self._installed.name)
        return platform._environment(candidate)

    def _environment(self, candidate: Slot) -> RolloutEnvironment:
        reach = ClusterConnectivity()
        slots = [candidate.opposite, candidate]
        names = [name_in_slot(TRITON, slot) for slot in slots]
        components = self._components(reach, slots)
        pods = PodMetrics(components)
        service = ClusterService(self._installed, self._routes, components[GATEWAY], reach)

        def scraper(saved: Mapping[str, Any]) -> PodsScraper:
            for name, removed_pods in saved.get("gone", {}).items():
                components[name].restore(removed_pods)
            stable_target, candidate_target = (
                ScrapeTarget([_url(name, "/metrics")], self._layout(slot))
                for name, slot in zip(names, slots, strict=True)
            )
            metrics = MetricsScraper(
                stable_target,
                candidate_target,
                lambda: _url(GATEWAY, _STATS),
                envoy_cluster_names(candidate),
                scrape=pods.scrape,
                saved=saved,
            )
            return PodsScraper(metrics, components, names[1], reach)

        return RolloutEnvironment(
            scraper,
            service,
            reach.clock,
            time.time,
            lambda seconds: time.sleep(min(seconds, 1.0)),
        )

    def _components(
        self, reach: ClusterConnectivity, slots: Sequence[Slot], *, gateway: bool = True
    ) -> dict[str, PodGroup]:
        """Pod groups by the name that stands for their host in metrics URLs."""
        made = {
            name_in_slot(TRITON, slot): PodGroup(self._installed, TRITON, slot, METRICS_PORT, reach)
            for slot in slots
        }
        if gateway:
            port = gateway_of(self._project).admin_port
            made[GATEWAY] = PodGroup(self._installed, GATEWAY, Slot.A, port, reach)
        return made

    def _live_stored_release(self, stored: StoredRelease) -> StoredRelease:
        name = self.live_release()
        if name == stored.name:
            raise already_served_error(stored)
        for release in stored_releases(self._project):
            if release.name == name:
                return release
        raise ConfigurationError(
            f"this project has no release {name or '(unnamed)'}, which is live in the cluster",
            remedy="start the rollout where it was published: `tritonctl releases list`",
        )

    def _layout(self, slot: Slot) -> Any:
        name = self._installed.release(slot).partition("@")[0]
        releases = stored_releases(self._project)
        folder = next((each.repository for each in releases if each.name == name), Path())
        return layout_of(folder)

    def _charted(self, stored: StoredRelease) -> ChartRelease:
        return ChartRelease.of(render_chart(self._project, stored))

    def _claim_text(self, number: int) -> str:
        return f"rollout {number} of {self._project.root} on {socket.gethostname()}"


def _missing_rights(kubectl: Kubectl, rights: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{verb} {kind}" for verb, kind in rights if not kubectl.is_allowed(verb, kind)]


class ClusterService:
    """`controller.RolloutService` that retries while the cluster does not answer."""

    def __init__(
        self,
        installed: SlotInstallation,
        routes: LiveRoutes,
        gateway: PodGroup,
        reach: ClusterConnectivity,
    ) -> None:
        self._installed, self._routes = installed, routes
        self._gateway, self._reach = gateway, reach

    def share(self) -> float:
        """Read the candidate's share from the ConfigMap."""
        return self._retry_while_unreachable(self._routes.traffic_split).share

    def move(self, share: float) -> None:
        """Raise the candidate's share of the users. Raises ConfigurationError for a lower one."""
        division = self._retry_while_unreachable(self._routes.traffic_split)
        if not division.share <= share <= ALL or share <= 0:
            raise ConfigurationError(
                f"rollout.steps: the candidate has {division.share:g} % of the users, "
                f"{share:g} % is not a valid next step",
                remedy="a share only grows, up to 100; to take users back, roll back",
            )
        self._write(replace(division, share=share))

    def roll_back(self) -> None:
        """Move all users to stable with one patch."""
        self._write(replace(self._retry_while_unreachable(self._routes.traffic_split), share=0))

    def make_stable(self, slot: str) -> None:
        """Give all users to the servers of this slot. Raises ServerError if there are none."""
        chosen = Slot(slot)
        deployment = (
            self._retry_while_unreachable(lambda: self._installed.deployment(TRITON, chosen)) or {}
        )
        if not deployment.get("status", {}).get("readyReplicas"):
            raise ServerError(
                f"no server runs in slot {slot}",
                remedy="load a release there first: `tritonctl rollout start`",
            )
        self._write(TrafficSplit(chosen, 0))

    def read_by_gateway(self, seconds: float) -> bool:
        """Whether every gateway pod serves the routes that were written last, within this time.

        0 seconds: now; any other time: at least as long as kubelet and Envoy take.
        """
        version = self._retry_while_unreachable(self._routes.version)
        deadline = time.monotonic() + (max(seconds, _CONFIRM_SECONDS) if seconds else 0.0)
        while not self._serves(version):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.2)
        return True

    def stop(self, slot: str, *, at_once: bool) -> str:
        """Unload a slot and release the claim."""
        self._retry_while_unreachable(
            lambda: empty_slot(self._installed, self._routes, Slot(slot), at_once=at_once)
        )
        self._retry_while_unreachable(lambda: self._routes.claim(None))
        return slot

    def _write(self, division: TrafficSplit) -> None:
        self._retry_while_unreachable(lambda: self._routes.write(division))

    def _serves(self, version: str) -> bool:
        """Whether every gateway pod serves these routes; False if one does not answer."""
        try:
            metrics_by_pod = self._gateway.metrics(f"{_STATS}?{ROUTES_QUERY}", 2.0)
        except ServerError:
            return False
        return all(serves_routes(metrics, version) for metrics in metrics_by_pod.values())

    def _retry_while_unreachable(self, act: Callable[[], Answer]) -> Answer:
        """Retry until the cluster answers. Raises ClusterError if it refuses."""
        warned = False
        while True:
            try:
                answer = act()
            except ClusterError as error:
                if error.reason not in UNREACHABLE_REASONS:
                    raise
                self._reach.mark_unreachable(error.problem)
                if not warned and self._reach.unreachable_seconds > ADVICE_SECONDS:
                    warned = True
                    _LOG.warning(unreachable_message(self._reach))
                time.sleep(_RETRY_SECONDS)
                continue
            self._reach.mark_reached()
            return answer


def _url(component: str, path: str) -> str:
    return f"http://{component}{path}"
