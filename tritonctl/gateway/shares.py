# SPDX-License-Identifier: Apache-2.0
"""The routes with two server groups: split users between stable and candidate.

A user is the value of `rollout.user_header`. Its hash falls between 0 and 1,000,000; the candidate
gets the upper end of that range, in proportion to its share.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.gateway.clusters import (
    FRONTEND,
    GRPC,
    TRITON_MODELS,
    TRITON_REST,
    Message,
    assignment,
    cluster_names,
    endpoints,
    fallback_cluster_name,
    slot_cluster_name,
    typed,
)
from tritonctl.gateway.envoy import route_configuration
from tritonctl.gateway.mirror import with_mirroring
from tritonctl.gateway.placement import GatewayPlacement, ServerGroup
from tritonctl.gateway.routes import is_inference_route
from tritonctl.gateway.served_models import is_stream_route, with_served_models
from tritonctl.host.files import as_host_error
from tritonctl.project.rollout import ALL, Rollout
from tritonctl.project.server import Gateway
from tritonctl.releases.slots import Slot

STABLE, CANDIDATE = "stable", "candidate"  # values of the header for testers
# In Envoy's statistics: inference requests with and without the user header.
USERS, ANONYMOUS = "users", "others"
ROUTES = "routes.json"  # in a folder where only tritonctl writes
ROLLBACK_ROUTES = "stable.json"  # in the same folder, ready to replace it
_WEIGHT_TOTAL = 1_000_000
_ROUTE_CONFIGURATION = "envoy.config.route.v3.RouteConfiguration"
_ASSIGNMENT = "envoy.config.endpoint.v3.ClusterLoadAssignment"
# Retry a request that no server has started on stable, even if the project allows no retries.
_RETRY_UNSENT: Message = {
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
class TrafficSplit:
    """How users are split between the two slots."""

    stable: Slot
    share: float  # per cent of the users in the opposite slot


def read_split(file: Path) -> TrafficSplit | None:
    """Read the split from a routes file; None without one.

    Raises HostError if tritonctl did not write the file.
    """
    try:
        with as_host_error(file):
            text = file.read_text(encoding="utf-8")
    except HostError:
        if not file.exists():
            return None
        raise
    except ValueError:
        text = ""
    return parse_split(text, str(file))


def parse_split(text: str, source: str) -> TrafficSplit:
    """Parse the split of a routes file; `source` names it in errors.

    Raises HostError if tritonctl did not write it.
    """
    try:
        slot, share, *_ = json.loads(text)["version_info"].split()
        return TrafficSplit(Slot(slot), float(share))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HostError(
            f"{source} is not a file of routes that tritonctl wrote",
            remedy="roll back, which rewrites it; until then Envoy keeps its current routes",
        ) from error


def written_version(text: str) -> str:
    """Return the version of a routes file that `parse_split` accepts."""
    return str(json.loads(text)["version_info"])


def new_stamp() -> str:
    """Return a stamp that no routes had before: the time in nanoseconds."""
    return str(time.time_ns())


def routes_text(
    gateway: Gateway,
    placement: GatewayPlacement,
    settings: Rollout,
    split: TrafficSplit,
    *,
    shadowed: bool = False,
    stamp: str = "",
) -> str:
    """Return the routes file: a response of Envoy's route discovery.

    shadowed: mirror the share `settings.shadow` of the requests to the shadower. stamp: makes the
    version unique, so that it tells which writing of the file Envoy serves.
    """
    routes = _split_routes(route_configuration(gateway, placement), split, settings)
    if shadowed and settings.shadow and placement.shadow is not None:
        routes = with_mirroring(routes, settings.shadow)
    version = f"{split.stable} {split.share:g} {stamp}".rstrip()
    return _discovery(version, {"@type": _type(_ROUTE_CONFIGURATION), **routes})


def endpoint_files(placement: GatewayPlacement, slot: Slot, group: ServerGroup) -> dict[str, str]:
    """Return the text of each address file for a slot's servers, by file name."""
    return {
        f"{slot_cluster_name(name, slot)}.json": _discovery(
            "1",
            {"@type": _type(_ASSIGNMENT)}
            | assignment(slot_cluster_name(name, slot), endpoints(name, group)),
        )
        for name in cluster_names(placement)
    }


