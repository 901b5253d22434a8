# SPDX-License-Identifier: Apache-2.0
"""What was recorded of a running server, in `state.json` of its folder. Does no I/O beyond it.

The file may outlive its server (power cut, SIGKILL): `presence` says whether it still runs, and
where.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.host.files import PRIVATE, write_atomically
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls, Endpoint, client_tls
from tritonctl.server.slots import Slot, stable_slot


@dataclass(frozen=True)
class Deployment:
    """Servers in containers: the first container, and what `docker compose` needs to find them."""

    container: str
    folder: str
    name: str
    service: str
    profiles: list[str]
    docker_host: str

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that name the Docker which runs it."""
        return {"DOCKER_HOST": self.docker_host} if self.docker_host else {}


@dataclass(frozen=True, kw_only=True)
class _Server:
    """What every started server has. `pid`: of its supervisor, or of its container.

    `plain_address`: of HTTP and metrics, which have no TLS, where it is not `address`. `token`: for
    restricted protocols. `tls`: the files that clients use, as `ClientTls` (paths, no contents).
    `release`: the name of the one that it serves; "": what was rendered last. `previous_release`:
    the older one that it served before. `switching_to`: the one that is to take its place; after a
    switch that was killed parts of both may be served.
    """

    pid: int
    address: str
    grpc_port: int
    http_port: int
    metrics_port: int
    repository: str
    models: list[str]
    settings: str
    exit_timeout_seconds: int
    plain_address: str = ""
    token: str = field(default="", repr=False)
    tls: dict[str, str | None] | None = None
    release: str = ""
    previous_release: str = ""
    switching_to: str = ""

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return f"{self.address}:{self.grpc_port}"

    @property
    def client_tls(self) -> ClientTls | None:
        """What clients of the gRPC port need; None without TLS."""
        return client_tls(self.tls)

    @property
    def endpoint(self) -> Endpoint:
        """The gRPC endpoint with TLS and token."""
        return Endpoint(self.grpc_url, self.client_tls, self.token)

    @property
    def http_address(self) -> str:
        """Where HTTP and metrics listen."""
        return self.plain_address or self.address

    @property
    def http_url(self) -> str:
        """URL of the HTTP endpoint."""
        return f"http://{self.http_address}:{self.http_port}"

    @property
    def metrics_url(self) -> str:
        """URL of the Prometheus metrics."""
        return f"http://{self.http_address}:{self.metrics_port}/metrics"


@dataclass(frozen=True, kw_only=True)
class FrontendProcess:
    """The OpenAI API beside an embedded server; `pid` and `process_started`: of its supervisor."""

    pid: int
    process_started: int
    address: str
    port: int

    @property
    def url(self) -> str:
        """Of the HTTP API, without a path."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    @property
    def api_url(self) -> str:
        """What clients of OpenAI's API call their base URL."""
        return f"{self.url}/v1"


@dataclass(frozen=True, kw_only=True)
class EmbeddedServer(_Server):
    """A tritonserver of this environment. `process_started`: the kernel's, ticks since boot.

    `shm_prefix`: of its stubs' shared memory. `readiness_port`: where it tells gateways whether to
    send it requests.
    """

    process_started: int
    shm_prefix: str
    readiness_port: int | None = None
    frontend: FrontendProcess | None = None

    @property
    def readiness_url(self) -> str | None:
        """URL that gateways ask, where the project has a port for it."""
        if self.readiness_port is None:
            return None
        return f"http://{self.http_address}:{self.readiness_port}/"


@dataclass(frozen=True, kw_only=True)
class ContainerServer(_Server):
    """A tritonserver in a container of a deployment."""

    deployment: Deployment


Server = EmbeddedServer | ContainerServer
# The file has every key, null, 0 or "" where the server has no such thing.
_ABSENT: dict[str, Any] = {
    "process_started": 0,
    "shm_prefix": "",
    "readiness_port": None,
    "frontend": None,
    "deployment": None,
}


def to_record(server: Server) -> dict[str, Any]:
    """A server as plain data."""
    return _ABSENT | asdict(server)


def from_record(record: Mapping[str, Any]) -> Server:
    """The server that `to_record` made plain. Raises TypeError for another record."""
    deployment = record.get("deployment")
    if deployment is None:
        known = {k: v for k, v in record.items() if k != "deployment"}
        frontend = known.get("frontend")
        known["frontend"] = FrontendProcess(**frontend) if frontend else None
        return EmbeddedServer(**known)
    known = {k: v for k, v in record.items() if k not in _ABSENT}
    return ContainerServer(**known, deployment=Deployment(**deployment))


class _File:
    """A path in the folder of ServerFiles."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, files: ServerFiles, _: type) -> Path:
        return files.folder / self._name


@dataclass(frozen=True)
class ServerFiles:
    """The files of a group of servers; `.tritonctl/server` where a project has one."""

    folder: Path

    @classmethod
    def of(cls, project: Project, slot: Slot | None = None) -> ServerFiles:
        """Those of the servers in a slot; by default of the stable ones. Raises HostError."""
        return cls((slot or stable_slot(project)).folder(project))

    state = _File("state.json")  # the running server
    log = _File("triton.log")  # everything Triton and its models print
    specification = _File("supervisor.json")  # for the supervisor
    restarts = _File("restarts.json")  # its crashes since `up`, written by its supervisor
    exit = _File("exit.json")  # how the last server ended, written by its supervisor
    # A second model repository: where `tritonctl reload` puts a version beside the served one.
    beside = _File("beside")
    # Where an embedded server runs, and finds what it cannot name otherwise.
    paths = _File("paths")
    # The same of the frontend beside an embedded server, and what it reads.
    frontend_config = _File("frontend.json")
    frontend_log = _File("frontend.log")
    frontend_specification = _File("frontend-supervisor.json")
    frontend_restarts = _File("frontend-restarts.json")
    frontend_exit = _File("frontend-exit.json")
    lock = _File("lock")  # held while a server is started or stopped


def read_state(files: ServerFiles) -> Server | None:
    """The recorded server, alive or not; None if absent or unreadable."""
    try:
        return from_record(json.loads(files.state.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):  # absent, damaged, another version's
        return None


def write_state(files: ServerFiles, server: Server) -> None:
    """Record a started server."""
    write_atomically(files.state, json.dumps(to_record(server), indent=2), mode=PRIVATE)
