# SPDX-License-Identifier: Apache-2.0
"""What tritonserver is told about who may come and who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonctl.protocol.restrictions import grpc_metadata, http_headers, new_token
from tritonctl.runtimes.server_arguments import server_arguments
from tritonctl.security.certificates import tls_section

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

PORTS = (8001, 8000, 8002)


def flags(sandbox: Sandbox, **places: Any) -> list[str]:
    """The command line of a server at 192.0.2.7."""
    project = sandbox.load()
    where = {"repository": "/models", "address": "192.0.2.7", "ports": PORTS, "token": "t0ken"}
    return server_arguments(project, **(where | places))


def tls_flags(found: list[str]) -> list[str]:
    """Those about TLS."""
    return [flag for flag in found if "ssl" in flag or "cert" in flag or "server-key" in flag]


def test_without_tls(sandbox: Sandbox) -> None:
    """No flag of it; restricted protocols all the same, on both ports."""
    found = flags(sandbox)
    assert tls_flags(found) == []
    groups = "model-repository,shared-memory,trace,logging:tritonctl-token=t0ken"
    assert f"--grpc-restricted-protocol={groups}" in found
    assert f"--http-restricted-api={groups}" in found
    assert "--http-address=192.0.2.7" in found


def test_mutual_tls(sandbox: Sandbox) -> None:
    """Absolute paths of this machine."""
    sandbox.data["server"]["tls"] = tls_section(Path("certs"))
    certs = sandbox.root / "certs"
    assert tls_flags(flags(sandbox)) == [
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={certs / 'server.crt'}",
        f"--grpc-server-key={certs / 'server.key'}",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-root-cert={certs / 'ca.crt'}",
    ]


def test_in_a_container(sandbox: Sandbox) -> None:
    """Files lie elsewhere there; clients' files are no business of the server."""
    tls = tls_section(Path("certs"))
    del tls["client_ca"]
    sandbox.data["server"]["tls"] = tls
    found = flags(
        sandbox,
        plain_address="127.0.0.1",
        path_on_server=lambda path: f"/run/secrets/{path.name}",
    )
    assert tls_flags(found) == [
        "--grpc-use-ssl=true",
        "--grpc-server-cert=/run/secrets/server.crt",
        "--grpc-server-key=/run/secrets/server.key",
    ]
    assert "--grpc-address=192.0.2.7" in found
    assert {"--http-address=127.0.0.1", "--metrics-address=127.0.0.1"} <= set(found)


def test_what_callers_send() -> None:
    """Triton wants its own prefix over gRPC; nothing is sent where there is no token."""
    assert grpc_metadata("t") == (("triton-grpc-protocol-tritonctl-token", "t"),)
    assert http_headers("t") == {"tritonctl-token": "t"}
    assert grpc_metadata("") == ()
    assert http_headers("") == {}


def test_tokens_are_long_random_and_fit_a_command_line() -> None:
    """256 bits; nothing that Triton's flag, a header or a shell reads as anything else."""
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert len(token) >= 43
        assert set(token) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
