# SPDX-License-Identifier: Apache-2.0
"""The rollout environment of one host: the servers of both slots and the gateway."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.errors import HostError, ServerError
from tritonctl.gateway.mirror import require_short_path, shadow_socket
from tritonctl.gateway.placement import gateway_of
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.metrics import scrape
from tritonctl.releases.store import StoredRelease
from tritonctl.rollout.environment import RolloutEnvironment
from tritonctl.rollout.metrics import Counters
from tritonctl.rollout.scraping import MetricsScraper, ScrapeTarget, envoy_cluster_names
from tritonctl.rollout.served_routes import ROUTES_QUERY, serves_routes
from tritonctl.rollout.shadow.process import ShadowProcess, shadow_config
from tritonctl.rollout.traffic import Traffic
from tritonctl.runtimes import slot_servers
from tritonctl.runtimes.discovery import current_servers
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.runtimes.server_state import EmbeddedServer
from tritonctl.runtimes.slot_servers import Slot
from tritonctl.supervision.process_usage import ServerUsage
from tritonctl.top.layout import layout_of

_ANSWER_SECONDS = 1.0
_POLL_SECONDS = 0.05


class HostService:
    """`controller.RolloutService` for the project's gateway and slots."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def share(self) -> float:
        """Read the candidate's share from the routes file."""
        return self._traffic().share()

    def move(self, share: float) -> None:
        """Raise the candidate's share of the users."""
        self._traffic().move(share)

    def mirror(self) -> None:
        """Start mirroring requests to the shadower, before any traffic moves."""
        self._traffic().start_mirroring()

    def roll_back(self) -> None:
        """Move all users to stable."""
        self._traffic().roll_back()

    def make_stable(self, slot: str) -> None:
        """Give all users to the servers of this slot."""
        slot_servers.make_stable(self._project, Slot(slot))

    def read_by_gateway(self, seconds: float) -> bool:
        """Whether the gateway serves the routes that were written last, within this time."""
        deadline = time.monotonic() + seconds
        while not self._serves_written_routes():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def stop(self, slot: str, *, at_once: bool) -> str:
        """Unload the slot; the opposite one if `releases rollback` made this one stable."""
        warm = slot_servers.stable_slot(self._project).opposite
        slot_servers.stop_slot(self._project, warm, at_once=at_once and warm is Slot(slot))
        return warm.value

    def _traffic(self) -> Traffic:
        """The routes for the current slots."""
        project = self._project
        return Traffic(
            slot_servers.routes_folder(project),
            gateway_of(project),
            slot_servers.gateway_placement(project),
            project.rollout,
        )

    def _serves_written_routes(self) -> bool:
        """Whether the gateway serves the routes file as it is now; False if it does not answer."""
        try:
            version = self._traffic().written_version()
            url = f"{slot_servers.envoy_metrics_url(self._project)}?{ROUTES_QUERY}"
            return serves_routes(scrape(url, _ANSWER_SECONDS), version)
        except (HostError, ServerError):
            return False


class HostPlatform:
    """`RolloutPlatform` for the project's servers on this machine."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def journal_details(self) -> Mapping[str, Any]:
        """Return {}: the project suffices."""
        return {}

    def prepare(self, number: int) -> None:
        """Check the shadower's socket path; the journal has a lock. Raises HostError."""
        _ = number
        if self._project.rollout.shadow:
            require_short_path(shadow_socket(self._project))

    def free_slot(self) -> Slot:
        """Return the slot for the candidate."""
        return slot_servers.stable_slot(self._project).opposite

    def live_release(self) -> str:
        """Name the release that has the users."""
        return running_server(self._project).release

    def load(self, stored: StoredRelease, progress: Progress, *, breaking: bool) -> None:
        """Load a release as `slot_servers.start_candidate`."""
        slot_servers.start_candidate(self._project, stored, progress, breaking=breaking)

    def unload(self, slot: Slot) -> None:
        """Stop the slot's servers at once."""
        slot_servers.stop_slot(self._project, slot, at_once=True)

    def counters(self, slot: Slot) -> Counters | None:
        """Read the counters of a slot's servers; None if they do not answer."""
        version = _scrape_target(self._project, slot)
        return MetricsScraper(version, None, None).observe(0.0).scrape.stable

    def take_back(self) -> None:
        """Move all users to stable, with or without a controller. Raises HostError."""
        HostService(self._project).roll_back()

    def environment(self, details: Mapping[str, Any], folder: Path) -> RolloutEnvironment:
        """Return the environment of the rollout with these start details, in its folder."""
        project = self._project
        candidate = Slot(details["slot"])
        service = HostService(project)

        def scraper(saved: Mapping[str, Any]) -> MetricsScraper:
            return MetricsScraper(
                _scrape_target(project, candidate.opposite),
                _scrape_target(project, candidate),
                lambda: slot_servers.envoy_metrics_url(project),
                envoy_cluster_names(candidate),
                _start_shadow(project, candidate, folder, service, int(saved.get("shadowed", 0))),
                saved,
            )

        return RolloutEnvironment(scraper, service, time.monotonic, time.time, time.sleep)


def _start_shadow(
    project: Project, candidate: Slot, folder: Path, service: HostService, offset: int
) -> ShadowProcess | None:
    """Start the shadower if the project enables it and both versions run."""
    stable, new = (
        slot_servers.server_in_slot(project, candidate.opposite),
        slot_servers.server_in_slot(project, candidate),
    )
    if not project.rollout.shadow or stable is None or new is None:
        return None
    shadowing = ShadowProcess(shadow_config(project, folder, stable, new), offset)
    service.mirror()
    return shadowing


def _scrape_target(project: Project, slot: Slot) -> ScrapeTarget | None:
    server = slot_servers.server_in_slot(project, slot)
    if server is None:
        return None
    usage = ServerUsage(server.shm_prefix) if isinstance(server, EmbeddedServer) else None
    urls = [each.metrics_url for each in current_servers(server)]
    return ScrapeTarget(urls, layout_of(Path(server.repository)), usage)
