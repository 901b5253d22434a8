# SPDX-License-Identifier: Apache-2.0
"""Two slots for groups of servers on one host: at most one release in each, one of them stable."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.host.files import explained, write_atomically
from tritonctl.project.schema import Project
from tritonctl.releases.store import LINKS, releases_folder

CONTROLLER_LOCK = "lock"  # in `.tritonctl/rollouts`
_STABLE = "stable"


class Slot(StrEnum):
    """A place for a group of servers. A project without rollouts has its servers in `a`."""

    A = "a"
    B = "b"

    @property
    def other(self) -> Slot:
        """The other one."""
        return Slot.B if self is Slot.A else Slot.A

    def folder(self, project: Project) -> Path:
        """Logs and state of its servers."""
        return project.state / ("server" if self is Slot.A else "server-b")

    def link(self, project: Project) -> Path:
        """By which its servers know the release that they serve."""
        return releases_folder(project) / LINKS[0 if self is Slot.A else 1]


def stable_slot(project: Project) -> Slot:
    """Where the servers are that have all users but a candidate's.

    Raises HostError for a file that names neither slot.
    """
    file = project.state / _STABLE
    try:
        with explained(file):
            return Slot(file.read_text(encoding="utf-8").strip())
    except HostError:
        if file.exists():
            raise
        return Slot.A
    except ValueError as error:
        raise HostError(
            f"{file} names neither slot `a` nor `b`",
            remedy=f"write the one that serves into it; with no server running, remove {file}",
        ) from error


def write_stable_slot(project: Project, slot: Slot) -> None:
    """From now on it is this one, also after a loss of power. Raises HostError."""
    write_atomically(project.state / _STABLE, f"{slot}\n")


def controller_lock(project: Project) -> Path:
    """Held by whoever moves users from one slot to the other, and judges what they get there."""
    return project.state / "rollouts" / CONTROLLER_LOCK
