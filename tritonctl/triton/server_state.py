# SPDX-License-Identifier: Apache-2.0
"""What is known of a running embedded server, in `.tritonctl/server/state.json`.

The file may outlive its process (power cut, SIGKILL): a state counts only while the process it
names is the very one that was started.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tritonctl.host import write_atomically
from tritonctl.project import Project


@dataclass(frozen=True)
class ServerState:
    """A started server. `process_started` is the kernel's start time, ticks since boot."""

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

    @property
    def grpc_url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return f"{self.address}:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        """URL of the HTTP endpoint."""
        return f"http://{self.address}:{self.http_port}"

    @property
    def metrics_url(self) -> str:
        """URL of the Prometheus metrics."""
        return f"http://{self.address}:{self.metrics_port}/metrics"

    def alive(self) -> bool:
        """Whether the supervising process still runs."""
        return process_started(self.pid) == self.process_started


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


def write_state(files: ServerFiles, state: ServerState) -> None:
    """Record a started server."""
    write_atomically(files.state, json.dumps(asdict(state), indent=2))
