# SPDX-License-Identifier: Apache-2.0
"""A server's listening address, and the known vulnerabilities of its release.

The vulnerabilities are in `builders/compatibility.toml`, from NVIDIA's security bulletins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from tritonctl.errors import ConfigurationError
from tritonctl.host.addresses import is_loopback
from tritonctl.project.compatibility.table import Compatibility, KnownHole, table

if TYPE_CHECKING:
    from tritonctl.project.schema import Project

_MAX_NAMED_CVES = 3  # CVEs
_TRITON_MAJOR = 2  # Triton 2.51.0 is release 24.10


def unencrypted_address(project: Project) -> str:
    """Return the address of HTTP and metrics: loopback if gRPC has TLS, which they lack."""
    address = project.server.address
    if project.server.tls is None or is_loopback(address):
        return address
    return "127.0.0.1"


def known_holes(release: str, compatibility: Compatibility | None = None) -> list[KnownHole]:
    """Return the vulnerabilities of a release, "25.06", or a Triton version, "2.51.0", worst first.

    A release missing from the table has those fixed after it. The list is empty for a name that is
    not a version (a custom image), because nothing is known.
    """
    compatibility = compatibility or table()
    name = _release(release, compatibility)
    if name is None:
        return []
    holes = [hole for hole in compatibility.known_holes if name < Version(hole.fixed)]
    return sorted(holes, key=lambda hole: (-hole.score, hole.fixed))


def cves_of(holes: Sequence[KnownHole]) -> str:
    """List the first CVEs and the number of further ones."""
    cves = [cve for hole in holes for cve in hole.cves]
    more = f" and {len(cves) - _MAX_NAMED_CVES} more" if len(cves) > _MAX_NAMED_CVES else ""
    return f"{', '.join(cves[:_MAX_NAMED_CVES])}{more}"


def fixed_in(holes: Iterable[KnownHole]) -> str:
    """Return the first release without any of these vulnerabilities."""
    return max((hole.fixed for hole in holes), key=Version)


def refuse_known_holes(project: Project, release: str) -> None:
    """Raise ConfigurationError for a vulnerable release that listens beyond loopback."""
    server = project.server
    if is_loopback(server.address) or server.accept_known_holes:
        return
    holes = known_holes(release, table(project.root))
    if not holes:
        return
    raise ConfigurationError(
        f"server.address: {server.address} is reachable from other machines, and Triton {release} "
        f"has known vulnerabilities: {cves_of(holes)} "
        f"(the worst: {holes[0].summary}, CVSS {holes[0].score:g})",
        remedy=f"keep `server.address: 127.0.0.1`, serve a release from {fixed_in(holes)} on "
        "(`server.mode: docker`), or set `server.accept_known_holes: true` to take the risk",
    )


def release_of_image(image: str) -> str | None:
    """Return the release in the tag of an NVIDIA image, `...:26.07-py3`; None without one."""
    match = re.search(r":r?(\d\d\.\d\d)(?![\d.])", image)
    return match[1] if match else None


def _release(text: str, compatibility: Compatibility) -> Version | None:
    """Return the release, as year and month, of a release name or a Triton version."""
    try:
        version = Version(text.removeprefix("r"))
    except InvalidVersion:
        return None
    if version.major != _TRITON_MAJOR:
        return version
    releases = [(Version(r.triton), r.name) for r in compatibility.releases if r.triton]
    candidates = [(number, name) for number, name in releases if number <= version]
    return Version(max(candidates)[1]) if candidates else Version("0")
