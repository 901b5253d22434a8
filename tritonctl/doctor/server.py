# SPDX-License-Identifier: Apache-2.0
"""What a project's server needs of this machine: free ports, a release without known holes."""

from __future__ import annotations

from tritonctl.compatibility_table import Compatibility
from tritonctl.doctor.findings import Finding
from tritonctl.errors import TritonctlError
from tritonctl.project import Project
from tritonctl.security.exposure import is_loopback, known_holes, release_of_image
from tritonctl.triton.embedded import SERVER_VERSION
from tritonctl.triton.ports import is_free
from tritonctl.triton.server_state import ServerFiles, ServerState, present_state

_NAMED = 3


def server_findings(project: Project, compatibility: Compatibility) -> list[Finding]:
    """Ports and known holes."""
    return [ports_finding(project), holes_finding(project, compatibility)]


def ports_finding(project: Project) -> Finding:
    """Whether the project's server could listen, or does."""
    server, why = project.server, "Triton does not start on a port that somebody listens on"
    state = _running(project)
    if state is not None:
        detail = f"the project's own server listens at {state.grpc_url}"
        return Finding("ports", "ok", detail, why=why)
    wanted = server.wanted_ports
    taken = {f: port for f, port in wanted.items() if port and not is_free(server.address, port)}
    if not taken:
        shown = ", ".join(str(port or "any") for port in wanted.values())
        return Finding("ports", "ok", f"free on {server.address}: {shown}", why=why)
    field, port = next(iter(taken.items()))
    listing = ", ".join(f"{port} (server.{field})" for field, port in taken.items())
    remedy = f"ss -ltnp 'sport = :{port}' tells who; or tritonctl up --set server.{field}=0"
    return Finding("ports", "missing", f"taken on {server.address}: {listing}", remedy, why=why)


def _running(project: Project) -> ServerState | None:
    try:
        return present_state(ServerFiles.of(project))
    except TritonctlError:  # Docker does not answer: a finding of its own
        return None


def holes_finding(project: Project, compatibility: Compatibility) -> Finding:
    """What NVIDIA's bulletins say about the release that would be started."""
    release = _release(project, compatibility)
    why = "who reaches the ports of a server with holes may take it over"
    holes = known_holes(release, compatibility) if release else []
    if not holes:
        told = f"none known of Triton {release}" if release else "nothing known of that image"
        return Finding("security holes", "ok", told, why=why)
    cves = [cve for hole in holes for cve in hole.cves]
    more = f" and {len(cves) - _NAMED} more" if len(cves) > _NAMED else ""
    detail = f"Triton {release}: {', '.join(cves[:_NAMED])}{more}"
    if is_loopback(project.server.address):
        detail += "; it listens on loopback only"
    fixed = max(hole.fixed for hole in holes)
    remedy = f"serve a release from {fixed} on (`server.mode: docker`); keep this one on loopback"
    return Finding("security holes", "warning", detail, remedy, why=why)


def _release(project: Project, compatibility: Compatibility) -> str | None:
    if project.server.mode == "embedded":
        return SERVER_VERSION
    if project.docker.image:
        return release_of_image(project.docker.image)
    return compatibility.default_release
