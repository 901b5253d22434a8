# SPDX-License-Identifier: Apache-2.0
"""Triton's replicas as Envoy's clusters: one for gRPC, one for REST, watched the same way.

A replica is given up for three reasons. Its HTTP readiness: on SIGTERM Triton refuses that at once,
while its streams go on to their ends. Connections that fail: three in a row eject it for a while.
HTTP/2 pings without an answer: a frozen process keeps its sockets open, so its streams are reset.
"""

from __future__ import annotations

from typing import Any

from tritonctl.project.server import Gateway
from tritonctl.server.gateway.certificates import triton_context
from tritonctl.server.gateway.placement import Group, Placement, TwoGroups, Upstream, triton
from tritonctl.server.slots import Slot

Message = dict[str, Any]  # a protobuf message of Envoy's API, by field name

GRPC, REST, FRONTEND, ADMIN = "triton_grpc", "triton_rest", "frontend", "admin"
SHADOW, SHADOWER = "shadow", "shadower"  # copies on their way; who takes them
ADMIN_SOCKET = "@tritonctl-gateway-admin-{port}"
SHADOW_SOCKET = "@tritonctl-gateway-shadow-{port}"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_PLAIN = {"plain": True}
_BOUNDS = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
_PERCENT_THAT_MAY_BE_EJECTED = 50
_MOST_COPIES = 128  # under way; what is beyond is not copied


def clusters(gateway: Gateway, placement: Placement) -> list[Message]:
    """All of them."""
    if placement.slots is None:
        servers = _servers(gateway, placement, Group(placement.upstreams, placement.frontend))
    else:
        servers = _slots(gateway, placement, placement.slots)
    return [*servers, *_shadow(placement), _admin(placement)]


def of_slot(cluster: str, slot: Slot) -> str:
    """The servers in that slot."""
    return f"{cluster}_{slot}"


def slot_first(cluster: str, slot: Slot) -> str:
    """The servers in that slot while they are ready, those in the other one otherwise."""
    return f"{cluster}_{slot}_first"


def cluster_names(placement: Placement) -> list[str]:
    """What each group of servers has a cluster for."""
    return [GRPC, REST, *([FRONTEND] if placement.frontend else [])]


def endpoints(name: str, group: Group) -> list[Message]:
    """Where the servers of a cluster are: by one of `cluster_names`."""
    if name == FRONTEND:
        host, port = group.frontend or ("", 0)
        places = [(Upstream(host, http_port=port), port)] if group.frontend else []
    else:
        places = [
            (each, each.grpc_port if name == GRPC else each.http_port) for each in group.upstreams
        ]
    return [
        {
            "endpoint": {
                "address": socket(upstream.host, port),
                "health_check_config": {"port_value": upstream.health_port},
            }
        }
        for upstream, port in places
    ]


def assignment(name: str, found: list[Message]) -> Message:
    """The servers of a cluster, as both configuration and discovery have them."""
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": found}]}


def _servers(gateway: Gateway, placement: Placement, group: Group) -> list[Message]:
    made = {GRPC: _grpc, REST: _rest, FRONTEND: _frontend}
    return [
        _replicas(name, gateway, assignment(name, endpoints(name, group))) | made[name](placement)
        for name in cluster_names(placement)
    ]


def _slots(gateway: Gateway, placement: Placement, slots: TwoGroups) -> list[Message]:
    """The clusters of both, and for each one that falls back on the other slot's."""
    made = []
    for slot in Slot:
        group = slots.groups.get(slot, Group(()))
        for cluster in _servers(gateway, placement, group):
            name, own = cluster["name"], of_slot(cluster["name"], slot)
            place = {"load_assignment": cluster.pop("load_assignment") | {"cluster_name": own}}
            if slots.endpoints is not None:
                place = _discovered(f"{slots.endpoints}/{own}.json")
            made.append(cluster | {"name": own} | place)
            both = [own, of_slot(name, slot.other)]
            made.append(_first(slot_first(name, slot), both, gateway))
    return made


def _discovered(file: str) -> Message:
    """By address, from a file that Envoy reads again whenever another one is moved there."""
    source = {"resource_api_version": "V3", "path_config_source": {"path": file}}
    return {
        "type": "EDS",
        "eds_cluster_config": {"eds_config": source},
        # One that is taken off is asked no more, however well it feels.
        "ignore_health_on_host_removal": True,
    }


def _first(name: str, names: list[str], gateway: Gateway) -> Message:
    config = typed("envoy.extensions.clusters.aggregate.v3.ClusterConfig", clusters=names)
    return {
        "name": name,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": config},
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        # Retries count here, and by default three at a time: a dead candidate has all its users'.
        "circuit_breakers": _circuit_breakers(gateway),
    }


def typed(name: str, **fields: Any) -> Message:
    """A message inside google.protobuf.Any."""
    return {"@type": f"type.googleapis.com/{name}", **fields}


def _grpc(placement: Placement) -> Message:
    pings = {"interval": "5s", "timeout": "5s"}
    http2 = {"http2_protocol_options": {"connection_keepalive": pings}}
    return _protocol(http2) | _tls_to_triton(placement)


