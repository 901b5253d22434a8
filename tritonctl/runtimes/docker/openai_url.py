# SPDX-License-Identifier: Apache-2.0
"""Find the URL of a deployment's OpenAI API, and whether it is ready."""

from __future__ import annotations

from dataclasses import dataclass

from tritonctl.project.schema import Project
from tritonctl.runtimes.docker.discovery import published_port, service_records
from tritonctl.runtimes.docker.frontend import container_port as frontend_port
from tritonctl.runtimes.server_state import Deployment

SERVICE, _GATEWAY = "frontend", "envoy"  # services of compose.yaml
GATEWAY = "gateway"  # the profile of the service `envoy`


@dataclass(frozen=True)
class OpenAiApi:
    """The OpenAI API of a running deployment."""

    url: str  # base URL for clients
    pid: int  # of the frontend
    ready: bool


def deployment_api(project: Project, deployment: Deployment) -> OpenAiApi | None:
    """Return a deployment's OpenAI API; None without a frontend.

    Raises HostError if Docker does not answer.
    """
    settings = project.frontend
    if settings is None or SERVICE not in deployment.profiles:
        return None
    states = [record["State"] for record in service_records(deployment, SERVICE)]
    state = states[0] if states else {}
    gateway = project.gateway if GATEWAY in deployment.profiles else None
    if gateway is None:
        address, service, container_port, scheme = (
            settings.address,
            SERVICE,
            frontend_port(settings),
            "http",
        )
    else:
        address, service, container_port = gateway.address, _GATEWAY, gateway.port
        scheme = "http" if gateway.tls is None else "https"
    edges = service_records(deployment, service)
    port = (published_port(edges[0], container_port) if edges else 0) or container_port
    running = bool(edges) and edges[0]["State"]["Status"] == "running"
    healthy = state.get("Health", {}).get("Status") == "healthy"
    host = f"[{address}]" if ":" in address else address
    return OpenAiApi(f"{scheme}://{host}:{port}/v1", int(state.get("Pid", 0)), running and healthy)
