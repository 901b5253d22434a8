# SPDX-License-Identifier: Apache-2.0
"""Triton's replicas as Envoy clusters: one for gRPC, one for REST, with the same health checks.

Envoy drops a replica for three reasons. HTTP readiness: on SIGTERM Triton fails that check at once,
while open streams continue to their end. Failed connections: three in a row eject the replica for
a while. Unanswered HTTP/2 pings: a frozen process keeps its sockets open; Envoy resets its streams.
"""

from __future__ import annotations

from typing import Any

from tritonctl.gateway.certificates import triton_context
from tritonctl.gateway.placement import (
    EnvoyUpstream,
    GatewayPlacement,
    ServerGroup,
    SlotGroups,
    triton_secret,
)
from tritonctl.host.files import PRIVATE
from tritonctl.project.server import Gateway
from tritonctl.releases.slots import Slot

Message = dict[str, Any]  # a protobuf message of Envoy's API, by field name

GRPC, TRITON_REST, FRONTEND, ADMIN = "triton_grpc", "triton_rest", "frontend", "admin"
# The same servers as TRITON_REST, asked for their models: a rollout counts users' requests alone.
TRITON_MODELS = "triton_models"
SHADOW, SHADOWER = "shadow", "shadower"  # the listener for request copies; the process behind it
ADMIN_SOCKET = "tritonctl-gateway-admin.sock"
SHADOW_SOCKET = "tritonctl-gateway-shadow.sock"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_PLAIN = {"plain": True}
_BOUNDS = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
_MAX_EJECTION_PERCENT = 50
_MAX_MODEL_REQUESTS = 1 << 20  # more than streams that may come at once
_MAX_COPIES = 128  # in flight; Envoy does not copy further requests


def clusters(gateway: Gateway, placement: GatewayPlacement) -> list[Message]:
    """Return every cluster of the configuration."""
    if placement.slots is None:
        servers = _servers(gateway, placement, ServerGroup(placement.upstreams, placement.frontend))
    else:
        servers = _slots(gateway, placement, placement.slots)
    return [*servers, *_shadow(placement), _admin(placement)]


def slot_cluster_name(cluster: str, slot: Slot) -> str:
    """Name the cluster of the servers in a slot."""
    return f"{cluster}_{slot}"


def fallback_cluster_name(cluster: str, slot: Slot) -> str:
    """Name the cluster that uses a slot while it is ready and the opposite slot otherwise."""
    return f"{cluster}_{slot}_first"


def cluster_names(placement: GatewayPlacement) -> list[str]:
    """Name the protocols for which each server group has a cluster."""
    return [GRPC, TRITON_REST, TRITON_MODELS, *([FRONTEND] if placement.frontend else [])]


def endpoints(name: str, group: ServerGroup) -> list[Message]:
    """Return the endpoints of a cluster; `name` is one of `cluster_names`."""
    if name == FRONTEND:
        host, port = group.frontend or ("", 0)
        addresses = [(EnvoyUpstream(host, http_port=port), port)] if group.frontend else []
    else:
        addresses = [
            (server, server.grpc_port if name == GRPC else server.http_port)
            for server in group.upstreams
        ]
    return [
        {
            "endpoint": {
                "address": socket(upstream.host, port),
                "health_check_config": {"port_value": upstream.health_port},
            }
        }
        for upstream, port in addresses
    ]


def assignment(name: str, server_endpoints: list[Message]) -> Message:
    """Return a cluster's load assignment, for static configuration and for discovery."""
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": server_endpoints}]}


def _servers(gateway: Gateway, placement: GatewayPlacement, group: ServerGroup) -> list[Message]:
    made = {
        GRPC: _grpc_transport_options,
        TRITON_REST: _rest_options,
        TRITON_MODELS: _models_options,
        FRONTEND: _frontend,
    }
    return [
        _replicas(name, gateway, assignment(name, endpoints(name, group))) | made[name](placement)
        for name in cluster_names(placement)
    ]


def _slots(gateway: Gateway, placement: GatewayPlacement, slots: SlotGroups) -> list[Message]:
    """The clusters of both slots, each with one that falls back on the opposite slot."""
    slot_clusters = []
    for slot in Slot:
        group = slots.groups.get(slot, ServerGroup(()))
        for cluster in _servers(gateway, placement, group):
            name, slot_cluster = cluster["name"], slot_cluster_name(cluster["name"], slot)
            address_source = {
                "load_assignment": cluster.pop("load_assignment") | {"cluster_name": slot_cluster}
            }
            if slots.endpoints is not None:
                address_source = _eds_config(f"{slots.endpoints}/{slot_cluster}.json")
            slot_clusters.append(cluster | {"name": slot_cluster} | address_source)
            cluster_pair = [slot_cluster, slot_cluster_name(name, slot.opposite)]
            slot_clusters.append(
                _fallback_cluster(fallback_cluster_name(name, slot), cluster_pair, gateway)
            )
    return slot_clusters


def _eds_config(file: str) -> Message:
    """Endpoints from a file that Envoy rereads whenever a new one is moved into its place."""
    source = {"resource_api_version": "V3", "path_config_source": {"path": file}}
    return {
        "type": "EDS",
        "eds_cluster_config": {"eds_config": source},
        # An endpoint that leaves the file gets no more requests, healthy or not.
        "ignore_health_on_host_removal": True,
    }


def _fallback_cluster(name: str, names: list[str], gateway: Gateway) -> Message:
    config = typed("envoy.extensions.clusters.aggregate.v3.ClusterConfig", clusters=names)
    return {
        "name": name,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": config},
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        # Retries count here, by default three at a time: a dead candidate needs one per request.
        "circuit_breakers": _circuit_breakers(gateway),
    }


