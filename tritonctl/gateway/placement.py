# SPDX-License-Identifier: Apache-2.0
"""Where Envoy runs: addresses and files as its container sees them.

Only the paths of keys and certificates appear here, never their contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonctl.project.frontend import Frontend
from tritonctl.project.schema import Project
from tritonctl.project.server import EdgeTls, Gateway, Tls
from tritonctl.releases.slots import Slot

SECRETS = "/run/secrets"
FRONTEND_SERVICE = "frontend"  # in compose: its DNS name resolves to every frontend
_KEY = "gateway_api_key_"
_EDGE = "gateway_tls_"
_TRITON = "triton_tls_"
FRONTEND_SECRET = "gateway_frontend_secret"  # noqa: S105 - the secret's name


@dataclass(frozen=True)
class EnvoyUpstream:
    """One server, or a DNS name for several."""

    host: str
    grpc_port: int = 8001
    http_port: int = 8000
    readiness_port: int | None = None  # None: the HTTP port

    @property
    def health_port(self) -> int:
        """The port of the readiness check."""
        return self.readiness_port or self.http_port


@dataclass(frozen=True)
class ServerGroup:
    """The servers of one release."""

    upstreams: tuple[EnvoyUpstream, ...]
    frontend: tuple[str, int] | None = None  # host and port of its OpenAI API, if it has one


@dataclass(frozen=True)
class SlotGroups:
    """Two server groups, either of which may be empty. Only the routes name the stable one.

    Paths are as Envoy sees them, each alone in its folder: Envoy rereads a file whenever a new one
    is moved into its place.
    """

    stable: Slot
    routes_file: str
    endpoints: str | None = None  # folder with an address file per cluster; None: use `groups`
    groups: Mapping[Slot, ServerGroup] = field(default_factory=dict)
    # The folder to watch for moves if `routes_file` is a link, as in a ConfigMap's volume.
    watched: str | None = None


@dataclass(frozen=True)
class RenewedCertificates:
    """Certificates that Envoy rereads when they are renewed."""

    folder: str  # the secret discovery files
    # The folder to watch for moves if the certificates are links, as in a Secret's volume.
    # None: each file is replaced by a new one of its name.
    watched: str | None = None


@dataclass(frozen=True)
class GatewayPlacement:
    """Addresses and paths as Envoy sees them."""

    upstreams: tuple[EnvoyUpstream, ...]
    address: str
    port: int
    admin_address: str
    admin_port: int
    secrets: Mapping[str, str]  # path by name, for each of `secret_files`
    frontend: tuple[str, int] | None = None  # host and port of the OpenAI API, if any
    cors: bool = False  # whether the frontend answers web pages of other origins
    slots: SlotGroups | None = None  # for rollouts; None: `upstreams` are all servers
    shadow: str | None = None  # socket path of the shadower; None: no mirroring
    # Folder of Envoy's own sockets. The default is Envoy's working directory: the kernel limits a
    # socket path to 107 bytes, and a project's path may be longer.
    socket_folder: str = "."
    renewed: RenewedCertificates | None = None  # None: Envoy reads certificates once, at its start


def container_placement(project: Project, upstreams: Sequence[EnvoyUpstream]) -> GatewayPlacement:
    """Return the placement in a container, whose ports are published as the project says."""
    gateway = gateway_of(project)
    return GatewayPlacement(
        upstreams=tuple(upstreams),
        address="0.0.0.0",  # noqa: S104 - the container's
        port=gateway.port,
        admin_address="0.0.0.0",  # noqa: S104 - same
        admin_port=gateway.admin_port,
        secrets={name: f"{SECRETS}/{name}" for name in secret_files(project)},
        socket_folder="/tmp",  # noqa: S108 - the container's, the only folder that it may write
        frontend=_frontend(project.frontend) if project.frontend else None,
        cors=project.frontend is not None and bool(project.frontend.cors_origins),
    )


def _frontend(settings: Frontend) -> tuple[str, int]:
    return FRONTEND_SERVICE, settings.port or Frontend().port


def secret_files(project: Project) -> dict[str, Path]:
    """Return the absolute path of every key and certificate that the gateway reads, by secret name.

    Compose mounts a secret at /run/secrets/NAME in the container.
    """
    gateway = gateway_of(project)
    tenants = gateway.tenants.items()
    files = {api_key_secret(name): tenant.api_key_file for name, tenant in tenants}
    if gateway.frontend_secret_file is not None:
        files[FRONTEND_SECRET] = gateway.frontend_secret_file
    files |= _existing_secrets(_EDGE, gateway.tls, ("certificate", "key", "client_ca"))
    return {name: project.path(path) for name, path in files.items()} | triton_secrets(project)


def triton_secrets(project: Project) -> dict[str, Path]:
    """Return the secrets that the gateway needs to reach Triton, as paths by name."""
    files = _existing_secrets(
        _TRITON, project.server.tls, ("ca", "client_certificate", "client_key")
    )
    return {name: project.path(path) for name, path in files.items()}


def gateway_of(project: Project) -> Gateway:
    """Return the project's gateway, or the default one."""
    return project.gateway or Gateway()


def api_key_secret(tenant: str) -> str:
    """Name the secret with a tenant's API key."""
    return f"{_KEY}{tenant}"


def edge_secret(part: str) -> str:
    """Name the secret for a field of `gateway.tls`."""
    return f"{_EDGE}{part}"


def triton_secret(part: str) -> str:
    """Name the secret for a field of `server.tls`, as a client of Triton needs it."""
    return f"{_TRITON}{part}"


def _existing_secrets(
    prefix: str, tls: Tls | EdgeTls | None, parts: Sequence[str]
) -> dict[str, Path]:
    parts_by_name = {part: getattr(tls, part) for part in parts} if tls else {}
    return {f"{prefix}{part}": path for part, path in parts_by_name.items() if path is not None}