def _rest(_: Placement) -> Message:
    # As for health checks: a kept connection would hold up the end of a server that drains.
    common = {"common_http_protocol_options": {"idle_timeout": "2s"}}
    return _protocol({"http_protocol_options": {}}, **common)


def _frontend(placement: Placement) -> Message:
    """The OpenAI API: any number of frontends behind one name."""
    return _rest(placement) | {"health_checks": [_health_check("/health/ready")]}


def _protocol(explicit: Message, **common: Any) -> Message:
    options = typed(_HTTP_OPTIONS, explicit_http_config=explicit, **common)
    return {"typed_extension_protocol_options": {_HTTP_OPTIONS: options}}


def _replicas(name: str, gateway: Gateway, servers: Message) -> Message:
    return {
        "name": name,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": "1s",
        # Of two at random, as by default: a full scan would choose a dead replica, which has the
        # least requests, again for each retry.
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {
            # With no replica ready the answer is UNAVAILABLE, not a try at a dead one.
            "healthy_panic_threshold": {"value": 0},
            "update_merge_window": "0s",  # by default an update waits for up to a second
        },
        "load_assignment": servers,
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(),
        # One bound for all: REST has a connection per request, and a dead replica retries them all.
        "circuit_breakers": _circuit_breakers(gateway),
    }


def _circuit_breakers(gateway: Gateway) -> Message:
    bounds = dict.fromkeys(_BOUNDS, gateway.max_requests)
    return {"thresholds": [bounds | {"track_remaining": True}]}


def _health_check(path: str = "/v2/health/ready") -> Message:
    return {
        "timeout": "2s",
        "interval": "1s",
        "no_traffic_interval": "1s",  # a minute by default
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "reuse_connection": False,  # Triton does not end while its HTTP port has one
        "http_health_check": {"path": path},
        "transport_socket_match_criteria": _PLAIN,
    }


def _outlier_detection() -> Message:
    """Only failures to talk count.

    A model whose queue is full answers UNAVAILABLE: to eject its replica would put its load on the
    others, which are as busy.
    """
    never = ("consecutive_5xx", "consecutive_gateway_failure", "success_rate")
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_local_origin_success_rate": 0,
        **{f"enforcing_{reason}": 0 for reason in never},
        "interval": "1s",
        "base_ejection_time": "5s",
        "max_ejection_percent": _PERCENT_THAT_MAY_BE_EJECTED,
    }


def _tls_to_triton(placement: Placement) -> Message:
    """TLS for gRPC; the health check goes to the HTTP port, which has none."""
    if triton("ca") not in placement.secrets:
        return {}
    tls = typed(
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context=triton_context(placement),
    )
    raw = typed("envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer")
    return {
        "transport_socket_matches": [
            _transport_socket("plain", _PLAIN, "envoy.transport_sockets.raw_buffer", raw),
            _transport_socket("tls", {}, "envoy.transport_sockets.tls", tls),
        ]
    }


def _transport_socket(name: str, match: Message, kind: str, config: Message) -> Message:
    socket = {"name": kind, "typed_config": config}
    return {"name": name, "match": match, "transport_socket": socket}


def _shadow(placement: Placement) -> list[Message]:
    """Copies go to a listener of Envoy's own, which holds them, and from there to the shadower.

    Nothing here waits: for no connection, no answer, no retry.
    """
    if placement.shadow is None:
        return []
    own: Message = {"http2_protocol_options": {}}
    # A user's stream may last for hours; its copy is cut.
    copies = _socket_cluster(SHADOW, shadow_address(placement), own, max_stream_duration="300s")
    shadower = {"pipe": {"path": placement.shadow}}
    plain: Message = {"http_protocol_options": {}}
    return [copies, _socket_cluster(SHADOWER, shadower, plain, idle_timeout="10s")]


def _socket_cluster(name: str, address: Message, protocol: Message, **common: str) -> Message:
    options = typed(
        _HTTP_OPTIONS, explicit_http_config=protocol, common_http_protocol_options=common
    )
    bounds = dict.fromkeys(_BOUNDS, _MOST_COPIES) | {"max_retries": 0}
    return {
        "name": name,
        "connect_timeout": "0.25s",
        "load_assignment": assignment(name, [{"endpoint": {"address": address}}]),
        "circuit_breakers": {"thresholds": [bounds]},
        "typed_extension_protocol_options": {_HTTP_OPTIONS: options},
    }


def shadow_address(placement: Placement) -> Message:
    """Where Envoy takes its own copies."""
    return {"pipe": {"path": SHADOW_SOCKET.format(port=placement.admin_port)}}


def _admin(placement: Placement) -> Message:
    """Envoy's own administration, for the listener that lets health and metrics through."""
    servers = assignment(ADMIN, [{"endpoint": {"address": admin_address(placement)}}])
    return {"name": ADMIN, "connect_timeout": "1s", "load_assignment": servers}


def admin_address(placement: Placement) -> Message:
    """An abstract socket: no port from which a browser or a neighbour could stop Envoy."""
    return {"pipe": {"path": ADMIN_SOCKET.format(port=placement.admin_port)}}


def socket(host: str, port: int) -> Message:
    """A TCP address."""
    return {"socket_address": {"address": host, "port_value": port}}