def typed(name: str, **fields: Any) -> Message:
    """Return a message wrapped in google.protobuf.Any."""
    return {"@type": f"type.googleapis.com/{name}", **fields}


def _grpc_transport_options(placement: GatewayPlacement) -> Message:
    pings = {"interval": "5s", "timeout": "5s"}
    http2 = {"http2_protocol_options": {"connection_keepalive": pings}}
    return _protocol(http2) | _tls_to_triton(placement)


def _rest_options(_: GatewayPlacement) -> Message:
    # As for health checks: an idle connection would delay the exit of a draining server.
    common = {"common_http_protocol_options": {"idle_timeout": "2s"}}
    return _protocol({"http_protocol_options": {}}, **common)


def _models_options(placement: GatewayPlacement) -> Message:
    """Without health checks of its own: a server that does not answer is asked again later.

    Nor with the users' limit: of a burst each stream asks until the first answer has come.
    """
    bounds = dict.fromkeys(_BOUNDS, _MAX_MODEL_REQUESTS)
    return _rest_options(placement) | {
        "health_checks": [],
        "circuit_breakers": {"thresholds": [bounds]},
    }


def _frontend(placement: GatewayPlacement) -> Message:
    """Options for the OpenAI API: any number of frontends behind one DNS name."""
    return _rest_options(placement) | {"health_checks": [_health_check("/health/ready")]}


def _protocol(explicit: Message, **common: Any) -> Message:
    options = typed(_HTTP_OPTIONS, explicit_http_config=explicit, **common)
    return {"typed_extension_protocol_options": {_HTTP_OPTIONS: options}}


def _replicas(name: str, gateway: Gateway, servers: Message) -> Message:
    return {
        "name": name,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": "1s",
        # The default compares two random replicas. A full scan would choose a dead replica, which
        # has the fewest requests, again for each retry.
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {
            # Without a ready replica Envoy answers UNAVAILABLE instead of trying a dead one.
            "healthy_panic_threshold": {"value": 0},
            "update_merge_window": "0s",  # by default an update waits for up to a second
        },
        "load_assignment": servers,
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(),
        # One limit for all: REST has a connection per request, and a dead replica retries them all.
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
        "reuse_connection": False,  # Triton does not exit while its HTTP port has a connection
        "http_health_check": {"path": path},
        "transport_socket_match_criteria": _PLAIN,
    }


def _outlier_detection() -> Message:
    """Outlier detection that counts only connection failures.

    A model with a full queue answers UNAVAILABLE: ejecting its replica would move its load to the
    remaining ones, which are as busy.
    """
    never = ("consecutive_5xx", "consecutive_gateway_failure", "success_rate")
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_local_origin_success_rate": 0,
        **{f"enforcing_{reason}": 0 for reason in never},
        "interval": "1s",
        "base_ejection_time": "5s",
        "max_ejection_percent": _MAX_EJECTION_PERCENT,
    }


def _tls_to_triton(placement: GatewayPlacement) -> Message:
    """TLS for gRPC; health checks use the HTTP port, which has no TLS."""
    if triton_secret("ca") not in placement.secrets:
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


def _shadow(placement: GatewayPlacement) -> list[Message]:
    """Send copies to an internal listener of Envoy, which buffers them for the shadower.

    Nothing here waits: not for a connection, an answer or a retry.
    """
    if placement.shadow is None:
        return []
    http2_options: Message = {"http2_protocol_options": {}}
    # A user's stream may last for hours; Envoy cuts its copy.
    copies = _socket_cluster(
        SHADOW, shadow_address(placement), http2_options, max_stream_duration="300s"
    )
    shadower = {"pipe": {"path": placement.shadow}}
    http1_options: Message = {"http_protocol_options": {}}
    return [copies, _socket_cluster(SHADOWER, shadower, http1_options, idle_timeout="10s")]


def _socket_cluster(name: str, address: Message, protocol: Message, **common: str) -> Message:
    options = typed(
        _HTTP_OPTIONS, explicit_http_config=protocol, common_http_protocol_options=common
    )
    bounds = dict.fromkeys(_BOUNDS, _MAX_COPIES) | {"max_retries": 0}
    return {
        "name": name,
        "connect_timeout": "0.25s",
        "load_assignment": assignment(name, [{"endpoint": {"address": address}}]),
        "circuit_breakers": {"thresholds": [bounds]},
        "typed_extension_protocol_options": {_HTTP_OPTIONS: options},
    }


def shadow_address(placement: GatewayPlacement) -> Message:
    """Return the address where Envoy accepts its own request copies."""
    return _private_socket(placement, SHADOW_SOCKET)


def _admin(placement: GatewayPlacement) -> Message:
    """The cluster of Envoy's admin API, for the listener that exposes health and metrics."""
    servers = assignment(ADMIN, [{"endpoint": {"address": admin_address(placement)}}])
    return {"name": ADMIN, "connect_timeout": "1s", "load_assignment": servers}


def admin_address(placement: GatewayPlacement) -> Message:
    """Return the socket of the whole admin API, which stops Envoy on a POST."""
    return _private_socket(placement, ADMIN_SOCKET)


def _private_socket(placement: GatewayPlacement, name: str) -> Message:
    """Return a socket of this user alone.

    Any user of the machine connects to a port or to an abstract socket, which has no mode.
    """
    return {"pipe": {"path": f"{placement.socket_folder}/{name}", "mode": PRIVATE}}


def socket(host: str, port: int) -> Message:
    """Return a TCP address."""
    return {"socket_address": {"address": host, "port_value": port}}
