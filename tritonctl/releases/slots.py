# SPDX-License-Identifier: Apache-2.0
"""Two slots for server groups on one host: at most one release in each, one of them stable."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.host.files import as_host_error, write_atomically
from tritonctl.project.schema import Project
from tritonctl.releases.store import LINKS, releases_folder

CONTROLLER_LOCK = "lock"  # in `.tritonctl/rollouts`
_STABLE = "stable"


class Slot(StrEnum):
    """A slot for a server group. A project without rollouts has its servers in `a`."""

    A = "a"
    B = "b"

    @property
    def opposite(self) -> Slot:
        """The second slot."""
        return Slot.B if self is Slot.A else Slot.A

    def folder(self, project: Project) -> Path:
        """Return the folder for logs and state of its servers."""
        return project.state / ("server" if self is Slot.A else "server-b")

    def link(self, project: Project) -> Path:
        """Return the link that names the release of its servers."""
        return releases_folder(project) / LINKS[0 if self is Slot.A else 1]


def stable_slot(project: Project) -> Slot:
    """Read which slot is stable; `a` if never written.

    Raises HostError for a file that names neither slot.
    """
    file = project.state / _STABLE
    try:
        with as_host_error(file):
            return Slot(file.read_text(encoding="utf-8").strip())
    except HostError:
        if file.exists():
            raise
        return Slot.A
    except ValueError as error:
        raise HostError(
            f"{file} names neither slot `a` nor `b`",
            remedy=f"write the live slot into it; if no server runs, remove {file}",
        ) from error


def write_stable_slot(project: Project, slot: Slot) -> None:
    """Make this slot stable, durably. Raises HostError."""
    write_atomically(project.state / _STABLE, f"{slot}\n")


def controller_lock(project: Project) -> Path:
    """Return the lock of the rollout controller, which moves users between the slots."""
    return project.state / "rollouts" / CONTROLLER_LOCK
