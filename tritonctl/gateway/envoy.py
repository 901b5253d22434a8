# SPDX-License-Identifier: Apache-2.0
"""Envoy's bootstrap configuration as data."""

from __future__ import annotations

from typing import Any

from tritonctl.gateway.certificates import edge_context
from tritonctl.gateway.clusters import (
    ADMIN,
    FRONTEND,
    SHADOW,
    SHADOWER,
    TRITON_MODELS,
    Message,
    admin_address,
    clusters,
    shadow_address,
    socket,
    typed,
)
from tritonctl.gateway.placement import GatewayPlacement, edge_secret
from tritonctl.gateway.routes import is_inference_route, routes
from tritonctl.gateway.served_models import (
    is_stream_route,
    served_models_filters,
    with_served_models,
)
from tritonctl.gateway.tenants import KEYS, TENANT, tenant_filters, tenant_metadata
from tritonctl.project.server import Gateway

HEALTH_PATH, METRICS_PATH = "/ready", "/stats/prometheus"
_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": typed("envoy.extensions.filters.http.router.v3.Router"),
}
_ROUTES = "inference"
_TRACE_HEADERS = ("traceparent", "tracestate")
_MAX_CONNECTIONS = 50_000
_MAX_COPY_BYTES = 1 << 20
_MIN_STREAMS_PER_CONNECTION = 1024
# Preferred numbers (ISO 3, R10), from 1 ms to 63 s.
_TIMES_MS = [
    round(number * 10**decade, 2)
    for decade in range(5)
    for number in (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
    if decade < 4 or number < 8  # noqa: PLR2004 - a minute is enough
]
# Client, request, outcome, duration, replica: no header, no query, no text.
_LOGGED = {
    "start_time": "%START_TIME%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "tenant": f"%DYNAMIC_METADATA({KEYS}:{TENANT})%",
    "protocol": "%PROTOCOL%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",
    "status": "%RESPONSE_CODE%",
    "grpc_status": "%GRPC_STATUS%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "cluster": "%UPSTREAM_CLUSTER%",  # names the slot, if there are two
    "replica": "%UPSTREAM_HOST%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "duration_ms": "%DURATION%",
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
}


def envoy_configuration(gateway: Gateway, placement: GatewayPlacement) -> Message:
    """Return the bootstrap message.

    It is static, so that `envoy --mode validate` sees all of it. With two server groups, routes and
    addresses are in separate files.
    """
    # Envoy requires a node identity to read routes or certificates from a file.
    node = {"id": "gateway", "cluster": "gateway"}
    needs_node = placement.slots is not None or placement.renewed is not None
    return {
        **({"node": node} if needs_node else {}),
        "admin": {"address": admin_address(placement)},
        "static_resources": {
            "listeners": [
                _listener(gateway, placement),
                _admin_listener(placement),
                *_shadow_listener(placement),
            ],
            "clusters": clusters(gateway, placement),
        },
        "overload_manager": {"resource_monitors": [_connection_monitor()]},
        **(_fine_times() if placement.slots is not None else {}),
    }


def _fine_times() -> Message:
    """Fine histogram buckets: a rollout compares two slots by response time."""
    times = {"match": {"suffix": "upstream_rq_time"}, "buckets": _TIMES_MS}
    return {"stats_config": {"histogram_bucket_settings": [times]}}


def _listener(gateway: Gateway, placement: GatewayPlacement) -> Message:
    """The listener for gRPC and REST on one port."""
    return {
        "name": "inference",
        "address": socket(placement.address, placement.port),
        "filter_chains": [_chain(_manager(gateway, placement)) | _edge_tls(gateway, placement)],
    }


def _manager(gateway: Gateway, placement: GatewayPlacement) -> Message:
    idle = f"{gateway.stream_idle_seconds}s"
    log = typed(
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={"json_format": _LOGGED},
    )
    return {
        **_path_normalization("inference"),
        **_routes_source(gateway, placement),
        "http_filters": [*tenant_filters(gateway), *served_models_filters(), _ROUTER],
        "use_remote_address": True,
        "stream_idle_timeout": idle,
        "request_headers_timeout": "10s",
        "common_http_protocol_options": {"idle_timeout": "3600s"},
        "http2_protocol_options": _http2(gateway),
        "access_log": [{"name": "envoy.access_loggers.stdout", "typed_config": log}],
    }


def _routes_source(gateway: Gateway, placement: GatewayPlacement) -> Message:
    if placement.slots is None:
        return {"route_config": route_configuration(gateway, placement)}
    path: Message = {"path": placement.slots.routes_file}
    if placement.slots.watched is not None:
        path["watched_directory"] = {"path": placement.slots.watched}
    source = {"resource_api_version": "V3", "path_config_source": path}
    return {"rds": {"route_config_name": _ROUTES, "config_source": source}}


def route_configuration(gateway: Gateway, placement: GatewayPlacement) -> Message:
    """Return the routes of the inference port, as for one server group."""
    host: Message = {
        "name": "triton",
        "domains": ["*"],
        "routes": [
            route
            | tenant_metadata(
                gateway,
                placement,
                frontend=route["route"]["cluster"] == FRONTEND,
                inference=is_inference_route(route["match"]),
            )
            if "route" in route
            else route
            for route in routes(
                gateway, frontend=placement.frontend is not None, cors=placement.cors
            )
        ],
    }
    host["routes"] = [
        with_served_models(route, [TRITON_MODELS]) if is_stream_route(route) else route
        for route in host["routes"]
    ]
    # Triton traces every request that has a `traceparent`, whatever its sampling rate.
    trimmed = {} if gateway.trust_traces else {"request_headers_to_remove": [*_TRACE_HEADERS]}
    return {"name": _ROUTES, "virtual_hosts": [host], **trimmed}


def _path_normalization(stat_prefix: str) -> Message:
    """Return the options of a connection manager that normalise paths strictly."""
    return {
        "stat_prefix": stat_prefix,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
    }


def _http2(gateway: Gateway) -> Message:
    """HTTP/2 limits for clients with many streams per connection; windows bound Envoy's memory."""
    return {
        # Above max_requests: otherwise clients queue unseen instead of getting a refusal.
        "max_concurrent_streams": max(_MIN_STREAMS_PER_CONNECTION, 2 * gateway.max_requests),
        "initial_stream_window_size": 1 << 20,
        "initial_connection_window_size": 16 << 20,
    }


def _edge_tls(gateway: Gateway, placement: GatewayPlacement) -> Message:
    if gateway.tls is None:
        return {}
    context = typed(
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context=edge_context(placement),
        require_client_certificate=edge_secret("client_ca") in placement.secrets,
    )
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context}}


