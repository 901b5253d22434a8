# SPDX-License-Identifier: Apache-2.0
"""What a client is told where TLS keeps a connection from being made: real handshakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import ServerError
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.error_map import tls_remedy
from tritonctl.security.certificates import make_certificates

OURS, THEIRS, OLD = "ours", "theirs", "old"


class _Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def ModelReady(self, *_: Any) -> Any:  # noqa: N802
        """Every model is."""
        return service_pb2.ModelReadyResponse(ready=True)


@contextmanager
def serving(certs: Path | None) -> Iterator[str]:
    """A server that asks for certificates of its set's authority, or speaks no TLS."""
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Triton(), server)
    if certs is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (certs / "server.key").read_bytes(), (certs / "server.crt").read_bytes()
        credentials = grpc.ssl_server_credentials([pair], (certs / "ca.crt").read_bytes(), True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificates of ours, of somebody else, and of last year."""
    folder = tmp_path_factory.mktemp("certs")
    for name, lifetime in ((OURS, 1), (THEIRS, 1), (OLD, -0.01)):
        make_certificates(folder / name, lifetime=timedelta(days=lifetime))
    return {name: folder / name for name in (OURS, THEIRS, OLD)}


def client_of(certs: Path, authority: Path, name: str | None = None) -> ClientTls:
    """A client with a certificate of one set that trusts the authority of another."""
    return ClientTls(authority / "ca.crt", certs / "client.crt", certs / "client.key", name)


def test_both_sides_agree(sets: dict[str, Path]) -> None:
    """Also under a name that is in the certificate and not the address dialled."""
    for name in (None, "localhost"):
        tls = client_of(sets[OURS], sets[OURS], name)
        with serving(sets[OURS]) as url, TritonClient(url, tls=tls) as client:
            assert client.model_ready("speller")


def _asks(url: str, tls: ClientTls | None) -> None:
    with TritonClient(url, tls=tls) as client:
        client.model_ready("speller")


def _streams(url: str, tls: ClientTls | None) -> None:
    with TritonClient(url, tls=tls) as client:
        client.generate("speller", "7")


def _streams_in_a_loop(url: str, tls: ClientTls | None) -> None:
    async def run() -> None:
        async with AsyncTritonClient(url, tls=tls) as client:
            await client.generate("speller", "7")

    asyncio.run(run())


@pytest.mark.parametrize("ask", [_asks, _streams, _streams_in_a_loop])
@pytest.mark.parametrize(
    ("server", "certs", "authority", "name", "told"),
    [
        (OURS, None, None, None, "it may use TLS"),
        (OURS, THEIRS, OURS, None, "may ask for a client certificate"),
        (OURS, OURS, THEIRS, None, "another authority"),
        (OURS, OURS, OURS, "triton.example.com", "for another name"),
        (OLD, OLD, OLD, None, "has expired"),
        (None, OURS, OURS, None, "does not use TLS"),
    ],
)
def test_why_it_is_not_made(
    sets: dict[str, Path],
    server: str | None,
    certs: str | None,
    authority: str | None,
    name: str | None,
    told: str,
    ask: Callable[[str, ClientTls | None], None],
) -> None:
    """The remedy is about certificates, not about starting a server that runs."""
    tls = None
    if certs is not None and authority is not None:
        tls = client_of(sets[certs], sets[authority], name)
    with (
        serving(None if server is None else sets[server]) as url,
        pytest.raises(ServerError) as error,
    ):
        ask(url, tls)
    assert told in error.value.remedy


def test_a_server_that_dies_amid_a_stream_is_no_matter_of_tls() -> None:
    """Its words are nearly the same."""
    assert tls_remedy("Socket closed") is None
    assert tls_remedy("failed to connect to all addresses: Connection refused") is None
