# SPDX-License-Identifier: Apache-2.0
"""The platform of a rollout: this host or a cluster, with the same policy, judge and journal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.slots import Slot
from tritonctl.releases.store import StoredRelease
from tritonctl.rollout.environment import RolloutEnvironment
from tritonctl.rollout.host_environment import HostPlatform
from tritonctl.rollout.journal import settings_of
from tritonctl.rollout.kubernetes_environment import KUBERNETES, KubernetesPlatform
from tritonctl.rollout.metrics import Counters
from tritonctl.runtimes.kubernetes.kubectl import Kubectl


class RolloutPlatform(Protocol):
    """The operations of a rollout outside of `controller.RolloutEnvironment`."""

    def journal_details(self) -> Mapping[str, Any]:
        """Return the JSON values by which `platform_of` finds the platform again."""

    def prepare(self, number: int) -> None:
        """Check everything that could fail later, before the rollout of this number starts."""

    def free_slot(self) -> Slot:
        """Return the slot for the candidate."""

    def live_release(self) -> str:
        """Name the release that has the users."""

    def load(self, stored: StoredRelease, progress: Progress, *, breaking: bool) -> None:
        """Load a release in the free slot; no user moves."""

    def unload(self, slot: Slot) -> None:
        """Stop the servers of a slot at once."""

    def counters(self, slot: Slot) -> Counters | None:
        """Read the counters of a slot's servers; times only if they have had requests."""

    def take_back(self) -> None:
        """Move all users to stable, with or without a controller. Raises HostError."""

    def environment(self, details: Mapping[str, Any], folder: Path) -> RolloutEnvironment:
        """Return the controller's environment for these start details, in the rollout's folder."""


def platform_of(project: Project, details: Mapping[str, Any]) -> RolloutPlatform:
    """Return the platform of a rollout, with the settings in its start details."""
    started = project.model_copy(update={"rollout": settings_of(details)})
    if details.get("on") != KUBERNETES:
        return HostPlatform(started)
    kubectl = Kubectl(details.get("context"), details.get("namespace"))
    return KubernetesPlatform(started, kubectl, str(details["name"]))
