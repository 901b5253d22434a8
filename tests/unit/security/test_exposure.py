# SPDX-License-Identifier: Apache-2.0
"""Releases with known holes stay on loopback; HTTP does, where gRPC has TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from tritonctl.errors import ConfigurationError
from tritonctl.host.addresses import is_loopback
from tritonctl.project.compatibility.exposure import (
    known_holes,
    refuse_known_holes,
    release_of_image,
    unencrypted_address,
)
from tritonctl.project.compatibility.table import table
from tritonctl.project.schema import Project
from tritonctl.repository.server_environment import SERVER_VERSION

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens in these tests
CHAIN = "CVE-2025-23319"  # of the Python backend, fixed in 25.07


def cves(release: str) -> set[str]:
    """The CVEs of a release."""
    return {cve for hole in known_holes(release) for cve in hole.cves}


def at(sandbox: Sandbox, address: str, **server: object) -> Project:
    """The project at an address."""
    sandbox.data["server"] |= {"address": address, **server}
    return sandbox.load()


@pytest.mark.parametrize(
    ("release", "has"),
    [
        ("24.10", True),
        ("25.06", True),
        ("r25.06", True),
        ("25.07", False),
        ("26.07", False),
        ("2.51.0", True),  # 24.10
        ("2.59.0", True),  # 25.06
        ("2.59.1", False),  # 25.07
        ("2.45.0", True),  # older than every release of the table
        ("2.99.0", False),  # newer
        ("an image of my own", False),
    ],
)
def test_the_python_backend_s_chain_of_2025(release: str, has: bool) -> None:
    """By release and by Triton's version."""
    assert (CHAIN in cves(release)) == has


def test_the_worst_comes_first() -> None:
    """The embedded server has every hole of the table."""
    found = known_holes(SERVER_VERSION)
    assert len(found) == len(table().known_holes)
    assert [hole.score for hole in found] == sorted((h.score for h in found), reverse=True)


def test_the_last_release_with_holes_and_the_first_without() -> None:
    """What the table says of itself: fixed in a release means not before it."""
    last = max((hole.fixed for hole in table().known_holes), key=Version)
    assert known_holes(last) == []
    releases = [r.name for r in table().releases if r.triton and Version(r.name) < Version(last)]
    assert releases
    assert all(known_holes(name) for name in releases)


def test_every_cve_once() -> None:
    """A row per fix; no CVE in two of them."""
    rows = [cve for hole in table().known_holes for cve in hole.cves]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_is_never_refused(sandbox: Sandbox, address: str) -> None:
    """Nobody else reaches it."""
    assert is_loopback(address)
    refuse_known_holes(at(sandbox, address), SERVER_VERSION)


@pytest.mark.parametrize("address", [EVERYWHERE, "::", "192.0.2.7", "triton.example.com"])
def test_beyond_loopback_a_release_with_holes_is_refused(sandbox: Sandbox, address: str) -> None:
    """Unless told to; one without known holes is not."""
    project = at(sandbox, address)
    with pytest.raises(ConfigurationError, match="known vulnerabilities: CVE-") as error:
        refuse_known_holes(project, SERVER_VERSION)
    assert error.value.problem.startswith("server.address: ")
    assert "26.07" in error.value.remedy
    refuse_known_holes(project, "26.07")
    refuse_known_holes(at(sandbox, address, accept_known_holes=True), SERVER_VERSION)


def test_up_refuses_to_expose_the_embedded_server(cli: Cli, built: Sandbox) -> None:
    """From the command line, exit code 3, nothing started."""
    at(built, EVERYWHERE)
    done = cli("up")
    assert done.returncode == 3, done.stderr
    assert "accept_known_holes" in done.stderr
    assert not (built.root / ".tritonctl" / "server" / "state.json").exists()


def test_http_stays_on_loopback_where_grpc_has_tls(sandbox: Sandbox) -> None:
    """It has no TLS of its own; without TLS it goes where the server goes."""
    assert unencrypted_address(at(sandbox, EVERYWHERE)) == EVERYWHERE
    tls = {"certificate": "a", "key": "b"}
    assert unencrypted_address(at(sandbox, EVERYWHERE, tls=tls)) == "127.0.0.1"
    assert unencrypted_address(at(sandbox, "::1", tls=tls)) == "::1"


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("nvcr.io/nvidia/tritonserver:26.07-py3", "26.07"),
        ("nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:" + "0" * 64, "26.07"),
        ("localhost:5000/triton:25.10", "25.10"),
        ("local/triton:1", None),
        ("nvidia/tritonserver", None),
    ],
)
def test_the_release_of_an_image(image: str, release: str | None) -> None:
    """From the tag, where it has one of NVIDIA's."""
    assert release_of_image(image) == release