def _admin_listener(placement: GatewayPlacement) -> Message:
    """The listener for health and metrics; it exposes nothing else of the admin API."""
    paths = [
        {"match": {"path": path}, "route": {"cluster": ADMIN}}
        for path in (HEALTH_PATH, METRICS_PATH)
    ]
    host = {"name": ADMIN, "domains": ["*"], "routes": paths}
    manager = {
        **_path_normalization(ADMIN),
        "route_config": {"name": ADMIN, "virtual_hosts": [host]},
        "http_filters": [_ROUTER],
    }
    return {
        "name": ADMIN,
        "address": socket(placement.admin_address, placement.admin_port),
        "filter_chains": [_chain(manager)],
        "ignore_global_conn_limit": True,
    }


def _shadow_listener(placement: GatewayPlacement) -> list[Message]:
    """The listener that buffers each request copy until it is complete, then forwards it.

    Envoy reads a stream no faster than its copy, so a shadower that does not read would stop the
    user's stream. This listener always reads, and drops copies that are too long.
    """
    if placement.shadow is None:
        return []
    hold = typed(
        "envoy.extensions.filters.http.buffer.v3.Buffer", max_request_bytes=_MAX_COPY_BYTES
    )
    route = {"match": {"prefix": "/"}, "route": {"cluster": SHADOWER, "timeout": "5s"}}
    host = {"name": SHADOW, "domains": ["*"], "routes": [route]}
    manager = {
        "stat_prefix": SHADOW,
        "route_config": {"name": SHADOW, "virtual_hosts": [host]},
        "http_filters": [{"name": "envoy.filters.http.buffer", "typed_config": hold}, _ROUTER],
        "stream_idle_timeout": "300s",
        "http2_protocol_options": {"initial_connection_window_size": 16 << 20},
    }
    listener = {
        "name": SHADOW,
        "address": shadow_address(placement),
        "filter_chains": [_chain(manager)],
        "ignore_global_conn_limit": True,
    }
    return [listener]


def _chain(manager: Message) -> Message:
    config = typed(_MANAGER, **manager)
    name = "envoy.filters.network.http_connection_manager"
    return {"filters": [{"name": name, "typed_config": config}]}


def _connection_monitor() -> Message:
    config: dict[str, Any] = typed(
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=_MAX_CONNECTIONS,
    )
    return {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": config,
    }
