# SPDX-License-Identifier: Apache-2.0
"""The routes when there are two groups of servers: whose users a candidate has, and whose it lacks.

A user is the value of `rollout.user_header`. Its hash falls on a line from 0 to 1,000,000, of which
the candidate has the upper end: as much as its share.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host.files import explained
from tritonctl.project.rollout import ALL, Rollout
from tritonctl.project.server import Gateway
from tritonctl.server.gateway.clusters import (
    FRONTEND,
    GRPC,
    REST,
    Message,
    assignment,
    cluster_names,
    endpoints,
    of_slot,
    slot_first,
    typed,
)
from tritonctl.server.gateway.envoy import route_configuration
from tritonctl.server.gateway.mirror import mirrored
from tritonctl.server.gateway.placement import Group, Placement
from tritonctl.server.gateway.routes import asks_a_model
from tritonctl.server.slots import Slot

STABLE, CANDIDATE = "stable", "candidate"  # values of the header for testers
# In Envoy's statistics: questions to models that say whose they are, and those that do not.
USERS, OTHERS = "users", "others"
ROUTES = "routes.json"  # in a folder that nobody else writes to
BACK = "stable.json"  # beside it, ready to be moved there
_LINE = 1_000_000
_ROUTE_CONFIGURATION = "envoy.config.route.v3.RouteConfiguration"
_ASSIGNMENT = "envoy.config.endpoint.v3.ClusterLoadAssignment"
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


@dataclass(frozen=True)
class Division:
    """Which slot has the users, but for this share of them, in per cent, that the other one has."""

    stable: Slot
    share: float


def read_division(file: Path) -> Division | None:
    """What a file of routes says; None without one. Raises HostError if it is not one of ours."""
    try:
        with explained(file):
            text = file.read_text(encoding="utf-8")
    except HostError:
        if not file.exists():
            return None
        raise
    except ValueError:
        text = ""
    return division_of(text, str(file))


def division_of(text: str, where: str) -> Division:
    """What routes say that are read from `where`. Raises HostError for those of somebody else."""
    try:
        slot, share = json.loads(text)["version_info"].split()
        return Division(Slot(slot), float(share))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HostError(
            f"{where} is not a file of routes that tritonctl wrote",
            remedy="roll back, which writes it anew; until then Envoy keeps what it last read",
        ) from error


def routes_text(
    gateway: Gateway,
    placement: Placement,
    settings: Rollout,
    division: Division,
    *,
    shadowed: bool = False,
) -> str:
    """The file: a response of Envoy's route discovery.

    shadowed: a share of the requests, as `settings.shadow` says, is copied for the shadower.
    """
    routes = _split(route_configuration(gateway, placement), division, settings)
    if shadowed and settings.shadow and placement.shadow is not None:
        routes = mirrored(routes, settings.shadow)
    version = f"{division.stable} {division.share:g}"
    return _discovery(version, {"@type": _type(_ROUTE_CONFIGURATION), **routes})


def endpoints_texts(placement: Placement, slot: Slot, group: Group) -> dict[str, str]:
    """Name and text of each file with the addresses of a slot's servers."""
    return {
        f"{of_slot(name, slot)}.json": _discovery(
            "1",
            {"@type": _type(_ASSIGNMENT)} | assignment(of_slot(name, slot), endpoints(name, group)),
        )
        for name in cluster_names(placement)
    }


def require_users(settings: Rollout) -> str:
    """The header by which a user is known. Raises ConfigurationError where the project has none."""
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
    return settings.user_header


def _type(name: str) -> str:
    return f"type.googleapis.com/{name}"


def _discovery(version: str, resource: Message) -> str:
    return json.dumps({"version_info": version, "resources": [resource]}, indent=1)


def _split(configuration: Message, division: Division, settings: Rollout) -> Message:
    """The routes to one group of servers, as routes to two."""
    hosts = [
        host
        | {
            "routes": [
                made
                for route in host["routes"]
                for made in (
                    _by_slot(route, division, settings)
                    if route.get("route", {}).get("cluster") in {GRPC, REST, FRONTEND}
                    else [route]
                )
            ]
        }
        for host in configuration["virtual_hosts"]
    ]
    return configuration | {"virtual_hosts": hosts}


def _by_slot(route: Message, division: Division, settings: Rollout) -> list[Message]:
    """In the order in which Envoy tries them: by a tester's word, by the user, and for the rest."""
    name, slot = route["route"]["cluster"], division.stable
    tester, user = settings.release_header, require_users(settings)
    stable = {"cluster": of_slot(name, slot)}
    made = [
        # Without stable behind it: a tester wants to know.
        _matching(route, tester, {"exact": CANDIDATE}, {"cluster": of_slot(name, slot.other)}),
        _matching(route, tester, {"exact": STABLE}, stable),
    ]
    by_user = _by_user(route, division, user) if division.share > 0 else stable
    users = _matching(route, user, {"safe_regex": {"regex": ".+"}}, by_user)
    others = route | {"route": route["route"] | stable}
    if asks_a_model(route["match"]):
        users, others = users | {"stat_prefix": USERS}, others | {"stat_prefix": OTHERS}
    return [*made, users, others]


def _by_user(route: Message, division: Division, header: str) -> Message:
    name, slot = route["route"]["cluster"], division.stable
    weight = min(_LINE, max(1, round(division.share / ALL * _LINE)))
    clusters = [
        {"name": of_slot(name, slot), "weight": _LINE - weight},
        {"name": slot_first(name, slot.other), "weight": weight},
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
