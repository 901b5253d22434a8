# SPDX-License-Identifier: Apache-2.0
"""What is known of a running server, in `.tritonctl/server/state.json`.

The file may outlive its process (power cut, SIGKILL): a state counts only while the process it
names is the very one that was started.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.host.files import PRIVATE, write_atomically
from tritonctl.project.schema import Project
from tritonctl.protocol.channels import ClientTls, Endpoint, client_tls


@dataclass(frozen=True)
class Deployment:
    """A server in containers: its first container, and what `docker compose` needs to find it."""

    container: str
    folder: str
    name: str
    service: str
    profiles: list[str]
    docker_host: str

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment: which Docker it is that runs it."""
        return {"DOCKER_HOST": self.docker_host} if self.docker_host else {}

    def status(self) -> dict[str, Any]:
        """Docker's record of the container's state; {} when it is gone."""
        from tritonctl.server.containers.compose_command import container_status

        return container_status("docker", self.container, self.variables)


@dataclass(frozen=True)
class ServerState:
    """A started server. `process_started` is the kernel's start time, ticks since boot.

    `plain_address`: of HTTP and metrics, which have no TLS, where it is not `address`. `token`: for
    restricted protocols. `tls`: the files that clients use, as `ClientTls` (paths, no contents).
    `readiness_port`: where an embedded server tells gateways whether to send it requests.
    """

    pid: int
    process_started: int
    address: str
    grpc_port: int
    http_port: int
    metrics_port: int
    repository: str
    models: list[str]
    settings: str
    shm_prefix: str
    exit_timeout_seconds: int
    plain_address: str = ""
    token: str = field(default="", repr=False)
    tls: dict[str, str | None] | None = None
    deployment: Deployment | None = None
    readiness_port: int | None = None

    def __post_init__(self) -> None:
        """A state that comes from a file has plain data for its deployment."""
        if isinstance(self.deployment, dict):
            object.__setattr__(self, "deployment", Deployment(**self.deployment))

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return f"{self.address}:{self.grpc_port}"

    @property
    def client_tls(self) -> ClientTls | None:
        """What clients of the gRPC port need; None where it speaks no TLS."""
        return client_tls(self.tls)

    @property
    def endpoint(self) -> Endpoint:
        """The gRPC endpoint with everything one needs there."""
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

    @property
    def readiness_url(self) -> str | None:
        """URL that gateways ask, where the project has a port for it."""
        if self.readiness_port is None:
            return None
        return f"http://{self.http_address}:{self.readiness_port}/"

    def present(self) -> ServerState | None:
        """The server where it is now, None when it has gone: containers come back on other ports.

        Raises HostError when Docker does not answer, ServerError while it starts containers again.
        """
        if self.deployment is not None:
            from tritonctl.server.containers.presence import present

            return present(self)
        return self if process_started(self.pid) == self.process_started else None

    def alive(self) -> bool:
        """Whether the supervising process, or a container, still runs."""
        return self.present() is not None


@dataclass(frozen=True)
class ServerFiles:
    """The files of a project's server."""

    folder: Path

    @classmethod
    def of(cls, project: Project) -> ServerFiles:
        """Those of a project."""
        return cls(project.state / "server")

    @property
    def state(self) -> Path:
        """The state of the running server."""
        return self.folder / "state.json"

    @property
    def log(self) -> Path:
        """Everything Triton and its models print."""
        return self.folder / "triton.log"

    @property
    def specification(self) -> Path:
        """What the supervisor is told."""
        return self.folder / "supervisor.json"

    @property
    def exit(self) -> Path:
        """How the last server ended, written by its supervisor."""
        return self.folder / "exit.json"

    @property
    def beside(self) -> Path:
        """A second model repository: where `tritonctl reload` puts a version beside the served."""
        return self.folder / "beside"

    @property
    def paths(self) -> Path:
        """Where an embedded server runs, and finds what it cannot name otherwise."""
        return self.folder / "paths"

    @property
    def lock(self) -> Path:
        """Held while a server is started or stopped."""
        return self.folder / "lock"


def process_started(pid: int) -> int | None:
    """Start time of a process (field 22 of /proc/PID/stat), None when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name, in parentheses, may itself contain spaces and parentheses.
    fields = text.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else int(fields[19])


def read_state(files: ServerFiles) -> ServerState | None:
    """The recorded state, alive or not; None when there is none or it is unreadable."""
    try:
        return ServerState(**json.loads(files.state.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # absent, damaged, or of another version
        return None


def present_state(files: ServerFiles) -> ServerState | None:
    """The running server as it is now, None when there is none. Raises as `ServerState.present`."""
    state = read_state(files)
    return None if state is None else state.present()


def write_state(files: ServerFiles, state: ServerState) -> None:
    """Record a started server."""
    write_atomically(files.state, json.dumps(asdict(state), indent=2), mode=PRIVATE)
