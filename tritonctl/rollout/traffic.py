# SPDX-License-Identifier: Apache-2.0
"""The candidate's users: Envoy's routes in a file, which Envoy rereads on a rename.

The candidate's share of the users only grows, so its users stay. No state per user is stored: every
Envoy, also after a restart, assigns a user to the same version. If the candidate is not ready,
stable answers its users at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.gateway.placement import GatewayPlacement
from tritonctl.gateway.shares import (
    ROLLBACK_ROUTES,
    ROUTES,
    TrafficSplit,
    new_stamp,
    parse_split,
    read_split,
    require_user_header,
    routes_text,
    written_version,
)
from tritonctl.host.files import as_host_error, write_atomically
from tritonctl.project.rollout import ALL, Rollout
from tritonctl.project.server import Gateway


class Traffic:
    """The routes file of one rollout, in the `folder` that Envoy reads.

    Raises ConfigurationError without a user header, or without a slot for a candidate.
    """

    def __init__(
        self, folder: Path, gateway: Gateway, placement: GatewayPlacement, settings: Rollout
    ) -> None:
        require_user_header(settings)
        if placement.slots is None:
            raise ConfigurationError(
                "Envoy runs with one server group and static routes",
                remedy="restart it with two groups: `tritonctl down`, then `tritonctl up`",
            )
        self.file = folder / ROUTES
        self._back = folder / ROLLBACK_ROUTES
        self._stable = placement.slots.stable
        self._gateway, self._placement, self._settings = gateway, placement, settings

    def share(self) -> float:
        """Return the candidate's share of the users in per cent; 0 without a file.

        Also 0 if the slots are swapped after an interrupted promotion; `write_initial_routes`
        repairs that. Raises HostError if tritonctl did not write the file.
        """
        split = read_split(self.file)
        return split.share if split is not None and split.stable is self._stable else 0.0

    def written_version(self) -> str:
        """Return the version of the routes file. Raises HostError for another file or none."""
        with as_host_error(self.file):
            text = self.file.read_text(encoding="utf-8")
        parse_split(text, str(self.file))
        return written_version(text)

    def write_initial_routes(self) -> None:
        """Write routes that name the stable slot, before Envoy starts and before the first step."""
        split = read_split(self.file)
        if split is None or split.stable is not self._stable:
            write_atomically(self.file, self._text(0))

    def move(self, share: float) -> None:
        """Raise the candidate's share of the users to this percentage.

        Raises ConfigurationError for a lower share (use `roll_back`), HostError.
        """
        now = self.share()
        if not now <= share <= ALL or share <= 0:
            raise ConfigurationError(
                f"rollout.steps: the candidate has {now:g} % of the users, "
                f"{share:g} % is not a valid next step",
                remedy="a share only grows, up to 100; to take users back, roll back",
            )
        self._write(share)

    def start_mirroring(self) -> None:
        """Mirror the share `rollout.shadow` of the requests; no user moves.

        Before the first step, this reveals a bad candidate while it has no users. Raises HostError.
        """
        self._write(self.share())

    def _write(self, share: float) -> None:
        # First, so that a rollback works on a full disk.
        write_atomically(self._back, self._text(0))
        write_atomically(self.file, self._text(share, shadowed=True))
        self._sync()

    def roll_back(self) -> None:
        """Move all users to stable by renaming a prepared file; may be repeated.

        Raises HostError.
        """
        with as_host_error(self.file):
            if self._has_valid_rollback_file():
                os.replace(self._back, self.file)
            else:
                # A crashed controller already used the file, or an operator removed it.
                write_atomically(self.file, self._text(0))
        self._sync()

    def _has_valid_rollback_file(self) -> bool:
        """Whether the prepared file exists and matches the current stable slot."""
        try:
            return read_split(self._back) == TrafficSplit(self._stable, 0)
        except HostError:
            return False

    def _text(self, share: float, *, shadowed: bool = False) -> str:
        division = TrafficSplit(self._stable, share)
        return routes_text(
            self._gateway,
            self._placement,
            self._settings,
            division,
            shadowed=shadowed,
            stamp=new_stamp(),
        )

    def _sync(self) -> None:
        _sync_folder_of(self.file)


def roll_back_without_project(folder: Path) -> None:
    """Move all users to stable as `roll_back`, with the prepared file alone.

    Raises HostError if the file is missing.
    """
    file = folder / ROUTES
    with as_host_error(file):
        os.replace(folder / ROLLBACK_ROUTES, file)
    _sync_folder_of(file)


def _sync_folder_of(file: Path) -> None:
    """Make a rename durable."""
    with as_host_error(file):
        handle = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
