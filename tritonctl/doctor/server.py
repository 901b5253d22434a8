# SPDX-License-Identifier: Apache-2.0
"""Check a project's server: free ports, known vulnerabilities, packages of the frontend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.doctor.findings import DoctorFinding
from tritonctl.errors import TritonctlError
from tritonctl.host.addresses import is_loopback
from tritonctl.host.frontend_extra import INSTALL, missing_packages
from tritonctl.project.compatibility.exposure import (
    cves_of,
    fixed_in,
    known_holes,
    release_of_image,
)
from tritonctl.project.compatibility.table import Compatibility
from tritonctl.project.frontend import Frontend
from tritonctl.project.schema import Project
from tritonctl.repository.server_environment import SERVER_VERSION
from tritonctl.runtimes.discovery import current_server
from tritonctl.runtimes.ports import is_free
from tritonctl.runtimes.server_state import Server, ServerFiles


def server_findings(project: Project, compatibility: Compatibility) -> list[DoctorFinding]:
    """Return findings on ports, known vulnerabilities and the frontend's packages."""
    findings = [ports_finding(project), holes_finding(project, compatibility)]
    if project.frontend is not None and project.server.mode == "embedded":
        findings.append(frontend_finding(project.frontend))
    return findings


def frontend_finding(settings: Frontend) -> DoctorFinding:
    """Check that the packages of the extra `frontend` are installed."""
    reason = "`tritonctl up` starts the OpenAI API of `frontend:` with this Python"
    missing = missing_packages(settings)
    if not missing:
        return DoctorFinding(
            "OpenAI API", "ok", "its packages are installed", required=True, reason=reason
        )
    detail = f"not installed: {', '.join(missing)}"
    return DoctorFinding("OpenAI API", "missing", detail, INSTALL, required=True, reason=reason)


def ports_finding(project: Project) -> DoctorFinding:
    """Check that the project's ports are free or used by its own server."""
    server, reason = project.server, "Triton cannot start on a port that is in use"
    state = _running(project)
    if state is not None:
        detail = f"the project's own server listens at {state.grpc_url}"
        return DoctorFinding("ports", "ok", detail, reason=reason)
    ports = list(_configured_ports(project))
    occupied = [each for each in ports if each.port and not is_free(each.address, each.port)]
    if not occupied:
        port_list = ", ".join(str(each.port or "any") for each in ports)
        return DoctorFinding("ports", "ok", f"free on {server.address}: {port_list}", reason=reason)
    listing = ", ".join(f"{each.port} ({each.field})" for each in occupied)
    first = occupied[0]
    alternative = (
        f"tritonctl up --set {first.field}=0"
        if first.field.startswith(("server.", "frontend."))  # clients look up the server's port
        else f"choose another {first.field} in tritonctl.yaml"
    )
    remedy = f"ss -ltnp 'sport = :{first.port}' shows the process; or {alternative}"
    return DoctorFinding(
        "ports", "missing", f"in use on {first.address}: {listing}", remedy, reason=reason
    )


class _ConfiguredPort(NamedTuple):
    """A port that the project will listen on; 0 means any."""

    field: str
    address: str
    port: int


def _configured_ports(project: Project) -> Iterator[_ConfiguredPort]:
    """Yield the ports of server, frontend and gateway; Docker chooses those of replicas."""
    server, gateway = project.server, project.gateway
    uses_containers = server.mode == "docker"
    if not uses_containers or project.docker.replicas == 1:
        for name, port in server.configured_ports.items():
            yield _ConfiguredPort(f"server.{name}", server.address, port)
    if project.frontend is not None and (not uses_containers or gateway is None):
        yield _ConfiguredPort("frontend.port", project.frontend.address, project.frontend.port)
    if uses_containers and gateway is not None:
        yield _ConfiguredPort("gateway.port", gateway.address, gateway.port)
        yield _ConfiguredPort("gateway.admin_port", "127.0.0.1", gateway.admin_port)


def _running(project: Project) -> Server | None:
    try:
        return current_server(ServerFiles.of(project))
    except TritonctlError:  # Docker does not answer: another finding reports it
        return None


def holes_finding(project: Project, compatibility: Compatibility) -> DoctorFinding:
    """Check NVIDIA's security bulletins for the release to start."""
    release = _release(project, compatibility)
    reason = "anyone who reaches the ports of a vulnerable server may take it over"
    holes = known_holes(release, compatibility) if release else []
    if not holes:
        detail = f"none known of Triton {release}" if release else "nothing known about that image"
        return DoctorFinding("known vulnerabilities", "ok", detail, reason=reason)
    detail = f"Triton {release}: {cves_of(holes)}"
    if is_loopback(project.server.address):
        detail += "; it listens on loopback only"
    fixed = fixed_in(holes)
    remedy = f"serve release {fixed} or later (`server.mode: docker`); keep this one on loopback"
    return DoctorFinding("known vulnerabilities", "warning", detail, remedy, reason=reason)


def _release(project: Project, compatibility: Compatibility) -> str | None:
    if project.server.mode == "embedded":
        return SERVER_VERSION
    if project.docker.image:
        return release_of_image(project.docker.image)
    return compatibility.default_release
