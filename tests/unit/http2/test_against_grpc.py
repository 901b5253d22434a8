# SPDX-License-Identifier: Apache-2.0
"""The frontend's own HTTP/2 against gRPC's servers: text, errors, TLS, servers that come and go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.unit.protocol.test_resuming import NOBODY, Replica, serving
from tritonctl.errors import ServerError
from tritonctl.frontend.upstream import StreamingClient
from tritonctl.http2.call import CallError
from tritonctl.http2.channel import AsyncCall, Channel
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.security.certificates import make_certificates

pytestmark = pytest.mark.timed

METHOD = "/test.Service/Stream"
PATIENCE_SECONDS = 20.0


@dataclass
class Echo:
    """Answers with `times` messages of its request's bytes, and tells what it saw."""

    times: int = 3
    metadata: dict[str, str] = field(default_factory=dict)
    seconds_left: float | None = None
    sent: int = 0
    left: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: bytes, context: Any) -> Iterator[bytes]:
        """The stream."""
        context.add_callback(self.left.set)
        self.metadata = dict(context.invocation_metadata())
        self.seconds_left = context.time_remaining()
        for _ in range(self.times):
            self.sent += 1
            yield request
        if request == b"wait":
            self.left.wait(PATIENCE_SECONDS)
        if request == b"fail":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "für 100 %\n")


@contextmanager
def echoing(echo: Echo, port: int = 0, credentials: Any = None) -> Iterator[str]:
    """Its address."""
    handler = grpc.unary_stream_rpc_method_handler(echo.answer)
    server = grpc.server(
        ThreadPoolExecutor(max_workers=4),
        [grpc.method_handlers_generic_handler("test.Service", {"Stream": handler})],
        options=[("grpc.max_receive_message_length", -1)],
    )
    place = f"localhost:{port}" if credentials else f"127.0.0.1:{port}"
    bound = (
        server.add_secure_port(place, credentials)
        if credentials
        else server.add_insecure_port(place)
    )
    server.start()
    try:
        yield place.replace(f":{port}", f":{bound}")
    finally:
        server.stop(0).wait()


def begin(channel: Channel, request: bytes = b"hello", **options: Any) -> AsyncCall:
    """A call."""
    return channel.unary_stream(METHOD, bytes, bytes)(request, **options)


async def ask(channel: Channel, request: bytes = b"hello", **options: Any) -> list[bytes]:
    """All responses."""
    return [response async for response in begin(channel, request, **options)]


def asked(url: str, request: bytes = b"hello", *, tls: ClientTls | None = None) -> list[bytes]:
    """The same of a channel that lives no longer."""

    async def run() -> list[bytes]:
        channel = Channel(Endpoint(url, tls))
        try:
            return await ask(channel, request)
        finally:
            await channel.close()

    return asyncio.run(run())


@pytest.mark.parametrize("size", [0, 5, 70_000, 5_000_000])
def test_requests_and_responses_of_any_length(size: int) -> None:
    """Far beyond all windows, both ways."""
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with echoing(Echo()) as url:
        assert asked(url, content) == [content] * 3


def test_many_calls_at_once() -> None:
    """They share a connection and do not mix."""
    with echoing(Echo(50)) as url:

        async def run() -> None:
            channel = Channel(Endpoint(url))
            requests = [f"{number}".encode() * 1000 for number in range(40)]
            found = await asyncio.gather(*(ask(channel, each) for each in requests))
            assert found == [[each] * 50 for each in requests]
            await channel.close()

        asyncio.run(run())


def test_metadata_and_a_deadline_arrive() -> None:
    """As gRPC's own client sends them."""
    echo = Echo()
    with echoing(echo) as url:

        async def run() -> None:
            channel = Channel(Endpoint(url))
            await ask(channel, timeout=30, metadata=(("x-api-key", "k" * 300),))
            await channel.close()

        asyncio.run(run())
    assert echo.metadata["x-api-key"] == "k" * 300
    assert echo.seconds_left == pytest.approx(30, abs=5)


def test_a_status_with_words() -> None:
    """What came before it is read; words come as they were meant."""
    with echoing(Echo()) as url, pytest.raises(CallError) as caught:
        asked(url, b"fail")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "für 100 %\n"


@pytest.mark.parametrize(
    ("times", "request_", "code"),
    [(0, b"hello", "INTERNAL"), (1, b"fail", "RESOURCE_EXHAUSTED")],
    ids=["no response", "a status behind it"],
)
def test_a_call_of_one_response(times: int, request_: bytes, code: str) -> None:
    """It comes, or its error does."""
    echo = Echo(1)
    with echoing(echo) as url:

        async def run() -> None:
            channel = Channel(Endpoint(url))
            one = channel.unary_unary(METHOD, bytes, bytes)
            assert await one(b"hello", timeout=PATIENCE_SECONDS) == b"hello"
            echo.times = times
            with pytest.raises(CallError) as caught:
                await one(request_)
            assert caught.value.code() is grpc.StatusCode[code]
            await channel.close()

        asyncio.run(run())


