# SPDX-License-Identifier: Apache-2.0
"""A rollout's world on one host: both slots' servers, and the gateway before them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.errors import ServerError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.metrics import scrape
from tritonctl.releases.store import Stored
from tritonctl.rollout.controller import World
from tritonctl.rollout.metrics import Counters
from tritonctl.rollout.scraping import MetricsScraper, Version, clusters_of
from tritonctl.rollout.shadow.process import Shadowing, shadow_config
from tritonctl.rollout.traffic import Traffic
from tritonctl.server import groups
from tritonctl.server.gateway.mirror import require_short, shadow_socket
from tritonctl.server.gateway.placement import gateway_of
from tritonctl.server.groups import Slot
from tritonctl.server.lifecycle import running_server
from tritonctl.server.presence import current_servers
from tritonctl.server.state import EmbeddedServer
from tritonctl.server.top.layout import layout_of
from tritonctl.server.usage import ServerUsage

_ANSWER_SECONDS = 1.0
_POLL_SECONDS = 0.05
_READS = "envoy_http_rds_update_success"


class HostService:
    """`controller.Service`, by the project's gateway and groups."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._reads: float | None = None  # of the gateway, before the last change

    def share(self) -> float:
        """By the file that the gateway reads."""
        return self._traffic().share()

    def move(self, share: float) -> None:
        """Give the candidate more."""
        self._reads = self._read_until_now()
        self._traffic().move(share)

    def mirror(self) -> None:
        """Copies of requests for the shadower, before anybody is moved."""
        self._traffic().mirror()

    def roll_back(self) -> None:
        """All are stable's."""
        self._reads = self._read_until_now()
        self._traffic().roll_back()

    def make_stable(self, slot: str) -> None:
        """The servers of this slot have all users."""
        self._reads = self._read_until_now()
        groups.make_stable(self._project, Slot(slot))

    def read_by_gateway(self, seconds: float) -> bool:
        """Whether it has read its routes again since the last change, within this time."""
        deadline = time.monotonic() + seconds
        while True:
            now = self._read_until_now()
            if now is not None and self._reads is not None and now != self._reads:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)

    def stop(self, slot: str, *, at_once: bool) -> str:
        """Unload the slot, or the other one where a `tritonctl rollback` has made it stable."""
        warm = groups.stable_slot(self._project).other
        groups.stop_group(self._project, warm, at_once=at_once and warm is Slot(slot))
        return warm.value

    def _traffic(self) -> Traffic:
        """With the slots as they are now."""
        project = self._project
        return Traffic(
            groups.routes_folder(project),
            gateway_of(project),
            groups.placement(project),
            project.rollout,
        )

    def _read_until_now(self) -> float | None:
        """How often the gateway has read a file of routes; None when it does not answer."""
        try:
            url = f"{groups.envoy_metrics_url(self._project)}?filter=rds"
            return scrape(url, _ANSWER_SECONDS).total(_READS)
        except ServerError:
            return None


class Host:
    """`places.Place`: the project's servers on this machine."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def about(self) -> Mapping[str, Any]:
        """Nothing more than the project."""
        return {}

    def prepare(self, number: int) -> None:
        """Nobody else rolls out here: the journal has a lock. Raises HostError."""
        _ = number
        if self._project.rollout.shadow:
            require_short(shadow_socket(self._project))

    def free_slot(self) -> Slot:
        """Where a candidate is loaded."""
        return groups.stable_slot(self._project).other

    def served(self) -> str:
        """The release that has the users."""
        return running_server(self._project).release

    def load(self, stored: Stored, progress: Progress, *, breaking: bool) -> None:
        """As `groups.start_candidate`."""
        groups.start_candidate(self._project, stored, progress, breaking=breaking)

    def unload(self, slot: Slot) -> None:
        """At once."""
        groups.stop_group(self._project, slot, at_once=True)

    def counts(self, slot: Slot) -> Counters | None:
        """What its servers have counted; None when they do not answer."""
        version = _version(self._project, slot)
        return MetricsScraper(version, None, None).look(0.0).scrape.stable

    def take_back(self) -> None:
        """All users are stable's, whoever controls the rollout. Raises HostError."""
        HostService(self._project).roll_back()

    def world(self, about: Mapping[str, Any], folder: Path) -> World:
        """For the rollout that began with `about`, in its folder."""
        project = self._project
        candidate = Slot(about["slot"])
        service = HostService(project)

        def scraper(kept: Mapping[str, Any]) -> MetricsScraper:
            return MetricsScraper(
                _version(project, candidate.other),
                _version(project, candidate),
                lambda: groups.envoy_metrics_url(project),
                clusters_of(candidate),
                _shadowed(project, candidate, folder, service, int(kept.get("shadowed", 0))),
                kept,
            )

        return World(scraper, service, time.monotonic, time.time, time.sleep)


def _shadowed(
    project: Project, candidate: Slot, folder: Path, service: HostService, offset: int
) -> Shadowing | None:
    """Who asks both versions, where the project wants it and both run."""
    stable, new = groups.group(project, candidate.other), groups.group(project, candidate)
    if not project.rollout.shadow or stable is None or new is None:
        return None
    shadowing = Shadowing(shadow_config(project, folder, stable, new), offset)
    service.mirror()
    return shadowing


def _version(project: Project, slot: Slot) -> Version | None:
    server = groups.group(project, slot)
    if server is None:
        return None
    usage = ServerUsage(server.shm_prefix) if isinstance(server, EmbeddedServer) else None
    urls = [each.metrics_url for each in current_servers(server)]
    return Version(urls, layout_of(Path(server.repository)), usage)
