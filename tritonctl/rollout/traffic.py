# SPDX-License-Identifier: Apache-2.0
"""Which users the candidate has: Envoy's routes in a file, which it reads again when one is moved.

The candidate's share of the users only grows, so whoever is in it stays. Nothing is kept of
anybody: every Envoy, also one that was restarted, puts a user in the same place. A candidate that
is not ready has its users asked of stable, at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host.files import explained, write_atomically
from tritonctl.project.rollout import ALL, Rollout
from tritonctl.project.server import Gateway
from tritonctl.server.gateway.placement import Placement
from tritonctl.server.gateway.shares import (
    BACK,
    ROUTES,
    Division,
    read_division,
    require_users,
    routes_text,
)


class Traffic:
    """The routes' file of one rollout. `folder`: where we write what Envoy reads.

    Raises ConfigurationError where the project does not say what a user is, or there is no slot for
    a candidate.
    """

    def __init__(
        self, folder: Path, gateway: Gateway, placement: Placement, settings: Rollout
    ) -> None:
        require_users(settings)
        if placement.slots is None:
            raise ConfigurationError(
                "Envoy has one group of servers, and its routes in its own configuration",
                remedy="start it with two: `tritonctl down`, then `tritonctl up`",
            )
        self.file = folder / ROUTES
        self._back = folder / BACK
        self._stable = placement.slots.stable
        self._gateway, self._placement, self._settings = gateway, placement, settings

    def share(self) -> float:
        """Per cent of the users that the candidate has by the file; 0 without one.

        0 as well by a file that still has the slots the other way round, of a promotion that was
        cut short: `begin` mends it. Raises HostError if it is not one of ours.
        """
        found = read_division(self.file)
        return found.share if found is not None and found.stable is self._stable else 0.0

    def begin(self) -> None:
        """Before Envoy starts, and before the first step: a file that says which slot is stable."""
        found = read_division(self.file)
        if found is None or found.stable is not self._stable:
            write_atomically(self.file, self._text(0))

    def move(self, share: float) -> None:
        """Give the candidate this share of the users, in per cent: at least what it has.

        Raises ConfigurationError for less: that is what `roll_back` is for. Raises HostError.
        """
        now = self.share()
        if not now <= share <= ALL or share <= 0:
            raise ConfigurationError(
                f"rollout.steps: the candidate has {now:g} % of the users, "
                f"{share:g} % is no step from there",
                remedy="a share only grows, up to 100; to take users back, roll back",
            )
        self._write(share)

    def mirror(self) -> None:
        """Nobody is moved: from now on `rollout.shadow` of the requests are copied.

        As after a move; before the first one a bad candidate is seen while it has no users. Raises
        HostError.
        """
        self._write(self.share())

    def _write(self, share: float) -> None:
        # First, so that a full disk does not stand in the way of a rollback.
        write_atomically(self._back, self._text(0))
        write_atomically(self.file, self._text(share, shadowed=True))
        self._keep()

    def roll_back(self) -> None:
        """All users are stable's: one rename of a file that is there already. Twice is once.

        Raises HostError.
        """
        with explained(self.file):
            if self._leads_back():
                os.replace(self._back, self.file)
            else:
                # Done before, by whoever crashed behind it; or somebody tidied up.
                write_atomically(self.file, self._text(0))
        self._keep()

    def _leads_back(self) -> bool:
        """Whether the prepared file is there, and is not of a rollout before a promotion."""
        try:
            return read_division(self._back) == Division(self._stable, 0)
        except HostError:
            return False

    def _text(self, share: float, *, shadowed: bool = False) -> str:
        division = Division(self._stable, share)
        return routes_text(
            self._gateway, self._placement, self._settings, division, shadowed=shadowed
        )

    def _keep(self) -> None:
        _keep(self.file)


def lead_back(folder: Path) -> None:
    """All users are stable's, as `roll_back`, by the prepared file alone: no project is needed.

    Raises HostError where there is none.
    """
    file = folder / ROUTES
    with explained(file):
        os.replace(folder / BACK, file)
    _keep(file)


def _keep(file: Path) -> None:
    """The rename itself, through a loss of power."""
    with explained(file):
        handle = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
