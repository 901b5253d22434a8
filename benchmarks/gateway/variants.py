# SPDX-License-Identifier: Apache-2.0
"""Envoy configurations: as rendered, without one part, and with next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Configuration = dict[str, Any]
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_TCP = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
_EDGE = ("stream_idle_timeout", "request_headers_timeout", "common_http_protocol_options",
         "use_remote_address", "normalize_path", "merge_slashes",
         "path_with_escaped_slashes_action", "http2_protocol_options")  # fmt: skip


def ours(_: Configuration) -> None:
    """As rendered."""


def without_access_log(configuration: Configuration) -> None:
    """Write no log."""
    del _manager(configuration)["access_log"]


def without_retries(configuration: Configuration) -> None:
    """Keep no requests to send again."""
    for route in _host(configuration)["routes"]:
        route.get("route", {}).pop("retry_policy", None)


def without_health_checks(configuration: Configuration) -> None:
    """Do not ask the server each second."""
    _drop_of_clusters(configuration, "health_checks")


def without_outlier_ejection(configuration: Configuration) -> None:
    """Count no failures."""
    _drop_of_clusters(configuration, "outlier_detection")


def without_pings(configuration: Configuration) -> None:
    """Do not notice a frozen server."""
    options = _triton(configuration)["typed_extension_protocol_options"][_HTTP]
    options["explicit_http_config"]["http2_protocol_options"] = {}


def router_alone(configuration: Configuration) -> None:
    """HTTP/2 on both sides and one route."""
    for change in (
        without_access_log,
        without_retries,
        without_health_checks,
        without_outlier_ejection,
        without_pings,
    ):
        change(configuration)
    _drop_of_clusters(configuration, "circuit_breakers")
    del configuration["overload_manager"]
    for name in _EDGE:
        _manager(configuration).pop(name)
    _manager(configuration)["stream_idle_timeout"] = "0s"
    _manager(configuration)["route_config"].pop("request_headers_to_remove", None)
    cluster = _triton(configuration)
    del configuration["static_resources"]["clusters"][1]
    cluster.pop("dns_lookup_family", None)
    cluster.pop("common_lb_config", None)
    cluster |= {"type": "STATIC", "lb_policy": "ROUND_ROBIN"}
    route = {"cluster": cluster["name"], "timeout": "0s"}
    _host(configuration)["routes"] = [{"match": {"prefix": "/"}, "route": route}]


def bytes_alone(configuration: Configuration) -> None:
    """Envoy as a TCP proxy, which reads nothing."""
    router_alone(configuration)
    proxy = {"@type": _TCP, "stat_prefix": "tcp", "cluster": _triton(configuration)["name"]}
    _chain(configuration)["filters"] = [
        {"name": "envoy.filters.network.tcp_proxy", "typed_config": proxy}
    ]


VARIANTS: dict[str, Callable[[Configuration], None]] = {
    "Envoy that passes bytes on (`tcp_proxy`)": bytes_alone,
    "Envoy with HTTP/2 and the router alone": router_alone,
    "ours": ours,
    "ours without the access log": without_access_log,
    "ours without retries": without_retries,
    "ours without health checks": without_health_checks,
    "ours without outlier ejection": without_outlier_ejection,
    "ours without pings": without_pings,
}


def _chain(configuration: Configuration) -> Configuration:
    chain: Configuration = configuration["static_resources"]["listeners"][0]["filter_chains"][0]
    return chain


def _manager(configuration: Configuration) -> Configuration:
    manager: Configuration = _chain(configuration)["filters"][0]["typed_config"]
    return manager


def _host(configuration: Configuration) -> Configuration:
    host: Configuration = _manager(configuration)["route_config"]["virtual_hosts"][0]
    return host


def _triton(configuration: Configuration) -> Configuration:
    """The cluster of gRPC; REST's comes second."""
    cluster: Configuration = configuration["static_resources"]["clusters"][0]
    return cluster


def _drop_of_clusters(configuration: Configuration, part: str) -> None:
    for cluster in configuration["static_resources"]["clusters"]:
        cluster.pop(part, None)