def require_user_header(settings: Rollout) -> str:
    """Return the header that identifies a user. Raises ConfigurationError without one."""
    if settings.user_header is None:
        raise ConfigurationError(
            "rollout.user_header is missing: it names the header that identifies a user",
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


def _split_routes(configuration: Message, split: TrafficSplit, settings: Rollout) -> Message:
    """Turn routes to one server group into routes to two."""
    hosts = [
        host
        | {
            "routes": [
                made
                for route in host["routes"]
                for made in (
                    _slot_routes(route, split, settings)
                    if route.get("route", {}).get("cluster") in {GRPC, TRITON_REST, FRONTEND}
                    else [route]
                )
            ]
        }
        for host in configuration["virtual_hosts"]
    ]
    return configuration | {"virtual_hosts": hosts}


def _slot_routes(route: Message, split: TrafficSplit, settings: Rollout) -> list[Message]:
    """Routes in Envoy's order: by the tester's header, by the user, then for all other requests."""
    name, slot = route["route"]["cluster"], split.stable
    tester, user = settings.release_header, require_user_header(settings)
    stable = {"cluster": slot_cluster_name(name, slot)}
    routes = [
        # Without a fallback on stable: a tester wants to see failures.
        _with_header_match(
            route, tester, {"exact": CANDIDATE}, {"cluster": slot_cluster_name(name, slot.opposite)}
        ),
        _with_header_match(route, tester, {"exact": STABLE}, stable),
    ]
    by_user = _weighted_action(route, split, user) if split.share > 0 else stable
    users = _with_header_match(route, user, {"safe_regex": {"regex": ".+"}}, by_user)
    anonymous = route | {"route": route["route"] | stable}
    if is_stream_route(route):
        candidate_models, stable_models = (
            slot_cluster_name(TRITON_MODELS, each) for each in (slot.opposite, slot)
        )
        split_models = [stable_models, *([candidate_models] if split.share > 0 else [])]
        routes = [
            with_served_models(made, [models])
            for made, models in zip(routes, (candidate_models, stable_models), strict=True)
        ]
        users = with_served_models(users, split_models)
        anonymous = with_served_models(anonymous, [stable_models])
    if is_inference_route(route["match"]):
        users, anonymous = users | {"stat_prefix": USERS}, anonymous | {"stat_prefix": ANONYMOUS}
    return [*routes, users, anonymous]


def _weighted_action(route: Message, split: TrafficSplit, header: str) -> Message:
    name, slot = route["route"]["cluster"], split.stable
    weight = min(_WEIGHT_TOTAL, max(1, round(split.share / ALL * _WEIGHT_TOTAL)))
    clusters = [
        {"name": slot_cluster_name(name, slot), "weight": _WEIGHT_TOTAL - weight},
        {"name": fallback_cluster_name(name, slot.opposite), "weight": weight},
    ]
    return {
        "weighted_clusters": {"clusters": clusters, "use_hash_policy": True},
        "hash_policy": [{"header": {"header_name": header}}],
        "retry_policy": {
            **route["route"].get("retry_policy", _RETRY_UNSENT),
            "retry_priority": _NEXT_PRIORITY,
        },
    }


def _with_header_match(route: Message, header: str, value: Message, action: Message) -> Message:
    headers = [*route["match"].get("headers", ()), {"name": header, "string_match": value}]
    match = route["match"] | {"headers": headers}
    route_options: dict[str, Any] = {k: v for k, v in route["route"].items() if k != "cluster"}
    return route | {"match": match, "route": route_options | action}
