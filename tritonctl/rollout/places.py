# SPDX-License-Identifier: Apache-2.0
"""Where a rollout takes place, on this host or in a cluster: the same policy, judge, journal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.store import Stored
from tritonctl.rollout.controller import World
from tritonctl.rollout.journal import settings_of
from tritonctl.rollout.kubernetes import KUBERNETES, Cluster
from tritonctl.rollout.metrics import Counters
from tritonctl.rollout.one_host import Host
from tritonctl.server.kubernetes.kubectl import Kubectl
from tritonctl.server.slots import Slot


class Place(Protocol):
    """What a rollout needs of it besides `controller.World`."""

    def about(self) -> Mapping[str, Any]:
        """By which `place_of` finds it again; as JSON holds it."""

    def prepare(self, number: int) -> None:
        """Refuse what would fail later, before the rollout of this number begins."""

    def free_slot(self) -> Slot:
        """Where a candidate is loaded."""

    def served(self) -> str:
        """The name of the release that has the users."""

    def load(self, stored: Stored, progress: Progress, *, breaking: bool) -> None:
        """Load a release in the free slot; nobody is moved."""

    def unload(self, slot: Slot) -> None:
        """End what was loaded, at once."""

    def counts(self, slot: Slot) -> Counters | None:
        """What the servers of a slot have counted: times only where they have had requests."""

    def take_back(self) -> None:
        """All users are stable's, whoever controls the rollout. Raises HostError."""

    def world(self, about: Mapping[str, Any], folder: Path) -> World:
        """For the controller of the rollout that began with `about`, in its folder."""


def place_of(project: Project, about: Mapping[str, Any]) -> Place:
    """Where a rollout that began with `about` is, with the settings that it began with."""
    started = project.model_copy(update={"rollout": settings_of(about)})
    if about.get("on") != KUBERNETES:
        return Host(started)
    kubectl = Kubectl(about.get("context"), about.get("namespace"))
    return Cluster(started, kubectl, str(about["name"]))
