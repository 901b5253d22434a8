# SPDX-License-Identifier: Apache-2.0
"""Triton's replicas as Envoy's clusters: one for gRPC, one for REST, watched the same way.

A replica is given up for three reasons. Its HTTP readiness: on SIGTERM Triton refuses that at once,
while its streams go on to their ends. Connections that fail: three in a row eject it for a while.
HTTP/2 pings without an answer: a frozen process keeps its sockets open, so its streams are reset.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any

from tritonctl.project.server import Gateway
from tritonctl.server.gateway.placement import Placement, Upstream, triton

Message = dict[str, Any]  # a protobuf message of Envoy's API, by field name

GRPC, REST, FRONTEND, ADMIN = "triton_grpc", "triton_rest", "frontend", "admin"
ADMIN_SOCKET = "@tritonctl-gateway-admin-{port}"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_PLAIN = {"plain": True}
_BOUNDS = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
_PERCENT_THAT_MAY_BE_EJECTED = 50


def clusters(gateway: Gateway, placement: Placement) -> list[Message]:
    """All of them."""
    return [
        *_servers(gateway, placement),
        *_candidate(gateway, placement),
        _admin(placement),
    ]


def candidate(cluster: str) -> str:
    """The same servers of the release that is rolled out."""
    return f"{cluster}_candidate"


def candidate_first(cluster: str) -> str:
    """The candidate's servers while they are ready, stable's otherwise."""
    return f"{cluster}_candidate_first"


def _servers(gateway: Gateway, placement: Placement) -> list[Message]:
    triton_s = [_grpc(gateway, placement), _rest(gateway, placement)]
    return [*triton_s, *_frontend(gateway, placement)]


def _candidate(gateway: Gateway, placement: Placement) -> list[Message]:
    """Its own clusters, watched like stable's, and one that falls back on stable's for each."""
    group = placement.candidate
    if group is None:
        return []
    made = []
    of_candidate = replace(placement, upstreams=group.upstreams, frontend=group.frontend)
    for cluster in _servers(gateway, of_candidate):
        stable, own = cluster["name"], candidate(cluster["name"])
        made.append(
            cluster
            | {
                "name": own,
                "load_assignment": cluster["load_assignment"] | {"cluster_name": own},
            }
        )
        made.append(_first(candidate_first(stable), [own, stable], gateway))
    return made


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


def _grpc(gateway: Gateway, placement: Placement) -> Message:
    pings = {"interval": "5s", "timeout": "5s"}
    http2 = {"http2_protocol_options": {"connection_keepalive": pings}}
    ports = [(upstream, upstream.grpc_port) for upstream in placement.upstreams]
    cluster = _replicas(GRPC, gateway, ports, http2)
    return cluster | _tls_to_triton(placement)


def _rest(gateway: Gateway, placement: Placement) -> Message:
    ports = [(upstream, upstream.http_port) for upstream in placement.upstreams]
    # As for health checks: a kept connection would hold up the end of a server that drains.
    common = {"common_http_protocol_options": {"idle_timeout": "2s"}}
    return _replicas(REST, gateway, ports, {"http_protocol_options": {}}, **common)


def _frontend(gateway: Gateway, placement: Placement) -> list[Message]:
    """The OpenAI API: any number of frontends behind one name."""
    if placement.frontend is None:
        return []
    host, port = placement.frontend
    upstream = Upstream(host, http_port=port)
    common = {"common_http_protocol_options": {"idle_timeout": "2s"}}
    cluster = _replicas(
        FRONTEND, gateway, [(upstream, port)], {"http_protocol_options": {}}, **common
    )
    return [cluster | {"health_checks": [_health_check("/health/ready")]}]


def _replicas(
    name: str,
    gateway: Gateway,
    ports: list[tuple[Upstream, int]],
    protocol: Message,
    **common: Any,
) -> Message:
    endpoints = [
        {
            "endpoint": {
                "address": socket(upstream.host, port),
                "health_check_config": {"port_value": upstream.health_port},
            }
        }
        for upstream, port in ports
    ]
    options = typed(_HTTP_OPTIONS, explicit_http_config=protocol, **common)
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
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(),
        # One bound for all: REST has a connection per request, and a dead replica retries them all.
        "circuit_breakers": _circuit_breakers(gateway),
        "typed_extension_protocol_options": {_HTTP_OPTIONS: options},
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
    secrets = placement.secrets
    context: Message = {
        "alpn_protocols": ["h2"],
        "validation_context": {
            "trusted_ca": {"filename": secrets[triton("ca")]},
            "match_typed_subject_alt_names": [_alt_name(u) for u in placement.upstreams],
        },
    }
    if triton("client_certificate") in secrets:
        chain = {"filename": secrets[triton("client_certificate")]}
        key = {"filename": secrets[triton("client_key")]}
        context["tls_certificates"] = [{"certificate_chain": chain, "private_key": key}]
    tls = typed(
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", common_tls_context=context
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


def _alt_name(upstream: Upstream) -> Message:
    """What the server's certificate must be for: the address that is connected to."""
    try:
        ipaddress.ip_address(upstream.host)
    except ValueError:
        return {"san_type": "DNS", "matcher": {"exact": upstream.host}}
    return {"san_type": "IP_ADDRESS", "matcher": {"exact": upstream.host}}


def _admin(placement: Placement) -> Message:
    """Envoy's own administration, for the listener that lets health and metrics through."""
    endpoint = {"endpoint": {"address": admin_address(placement)}}
    assignment = {"cluster_name": ADMIN, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {"name": ADMIN, "connect_timeout": "1s", "load_assignment": assignment}


def admin_address(placement: Placement) -> Message:
    """An abstract socket: no port from which a browser or a neighbour could stop Envoy."""
    return {"pipe": {"path": ADMIN_SOCKET.format(port=placement.admin_port)}}


def socket(host: str, port: int) -> Message:
    """A TCP address."""
    return {"socket_address": {"address": host, "port_value": port}}
