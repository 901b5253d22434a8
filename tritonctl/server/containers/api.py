# SPDX-License-Identifier: Apache-2.0
"""Where the OpenAI API of a deployment is for clients, and whether it answers."""

from __future__ import annotations

from dataclasses import dataclass

from tritonctl.project.schema import Project
from tritonctl.server.containers.frontend import port as frontend_port
from tritonctl.server.containers.presence import published_port, service_records
from tritonctl.server.state import Deployment

SERVICE, _GATEWAY = "frontend", "envoy"  # of compose.yaml
GATEWAY = "gateway"  # the profile of the second one


@dataclass(frozen=True)
class Api:
    """`url`: what clients of OpenAI's API call their base URL. `pid`: of the frontend's process."""

    url: str
    pid: int
    ready: bool


def api_of(project: Project, deployment: Deployment) -> Api | None:
    """None for a deployment without a frontend. Raises HostError when Docker does not answer."""
    settings = project.frontend
    if settings is None or SERVICE not in deployment.profiles:
        return None
    states = [record["State"] for record in service_records(deployment, SERVICE)]
    state = states[0] if states else {}
    gateway = project.gateway if GATEWAY in deployment.profiles else None
    if gateway is None:
        address, service, inside, scheme = (
            settings.address,
            SERVICE,
            frontend_port(settings),
            "http",
        )
    else:
        address, service, inside = gateway.address, _GATEWAY, gateway.port
        scheme = "http" if gateway.tls is None else "https"
    edges = service_records(deployment, service)
    port = (published_port(edges[0], inside) if edges else 0) or inside
    running = bool(edges) and edges[0]["State"]["Status"] == "running"
    healthy = state.get("Health", {}).get("Status") == "healthy"
    host = f"[{address}]" if ":" in address else address
    return Api(f"{scheme}://{host}:{port}/v1", int(state.get("Pid", 0)), running and healthy)
