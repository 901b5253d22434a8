# SPDX-License-Identifier: Apache-2.0
"""Where a deployment's servers are now.

Docker gives a container that it starts again other ports of the host, where it chooses them
(`docker.replicas` above 1), and Compose run by hand makes other containers. What `up` wrote
down is where they were, so Docker is asked each time: one call tells both whether a container runs
and its ports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tritonctl.errors import ServerError
from tritonctl.server.containers.compose_command import docker_answer
from tritonctl.server.state import ContainerServer, Deployment

# Inside every container.
PORTS = {"grpc": 8001, "http": 8000, "metrics": 8002}
_STARTED = ("running", "paused", "restarting")  # Docker restarts the last of them
_LABEL = "com.docker.compose"


@dataclass(frozen=True)
class Container:
    """One of a service, as Docker knows it. `ports`: of the host, 0 until Docker has chosen."""

    id: str
    number: int
    status: str
    pid: int
    ports: Mapping[str, int]

    @property
    def serves(self) -> bool:
        """Whether it has a port, even if nothing answers at the moment."""
        return self.status in _STARTED and bool(self.ports["grpc"])


def current(state: ContainerServer) -> ContainerServer | None:
    """The server as it is now: its own container, else the first other one that serves.

    None if none serves. Raises HostError when Docker does not answer, ServerError while it restarts
    containers and has not chosen their ports.
    """
    deployment = state.deployment
    own = [_container(record) for record in _records(deployment, [deployment.container])]
    if own and own[0].serves:
        return at(state, own[0])
    every = containers(deployment)
    for container in every:
        if container.serves:
            return at(state, container)
    if any(container.status in _STARTED for container in every):
        raise _being_started(deployment)
    return None


def current_servers(state: ContainerServer) -> list[ContainerServer]:
    """A state for every server of the deployment, by number. Raises as `current`."""
    started = [one for one in containers(state.deployment) if one.status in _STARTED]
    if not all(container.serves for container in started):
        raise _being_started(state.deployment)
    return [at(state, container) for container in started]


def containers(deployment: Deployment) -> list[Container]:
    """Every container of the service that serves, also those that have ended. Raises HostError."""
    records = service_records(deployment, deployment.service)
    return sorted(map(_container, records), key=lambda one: one.number)


def service_records(deployment: Deployment, service: str) -> list[Mapping[str, Any]]:
    """Docker's record of every container of a service. Raises HostError."""
    wanted = (f"project={deployment.name}", f"service={service}")
    filters = [f"--filter=label={_LABEL}.{label}" for label in wanted]
    listed = docker_answer(deployment, "ps", "--all", "--no-trunc", "--quiet", *filters)
    return _records(deployment, listed.split())


def at(state: ContainerServer, container: Container) -> ContainerServer:
    """The state of the server that this container is."""
    return replace(
        state,
        pid=container.pid,
        grpc_port=container.ports["grpc"],
        http_port=container.ports["http"],
        metrics_port=container.ports["metrics"],
        deployment=replace(state.deployment, container=container.id),
    )


def _records(deployment: Deployment, names: list[str]) -> list[Mapping[str, Any]]:
    """What Docker knows of containers; one that has gone meanwhile is left out."""
    if not names:
        return []
    answer = docker_answer(deployment, "container", "inspect", *names, missing="No such container")
    records: list[Mapping[str, Any]] = json.loads(answer or "[]")
    return records


def _container(record: Mapping[str, Any]) -> Container:
    state, labels = record["State"], record["Config"]["Labels"] or {}
    return Container(
        id=record["Id"],
        number=int(labels.get(f"{_LABEL}.container-number", 1)),
        status=state["Status"],
        pid=state["Pid"],
        ports={name: published_port(record, inside) for name, inside in PORTS.items()},
    )


def published_port(record: Mapping[str, Any], inside: int) -> int:
    """Of the host: as it is now; one that was asked for stays while the container does not run.

    0 while Docker has not chosen it, also out of a range.
    """
    for known in (record["NetworkSettings"]["Ports"], record["HostConfig"]["PortBindings"]):
        for binding in (known or {}).get(f"{inside}/tcp") or ():
            if (port := binding["HostPort"]).isdecimal() and int(port):
                return int(port)
    return 0


def _being_started(deployment: Deployment) -> ServerError:
    return ServerError(
        f"Docker is restarting the servers of {deployment.name}: they have no ports yet",
        remedy="try again in a moment; if that fails, `tritonctl logs` shows why they ended",
    )
