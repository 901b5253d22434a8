# SPDX-License-Identifier: Apache-2.0
"""The record of a running server, `state.json` in its folder. No other I/O.

The file may outlive its server (power cut, SIGKILL): `discovery` checks whether it still runs, and
at which ports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.host.files import PRIVATE, write_atomically
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls, Endpoint, client_tls
from tritonctl.releases.slots import Slot, stable_slot


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
        """Environment variables that select the Docker engine."""
        return {"DOCKER_HOST": self.docker_host} if self.docker_host else {}


@dataclass(frozen=True, kw_only=True)
class _ServerRecord:
    """The fields of every started server."""

    pid: int  # of its supervisor, or of its container
    address: str
    grpc_port: int
    http_port: int
    metrics_port: int
    repository: str
    models: list[str]
    settings: str
    exit_timeout_seconds: int
    plain_address: str = ""  # of HTTP and metrics, which have no TLS; "": as `address`
    token: str = field(default="", repr=False)  # for restricted protocols
    tls: dict[str, str | None] | None = None  # the paths of a `ClientTls`
    release: str = ""  # name of the deployed release; "": the last rendered repository
    previous_release: str = ""  # the older release that was deployed before
    # The target of an unfinished switch; if it was killed, parts of both may be deployed.
    switching_to: str = ""

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return f"{self.address}:{self.grpc_port}"

    @property
    def client_tls(self) -> ClientTls | None:
        """TLS settings for clients of the gRPC port; None without TLS."""
        return client_tls(self.tls)

    @property
    def endpoint(self) -> Endpoint:
        """The gRPC endpoint with TLS and token."""
        return Endpoint(self.grpc_url, self.client_tls, self.token)

    @property
    def http_address(self) -> str:
        """Address of the HTTP and metrics endpoints."""
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
    """The OpenAI frontend of an embedded server."""

    pid: int  # of its supervisor
    process_started: int  # of its supervisor, in kernel ticks since boot
    address: str
    port: int

    @property
    def url(self) -> str:
        """URL of the HTTP API, without a path."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    @property
    def api_url(self) -> str:
        """Base URL for clients of OpenAI's API."""
        return f"{self.url}/v1"


@dataclass(frozen=True, kw_only=True)
class EmbeddedServer(_ServerRecord):
    """A tritonserver in this environment."""

    process_started: int  # in kernel ticks since boot
    shm_prefix: str  # of its stubs' shared memory
    readiness_port: int | None = None  # answers readiness probes of gateways
    frontend: FrontendProcess | None = None

    @property
    def readiness_url(self) -> str | None:
        """URL of the readiness probe for gateways; None without a port for it."""
        if self.readiness_port is None:
            return None
        return f"http://{self.http_address}:{self.readiness_port}/"


@dataclass(frozen=True, kw_only=True)
class ContainerServer(_ServerRecord):
    """A tritonserver in a container of a deployment."""

    deployment: Deployment


Server = EmbeddedServer | ContainerServer
# The file has every key; missing values are null, 0 or "".
_NULL_FIELDS: dict[str, Any] = {
    "process_started": 0,
    "shm_prefix": "",
    "readiness_port": None,
    "frontend": None,
    "deployment": None,
}


def to_record(server: Server) -> dict[str, Any]:
    """Convert a server to plain data."""
    return _NULL_FIELDS | asdict(server)


def from_record(record: Mapping[str, Any]) -> Server:
    """Restore a server from the result of `to_record`. Raises TypeError for another record."""
    deployment = record.get("deployment")
    if deployment is None:
        fields = {k: v for k, v in record.items() if k != "deployment"}
        frontend = fields.get("frontend")
        fields["frontend"] = FrontendProcess(**frontend) if frontend else None
        return EmbeddedServer(**fields)
    fields = {k: v for k, v in record.items() if k not in _NULL_FIELDS}
    return ContainerServer(**fields, deployment=Deployment(**deployment))


class _File:
    """A path in the folder of ServerFiles."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, files: ServerFiles, _: type) -> Path:
        return files.folder / self._name


@dataclass(frozen=True)
class ServerFiles:
    """The files of a slot's servers, such as `.tritonctl/server`."""

    folder: Path

    @classmethod
    def of(cls, project: Project, slot: Slot | None = None) -> ServerFiles:
        """Return the files of a slot, by default the stable one. Raises HostError."""
        return cls((slot or stable_slot(project)).folder(project))

    state = _File("state.json")  # the running server
    state_copy = _File("state-copy.json")  # in case the other one is damaged
    log = _File("triton.log")  # everything Triton and its models print
    specification = _File("supervisor.json")  # for the supervisor
    restarts = _File("restarts.json")  # its crashes since `up`, written by its supervisor
    frozen = _File("frozen.json")  # its models that make no progress, written by its supervisor
    exit = _File("exit.json")  # exit status of the last server, written by its supervisor
    # A second model repository, in which `tritonctl reload` stages a new version.
    standby = _File("beside")
    # Working directory of an embedded server, with links for paths unsafe in a shell.
    paths = _File("paths")
    # The same files of an embedded server's frontend, and its configuration.
    frontend_config = _File("frontend.json")
    frontend_log = _File("frontend.log")
    frontend_specification = _File("frontend-supervisor.json")
    frontend_restarts = _File("frontend-restarts.json")
    frontend_exit = _File("frontend-exit.json")
    lock = _File("lock")  # held while a server starts or stops


def read_state(files: ServerFiles) -> Server | None:
    """Return the recorded server, alive or not; None if there is no readable record."""
    for file in (files.state, files.state_copy):
        # Missing, damaged or of another version.
        with suppress(OSError, ValueError, TypeError, AttributeError):
            return from_record(json.loads(file.read_text(encoding="utf-8")))
    return None


def write_state(files: ServerFiles, server: Server) -> None:
    """Record a started server."""
    text = json.dumps(to_record(server), indent=2)
    for file in (files.state, files.state_copy):
        write_atomically(file, text, mode=PRIVATE)


def remove_state(files: ServerFiles) -> None:
    """Remove the record of a stopped server."""
    for file in (files.state_copy, files.state):
        file.unlink(missing_ok=True)
