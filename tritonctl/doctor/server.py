# SPDX-License-Identifier: Apache-2.0
"""What a project's server needs: free ports, a release without known vulnerabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.doctor.findings import Finding
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
from tritonctl.server.ports import is_free
from tritonctl.server.presence import current_server
from tritonctl.server.state import Server, ServerFiles


def server_findings(project: Project, compatibility: Compatibility) -> list[Finding]:
    """Ports and known vulnerabilities, and what the frontend imports."""
    findings = [ports_finding(project), holes_finding(project, compatibility)]
    if project.frontend is not None and project.server.mode == "embedded":
        findings.append(frontend_finding(project.frontend))
    return findings


def frontend_finding(settings: Frontend) -> Finding:
    """Whether the packages of the extra `frontend` are here."""
    why = "`tritonctl up` starts the OpenAI API of `frontend:` with this Python"
    missing = missing_packages(settings)
    if not missing:
        return Finding("OpenAI API", "ok", "its packages are installed", required=True, why=why)
    detail = f"not installed: {', '.join(missing)}"
    return Finding("OpenAI API", "missing", detail, INSTALL, required=True, why=why)


def ports_finding(project: Project) -> Finding:
    """Whether the project's server can listen, or already does."""
    server, why = project.server, "Triton cannot start on a port that is in use"
    state = _running(project)
    if state is not None:
        detail = f"the project's own server listens at {state.grpc_url}"
        return Finding("ports", "ok", detail, why=why)
    wanted = list(_wanted(project))
    taken = [each for each in wanted if each.port and not is_free(each.address, each.port)]
    if not taken:
        shown = ", ".join(str(each.port or "any") for each in wanted)
        return Finding("ports", "ok", f"free on {server.address}: {shown}", why=why)
    listing = ", ".join(f"{each.port} ({each.field})" for each in taken)
    first = taken[0]
    way_out = (
        f"tritonctl up --set {first.field}=0"
        if first.field.startswith(
            ("server.", "frontend.")
        )  # clients find the server wherever it is
        else f"choose another {first.field} in tritonctl.yaml"
    )
    remedy = f"ss -ltnp 'sport = :{first.port}' shows who; or {way_out}"
    return Finding("ports", "missing", f"taken on {first.address}: {listing}", remedy, why=why)


class _Wanted(NamedTuple):
    """A port that will be listened on; 0 is any."""

    field: str
    address: str
    port: int


def _wanted(project: Project) -> Iterator[_Wanted]:
    """The server's, and the gateway's if `up` starts it; replicas get Docker's choice."""
    server, gateway = project.server, project.gateway
    contained = server.mode == "docker"
    if not contained or project.docker.replicas == 1:
        for name, port in server.wanted_ports.items():
            yield _Wanted(f"server.{name}", server.address, port)
    if project.frontend is not None and (not contained or gateway is None):
        yield _Wanted("frontend.port", project.frontend.address, project.frontend.port)
    if contained and gateway is not None:
        yield _Wanted("gateway.port", gateway.address, gateway.port)
        yield _Wanted("gateway.admin_port", "127.0.0.1", gateway.admin_port)


def _running(project: Project) -> Server | None:
    try:
        return current_server(ServerFiles.of(project))
    except TritonctlError:  # Docker does not answer: another finding says so
        return None


def holes_finding(project: Project, compatibility: Compatibility) -> Finding:
    """What NVIDIA's bulletins say about the release that would be started."""
    release = _release(project, compatibility)
    why = "anyone who reaches the ports of a vulnerable server may take it over"
    holes = known_holes(release, compatibility) if release else []
    if not holes:
        detail = f"none known of Triton {release}" if release else "nothing known of that image"
        return Finding("known vulnerabilities", "ok", detail, why=why)
    detail = f"Triton {release}: {cves_of(holes)}"
    if is_loopback(project.server.address):
        detail += "; it listens on loopback only"
    fixed = fixed_in(holes)
    remedy = f"serve release {fixed} or later (`server.mode: docker`); keep this one on loopback"
    return Finding("known vulnerabilities", "warning", detail, remedy, why=why)


def _release(project: Project, compatibility: Compatibility) -> str | None:
    if project.server.mode == "embedded":
        return SERVER_VERSION
    if project.docker.image:
        return release_of_image(project.docker.image)
    return compatibility.default_release
