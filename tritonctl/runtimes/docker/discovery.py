# SPDX-License-Identifier: Apache-2.0
"""Find a deployment's servers and their current ports.

The record of `up` may be out of date: Docker chooses new host ports for restarted containers
(`docker.replicas` above 1), and Compose run by hand creates other containers. So every call queries
Docker, which reports state and ports at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tritonctl.errors import ServerError
from tritonctl.runtimes.docker.compose_command import docker_output
from tritonctl.runtimes.server_state import ContainerServer, Deployment

# Inside every container.
PORTS = {"grpc": 8001, "http": 8000, "metrics": 8002}
_STARTED = ("running", "paused", "restarting")  # Docker is restarting those in the last state
_LABEL = "com.docker.compose"


@dataclass(frozen=True)
class Container:
    """One container of a service."""

    id: str
    number: int
    status: str
    pid: int
    ports: Mapping[str, int]  # on the host; 0 until Docker has chosen one

    @property
    def has_port(self) -> bool:
        """Whether the container has started and has a port, even if it does not answer yet."""
        return self.status in _STARTED and bool(self.ports["grpc"])


def refresh_server(state: ContainerServer) -> ContainerServer | None:
    """Return the server with current ports, in its own container or else the first with a port.

    Returns None if all have stopped. Raises HostError if Docker does not answer, ServerError while
    it restarts containers without ports yet.
    """
    deployment = state.deployment
    own_container = [
        _container_of(record) for record in _records(deployment, [deployment.container])
    ]
    if own_container and own_container[0].has_port:
        return server_in_container(state, own_container[0])
    service_containers = containers(deployment)
    for container in service_containers:
        if container.has_port:
            return server_in_container(state, container)
    if any(container.status in _STARTED for container in service_containers):
        raise _restarting_error(deployment)
    return None


def current_servers(state: ContainerServer) -> list[ContainerServer]:
    """Return every server of the deployment, by number. Raises as `refresh_server`."""
    started = [
        container for container in containers(state.deployment) if container.status in _STARTED
    ]
    if not all(started_container.has_port for started_container in started):
        raise _restarting_error(state.deployment)
    return [server_in_container(state, started_container) for started_container in started]


def containers(deployment: Deployment) -> list[Container]:
    """Return every container of the server's service, also stopped ones. Raises HostError."""
    records = service_records(deployment, deployment.service)
    return sorted(map(_container_of, records), key=lambda container: container.number)


def service_records(deployment: Deployment, service: str) -> list[Mapping[str, Any]]:
    """Return Docker's record of every container of a service. Raises HostError."""
    labels = (f"project={deployment.name}", f"service={service}")
    filters = [f"--filter=label={_LABEL}.{label}" for label in labels]
    ids = docker_output(deployment, "ps", "--all", "--no-trunc", "--quiet", *filters)
    return _records(deployment, ids.split())


def server_in_container(state: ContainerServer, container: Container) -> ContainerServer:
    """Return the server with the ports and pid of this container."""
    return replace(
        state,
        pid=container.pid,
        grpc_port=container.ports["grpc"],
        http_port=container.ports["http"],
        metrics_port=container.ports["metrics"],
        deployment=replace(state.deployment, container=container.id),
    )


def _records(deployment: Deployment, names: list[str]) -> list[Mapping[str, Any]]:
    """Return Docker's records of containers; removed containers are left out."""
    if not names:
        return []
    answer = docker_output(
        deployment, "container", "inspect", *names, missing_text="No such container"
    )
    records: list[Mapping[str, Any]] = json.loads(answer or "[]")
    return records


def _container_of(record: Mapping[str, Any]) -> Container:
    state, labels = record["State"], record["Config"]["Labels"] or {}
    return Container(
        id=record["Id"],
        number=int(labels.get(f"{_LABEL}.container-number", 1)),
        status=state["Status"],
        pid=state["Pid"],
        ports={name: published_port(record, inside) for name, inside in PORTS.items()},
    )


def published_port(record: Mapping[str, Any], container_port: int) -> int:
    """Return the current host port, or the requested one while the container is stopped.

    0 while Docker has not chosen it, also out of a range.
    """
    for bindings in (record["NetworkSettings"]["Ports"], record["HostConfig"]["PortBindings"]):
        for binding in (bindings or {}).get(f"{container_port}/tcp") or ():
            if (port := binding["HostPort"]).isdecimal() and int(port):
                return int(port)
    return 0


def _restarting_error(deployment: Deployment) -> ServerError:
    return ServerError(
        f"Docker is restarting the servers of {deployment.name}: they have no ports yet",
        remedy="try again in a moment; if that fails, `tritonctl logs` shows why they exited",
    )