def test_who_leaves_frees_the_server() -> None:
    """It learns of it while it works, and other calls go on."""
    echo = Echo()
    with echoing(echo) as url:

        async def run() -> None:
            channel = Channel(Endpoint(url))
            call = begin(channel, b"wait")
            assert await anext(call) == b"wait"
            call.cancel()
            assert await asyncio.to_thread(echo.left.wait, PATIENCE_SECONDS / 2)
            assert await ask(channel) == [b"hello"] * 3
            await channel.close()

        asyncio.run(run())


def test_who_does_not_read_holds_the_server_up() -> None:
    """It sends no more than fits into the windows and gRPC's own buffers."""
    echo = Echo(10_000)
    with echoing(echo) as url:

        async def run() -> None:
            channel = Channel(Endpoint(url))
            call = begin(channel, bytes(10_000))
            await anext(call)
            before = -1
            while echo.sent != before:
                before = echo.sent
                await asyncio.sleep(0.3)
            assert echo.sent < 100
            await channel.close()

        asyncio.run(run())


def test_late() -> None:
    """The deadline ends it here, whatever the server does."""
    with echoing(Echo()) as url:

        async def run() -> None:
            channel = Channel(Endpoint(url))
            with pytest.raises(CallError) as caught:
                await ask(channel, b"wait", timeout=0.2)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await channel.close()

        asyncio.run(run())


def test_nobody_there() -> None:
    """In the words by which errors are explained."""
    with pytest.raises(CallError) as caught:
        asked(NOBODY)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details().startswith(f"failed to connect to {NOBODY}: ")


def test_a_server_that_comes_back() -> None:
    """Calls under way break with it; the next one connects anew."""
    with reserved_ports("127.0.0.1", {"port": 0}) as (port,):
        pass

    async def run() -> None:
        channel = Channel(Endpoint(f"127.0.0.1:{port}"))
        with echoing(Echo(), port):
            call = begin(channel, b"wait")
            for _ in range(3):
                await anext(call)
        with pytest.raises(CallError) as caught:
            await anext(call)
        assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        with pytest.raises(CallError):
            await ask(channel)
        with echoing(Echo(), port):
            assert await ask(channel) == [b"hello"] * 3
        await channel.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority's, a server's, a client's."""
    folder = tmp_path_factory.mktemp("tls") / "certificates"
    make_certificates(folder)
    return folder


@contextmanager
def secured(folder: Path) -> Iterator[str]:
    """A server that asks its clients for certificates, too."""
    pair = (folder / "server.key").read_bytes(), (folder / "server.crt").read_bytes()
    authority = (folder / "ca.crt").read_bytes()
    with echoing(Echo(), 0, grpc.ssl_server_credentials([pair], authority, True)) as url:
        yield url


def test_mutual_tls(certificates: Path) -> None:
    """With both certificates, and by another name than that which is dialled."""
    pair = certificates / "client.crt", certificates / "client.key"
    with secured(certificates) as url:
        for name in (None, "127.0.0.1"):
            tls = ClientTls(certificates / "ca.crt", *pair, server_name=name)
            assert asked(url, tls=tls) == [b"hello"] * 3


@pytest.mark.parametrize(
    "tls",
    [
        lambda folder: ClientTls(folder / "ca.crt"),
        lambda _: ClientTls(),
        lambda folder: ClientTls(
            folder / "ca.crt", folder / "client.crt", folder / "client.key", "other.example"
        ),
    ],
    ids=["no certificate", "unknown authority", "other name"],
)
def test_tls_that_does_not_fit(certificates: Path, tls: Any) -> None:
    """UNAVAILABLE, and nothing hangs."""
    with secured(certificates) as url, pytest.raises(CallError) as caught:
        asked(url, tls=tls(certificates))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_without_http2_over_tls() -> None:
    """Plain bytes in place of TLS: an error, not a wait."""
    with echoing(Echo()) as url, pytest.raises(CallError) as caught:
        asked(url, tls=ClientTls())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_calls_wait_for_one_connection() -> None:
    """Who leaves before it is made does not take it from the others."""
    with echoing(Echo()) as url:

        async def run() -> None:
            channel = Channel(Endpoint(url))
            asking = [asyncio.create_task(ask(channel)) for _ in range(5)]
            await asyncio.sleep(0)
            asking[0].cancel()
            found = await asyncio.gather(*asking, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
            assert found[1:] == [[b"hello"] * 3] * 4
            assert len(channel._connections) == 1
            await channel.close()
            with pytest.raises(CallError):
                await ask(channel)

        asyncio.run(run())


def test_the_client_of_the_frontend() -> None:
    """Text of a stream, a stream that is left, and errors, as AsyncTritonClient has them."""
    replica = Replica()
    with serving(replica) as urls:

        async def run() -> None:
            async with StreamingClient(urls[0]) as client:
                with pytest.raises(ServerError, match="UNIMPLEMENTED"):
                    await client.model_ready("speller")
                whole = await client.generate("speller", "72")
                assert (whole.text, whole.finish_reason) == ("seven ty-two", "stop")
                async with aclosing(client.stream("speller", "72")) as chunks:
                    await anext(chunks)
                assert await asyncio.to_thread(replica.cancelled.wait, PATIENCE_SECONDS)
                client.reach(NOBODY)
                with pytest.raises(ServerError, match="failed to connect"):
                    await client.at(NOBODY).generate("speller", "72")

        asyncio.run(run())
