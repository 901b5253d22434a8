# SPDX-License-Identifier: Apache-2.0
"""Where Envoy runs: addresses and files as its container sees them.

Keys and certificates are only ever named by their paths: what is in them stays in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonctl.project.frontend import Frontend
from tritonctl.project.schema import Project
from tritonctl.project.server import EdgeTls, Gateway, Tls
from tritonctl.server.slots import Slot

SECRETS = "/run/secrets"
FRONTEND_SERVICE = "frontend"  # of compose: its DNS name has the address of every frontend
_KEY = "gateway_api_key_"
_EDGE = "gateway_tls_"
_TRITON = "triton_tls_"
FRONTEND_SECRET = "gateway_frontend_secret"  # noqa: S105 - the secret's name


@dataclass(frozen=True)
class Upstream:
    """One server, or a DNS name that stands for several. readiness_port: HTTP's by default."""

    host: str
    grpc_port: int = 8001
    http_port: int = 8000
    readiness_port: int | None = None

    @property
    def health_port(self) -> int:
        """Where it tells whether to send it requests."""
        return self.readiness_port or self.http_port


@dataclass(frozen=True)
class Group:
    """The servers of one release; frontend: host and port of its OpenAI API, None without one."""

    upstreams: tuple[Upstream, ...]
    frontend: tuple[str, int] | None = None


@dataclass(frozen=True)
class TwoGroups:
    """Two groups of servers, of which either may be empty. Only routes say which one is stable.

    Paths are as Envoy sees them, each alone in its folder: it reads a file again whenever another
    one is moved there. endpoints: a folder with a file of addresses for each cluster; None:
    `groups` says once where the servers are. watched: the folder where something is moved instead,
    when the file itself is a link, as in a ConfigMap's volume.
    """

    stable: Slot
    routes_file: str
    endpoints: str | None = None
    groups: Mapping[Slot, Group] = field(default_factory=dict)
    watched: str | None = None


@dataclass(frozen=True)
class Renewed:
    """Where Envoy reads which certificates there are, so that it reads them again: `folder`.

    watched: the folder in which something is moved when they change, where they are links, as in a
    Secret's volume; None: each file itself is replaced by another one of its name.
    """

    folder: str
    watched: str | None = None


@dataclass(frozen=True)
class Placement:
    """Addresses as Envoy itself sees them; `secrets`: the path of each file in `secret_files`.

    frontend: host and port of the OpenAI API; None where the project has none. slots: where a
    release is rolled out beside the stable one; None: `upstreams` are all servers there are.
    shadow: the socket's file of who takes copies of requests; None: nobody does. renewed: None
    where certificates are read once, as Envoy starts.
    """

    upstreams: tuple[Upstream, ...]
    address: str
    port: int
    admin_address: str
    admin_port: int
    secrets: Mapping[str, str]
    frontend: tuple[str, int] | None = None
    slots: TwoGroups | None = None
    shadow: str | None = None
    renewed: Renewed | None = None


def in_container(project: Project, upstreams: Sequence[Upstream]) -> Placement:
    """Every address of the container, whose ports are published as the project says."""
    gateway = gateway_of(project)
    return Placement(
        upstreams=tuple(upstreams),
        address="0.0.0.0",  # noqa: S104 - of the container
        port=gateway.port,
        admin_address="0.0.0.0",  # noqa: S104 - same
        admin_port=gateway.admin_port,
        secrets={name: f"{SECRETS}/{name}" for name in secret_files(project)},
        frontend=_frontend(project.frontend) if project.frontend else None,
    )


def _frontend(settings: Frontend) -> tuple[str, int]:
    return FRONTEND_SERVICE, settings.port or Frontend().port


def secret_files(project: Project) -> dict[str, Path]:
    """Every file with a key or a certificate that the gateway reads, absolute, by secret name.

    In a container it lies at /run/secrets/NAME, which is where compose puts a secret of that name.
    """
    gateway = gateway_of(project)
    tenants = gateway.tenants.items()
    files = {api_key(name): tenant.api_key_file for name, tenant in tenants}
    if gateway.frontend_secret_file is not None:
        files[FRONTEND_SECRET] = gateway.frontend_secret_file
    files |= _of(_EDGE, gateway.tls, ("certificate", "key", "client_ca"))
    return {name: project.path(path) for name, path in files.items()} | triton_secrets(project)


def triton_secrets(project: Project) -> dict[str, Path]:
    """Of these, those with which it reaches Triton."""
    files = _of(_TRITON, project.server.tls, ("ca", "client_certificate", "client_key"))
    return {name: project.path(path) for name, path in files.items()}


def gateway_of(project: Project) -> Gateway:
    """The project's gateway, or the default one."""
    return project.gateway or Gateway()


def api_key(tenant: str) -> str:
    """Name of the secret that is a tenant's key."""
    return f"{_KEY}{tenant}"


def edge(part: str) -> str:
    """Name of the secret that is a part of `gateway.tls`."""
    return f"{_EDGE}{part}"


def triton(part: str) -> str:
    """Name of the secret that is a part of `server.tls`, as a client of Triton needs it."""
    return f"{_TRITON}{part}"


def _of(prefix: str, tls: Tls | EdgeTls | None, parts: Sequence[str]) -> dict[str, Path]:
    named = {part: getattr(tls, part) for part in parts} if tls else {}
    return {f"{prefix}{part}": path for part, path in named.items() if path is not None}
