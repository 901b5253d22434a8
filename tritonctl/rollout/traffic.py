# SPDX-License-Identifier: Apache-2.0
"""Which users the candidate has: Envoy's routes in a file, which it reads again when one is moved.

A user is the value of `rollout.user_header`. Its hash falls on a line from 0 to 1,000,000, of which
the candidate has the upper end: as much as its share. The end only grows, so whoever is in it
stays. Nothing is kept of anybody: every Envoy, also one that was restarted, puts a user in the same
place. A candidate that is not ready has its users asked of stable, at once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host.files import explained, write_atomically
from tritonctl.project.rollout import ALL, Rollout
from tritonctl.project.server import Gateway
from tritonctl.server.gateway.clusters import (
    FRONTEND,
    GRPC,
    REST,
    Message,
    candidate,
    candidate_first,
    typed,
)
from tritonctl.server.gateway.envoy import route_configuration
from tritonctl.server.gateway.placement import Placement

STABLE, CANDIDATE = "stable", "candidate"  # values of the header for testers
ROUTES = "routes.json"  # in a folder that nobody else writes to
_BACK = "stable.json"  # beside it, ready to be moved there
_LINE = 1_000_000
_ROUTE_CONFIGURATION = "envoy.config.route.v3.RouteConfiguration"
# Of a request that no server has begun with: it may be asked of stable, however few retries the
# project allows.
_NOT_BEGUN: Message = {
    "retry_on": "connect-failure,refused-stream,reset-before-request",
    "num_retries": 1,
}
_NEXT_PRIORITY = {
    "name": "envoy.retry_priorities.previous_priorities",
    "typed_config": typed(
        "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
        update_frequency=1,
    ),
}


class Traffic:
    """The routes' file of one rollout. `folder`: where we write what Envoy reads.

    Raises ConfigurationError where the project does not say what a user is, or there is no
    candidate.
    """

    def __init__(
        self, folder: Path, gateway: Gateway, placement: Placement, settings: Rollout
    ) -> None:
        _check(placement, settings)
        self.file = folder / ROUTES
        self._back = folder / _BACK
        self._gateway, self._placement, self._settings = gateway, placement, settings

    def share(self) -> float:
        """Per cent of the users that the candidate has by the file; 0 without one.

        Raises HostError if it is not one of ours.
        """
        try:
            with explained(self.file):
                text = self.file.read_text(encoding="utf-8")
            return float(json.loads(text)["version_info"])
        except HostError:
            if not self.file.exists():
                return 0.0
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise HostError(
                f"{self.file} is not a file of routes that tritonctl wrote",
                remedy="roll back, which writes it anew; until then Envoy keeps what it last read",
            ) from error

    def begin(self) -> None:
        """Before Envoy starts: a file, if there is none; all users are stable's."""
        if not self.file.exists():
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
        # First, so that a full disk does not stand in the way of a rollback.
        write_atomically(self._back, self._text(0))
        write_atomically(self.file, self._text(share))
        self._keep()

    def roll_back(self) -> None:
        """All users are stable's: one rename of a file that is there already. Twice is once.

        Raises HostError.
        """
        with explained(self.file):
            try:
                os.replace(self._back, self.file)
            except FileNotFoundError:
                # Done before, by whoever crashed behind it; or somebody tidied up.
                write_atomically(self.file, self._text(0))
        self._keep()

    def _text(self, share: float) -> str:
        """The file: a response of Envoy's route discovery."""
        routes = split(
            route_configuration(self._gateway, self._placement),
            share,
            self._settings,
            frontend=self._placement.candidate is not None
            and self._placement.candidate.frontend is not None,
        )
        resource = {"@type": f"type.googleapis.com/{_ROUTE_CONFIGURATION}", **routes}
        return json.dumps({"version_info": f"{share:g}", "resources": [resource]}, indent=1)

    def _keep(self) -> None:
        """The rename itself, through a loss of power."""
        with explained(self.file):
            handle = os.open(self.file.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def split(configuration: Message, share: float, settings: Rollout, *, frontend: bool) -> Message:
    """The routes to stable, with the candidate's beside them.

    share: per cent of the users; frontend: whether the candidate has one, too.
    """
    both = {GRPC, REST, FRONTEND} if frontend else {GRPC, REST}
    hosts = [
        host
        | {
            "routes": [
                made
                for route in host["routes"]
                for made in (
                    _split(route, share, settings)
                    if route.get("route", {}).get("cluster") in both
                    else [route]
                )
            ]
        }
        for host in configuration["virtual_hosts"]
    ]
    return configuration | {"virtual_hosts": hosts}


def _split(route: Message, share: float, settings: Rollout) -> list[Message]:
    """In the order in which Envoy tries them: by a tester's word, by the user, and for the rest."""
    cluster = route["route"]["cluster"]
    tester, user = settings.release_header, str(settings.user_header)
    made = [
        # Without stable behind it: a tester wants to know.
        _matching(route, tester, {"exact": CANDIDATE}, {"cluster": candidate(cluster)}),
        _matching(route, tester, {"exact": STABLE}, {"cluster": cluster}),
    ]
    if share > 0:
        made.append(
            _matching(route, user, {"safe_regex": {"regex": ".+"}}, _by_user(route, share, user))
        )
    return [*made, route]


def _by_user(route: Message, share: float, header: str) -> Message:
    cluster = route["route"]["cluster"]
    weight = min(_LINE, max(1, round(share / ALL * _LINE)))
    clusters = [
        {"name": cluster, "weight": _LINE - weight},
        {"name": candidate_first(cluster), "weight": weight},
    ]
    return {
        "weighted_clusters": {"clusters": clusters, "use_hash_policy": True},
        "hash_policy": [{"header": {"header_name": header}}],
        "retry_policy": {
            **route["route"].get("retry_policy", _NOT_BEGUN),
            "retry_priority": _NEXT_PRIORITY,
        },
    }


def _matching(route: Message, header: str, value: Message, action: Message) -> Message:
    match = route["match"] | {"headers": [{"name": header, "string_match": value}]}
    rest: dict[str, Any] = {k: v for k, v in route["route"].items() if k != "cluster"}
    return route | {"match": match, "route": rest | action}


def _check(placement: Placement, settings: Rollout) -> None:
    if settings.user_header is None:
        raise ConfigurationError(
            "rollout.user_header is missing: it says by which header a user is known",
            remedy="name the request header that holds the user, such as `user_header: x-user-id`",
        )
    if settings.user_header == settings.release_header:
        raise ConfigurationError(
            f"rollout.release_header: {settings.user_header} already names the user",
            remedy="choose another header for one of them",
        )
    if placement.candidate is None or placement.routes_file is None:
        raise ConfigurationError(
            "Envoy knows no candidate, or has its routes in its own configuration",
            remedy="start Envoy with both groups of servers and a file of routes",
        )
