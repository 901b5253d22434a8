# SPDX-License-Identifier: Apache-2.0
"""A real Envoy whose certificate is renewed while it runs: as Kubernetes does it, and by `mv`."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.envoy_process import PATIENCE_SECONDS, Envoy
from tests.gateway.test_configuration import make_certificate
from tritonctl.gateway.placement import EnvoyUpstream, RenewedCertificates

pytestmark = pytest.mark.timed

TLS = {"tls": {"certificate": "secrets/edge.crt", "key": "secrets/edge.key"}}
NAMES = ("edge.crt", "edge.key")


def version(root: Path, name: str) -> Path:
    """A folder with a certificate of its own."""
    folder = root / name
    folder.mkdir(parents=True)
    make_certificate(folder, "edge")
    return folder


def mounted(root: Path) -> tuple[RenewedCertificates, Callable[[], None]]:
    """A Secret's volume: links to `..data/NAME`; the kubelet moves another `..data` there."""
    secrets = root / "secrets"
    version(secrets, "..1")
    (secrets / "..data").symlink_to("..1")
    for name in NAMES:
        (secrets / name).symlink_to(f"..data/{name}")

    def renew() -> None:
        version(secrets, "..2")
        (secrets / "..data_tmp").symlink_to("..2")
        os.replace(secrets / "..data_tmp", secrets / "..data")

    return RenewedCertificates(str(root / "discovery"), str(secrets)), renew


def moved(root: Path) -> tuple[RenewedCertificates, Callable[[], None]]:
    """Plain files, over which others are moved."""
    version(root, "secrets")

    def renew() -> None:
        fresh = version(root, "fresh")
        for name in reversed(NAMES):
            os.replace(fresh / name, root / "secrets" / name)

    return RenewedCertificates(str(root / "discovery")), renew


def connected(envoy: Envoy) -> ssl.SSLSocket:
    """A connection, whoever answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", envoy.port), timeout=5)
    return context.wrap_socket(plain)


@pytest.mark.parametrize("kept", [mounted, moved], ids=["secret", "files"])
def test_new_connections_see_the_new_certificate(
    kept: Callable[[Path], tuple[RenewedCertificates, Callable[[], None]]], tmp_path: Path
) -> None:
    """Within seconds; a connection that is open stays."""
    renewed, renew = kept(tmp_path)
    running = Envoy(tmp_path, [EnvoyUpstream("127.0.0.1", 1, 1)], TLS, renewed=renewed)
    # A project's own paths are resolved; in a pod they are those of the volume.
    [discovery] = Path(renewed.folder).iterdir()
    discovery.write_text(discovery.read_text(encoding="utf-8").replace("/..1/", "/"))
    with running as envoy, connected(envoy) as before:
        first = before.getpeercert(binary_form=True)
        with connected(envoy) as same:
            assert same.getpeercert(binary_form=True) == first
        renew()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with connected(envoy) as after:
                if after.getpeercert(binary_form=True) != first:
                    break
            assert time.monotonic() < deadline, envoy.log.read_text(encoding="utf-8")[-2000:]
            time.sleep(0.1)
        before.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert before.recv(8) == b"HTTP/1.1"
