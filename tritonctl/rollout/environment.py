# SPDX-License-Identifier: Apache-2.0
"""The dependencies of a rollout's controller: metrics, routes and servers, clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tritonctl.rollout.metrics import Scrape


@dataclass(frozen=True)
class GatewayRequests:
    """Requests at the gateway since it started."""

    requests: int
    with_user: int  # with the user header


@dataclass(frozen=True)
class Observation:
    """The result of one scrape."""

    scrape: Scrape
    gateway: GatewayRequests | None  # None: unknown
    problem: str = ""  # why nothing could be scraped


class Scraper(Protocol):
    """Reads the metrics of both versions and of the gateway."""

    def observe(self, at: float) -> Observation:
        """Scrape at monotonic time `at`; takes at most two seconds and never raises."""

    def saved_state(self) -> Mapping[str, Any]:
        """Return the state for a later scraper, as JSON values."""


class RolloutService(Protocol):
    """The gateway's routes (`Traffic`) and the servers of both slots.

    Each call may be repeated.
    """

    def share(self) -> float:
        """Return the candidate's share of the users in per cent."""

    def move(self, share: float) -> None:
        """Raise the candidate's share to this percentage."""

    def roll_back(self) -> None:
        """Move all users to stable with one rename."""

    def make_stable(self, slot: str) -> None:
        """Make this slot stable: it gets all users."""

    def read_by_gateway(self, seconds: float) -> bool:
        """Whether the gateway serves the last change of routes within this time; 0: now."""

    def stop(self, slot: str, *, at_once: bool) -> str:
        """Unload a slot and return its name. at_once: break open streams; clients retry."""


@dataclass(frozen=True)
class RolloutEnvironment:
    """The dependencies of a controller."""

    scraper: Callable[[Mapping[str, Any]], Scraper]  # takes the `saved_state` of an earlier one
    service: RolloutService
    clock: Callable[[], float]  # monotonic seconds
    wall: Callable[[], float]  # seconds since 1970
    sleep: Callable[[float], object]
