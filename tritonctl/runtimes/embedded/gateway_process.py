# SPDX-License-Identifier: Apache-2.0
"""A running Envoy and its health, by its admin interface."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from http import HTTPStatus

from tritonctl.gateway.envoy import HEALTH_PATH, METRICS_PATH

ADMIN_ADDRESS = "127.0.0.1"
_TIMEOUT_SECONDS = 3


@dataclass(frozen=True, kw_only=True)
class GatewayProcess:
    """A running Envoy."""

    pid: int  # of its supervisor
    process_started: int  # of its supervisor, in kernel ticks since boot
    address: str
    port: int
    admin_port: int

    @property
    def url(self) -> str:
        """`host:port` of gRPC, REST and the OpenAI API."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    @property
    def metrics_url(self) -> str:
        """URL of Envoy's Prometheus metrics."""
        return f"http://{ADMIN_ADDRESS}:{self.admin_port}{METRICS_PATH}"


def is_ready(process: GatewayProcess) -> bool:
    """Whether Envoy serves; it does once it has probed each server."""
    status, _ = _get_admin_page(process, HEALTH_PATH)
    return status == HTTPStatus.OK


def is_cluster_healthy(process: GatewayProcess, cluster: str) -> bool:
    """Whether Envoy reports a server of a cluster as healthy."""
    metric = f'envoy_cluster_membership_healthy{{envoy_cluster_name="{cluster}"}} '
    _, text = _get_admin_page(process, METRICS_PATH)
    samples = [line for line in text.splitlines() if line.startswith(metric)]
    return any(float(line.rsplit(" ", 1)[1]) > 0 for line in samples)


def _get_admin_page(process: GatewayProcess, path: str) -> tuple[int, str]:
    """Return status and text of an admin page; status 0 if Envoy does not answer."""
    connection = http.client.HTTPConnection(
        ADMIN_ADDRESS, process.admin_port, timeout=_TIMEOUT_SECONDS
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()
