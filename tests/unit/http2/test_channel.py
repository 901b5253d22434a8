# SPDX-License-Identifier: Apache-2.0
"""Connections of our HTTP/2 as servers that play a script let them be: drains, limits, silence."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import hpack
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.unit.protocol.test_connection import NOBODY
from tests.unit.protocol.test_resuming import Replica, serving
from tritonctl.errors import HostError, ServerError
from tritonctl.http2 import frames
from tritonctl.http2.call import CallError
from tritonctl.http2.channel import Channel
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.connection import cheapest_channel

HEAD = ((":status", "200"), ("content-type", "application/grpc"))
OK = (("grpc-status", "0"),)
PATIENCE_SECONDS = 20.0
CODES = grpc.StatusCode


@dataclass
class Connection:
    """One of a server's, in frames."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    encoder: hpack.Encoder = field(default_factory=hpack.Encoder)

    async def open(self, *settings: tuple[int, int]) -> None:
        """Read the client's preface, say ours."""
        await self.reader.readexactly(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        payload = b"".join(struct.pack(">HL", *each) for each in settings)
        self.writer.write(frames.frame(frames.SETTINGS, 0, 0, payload))

    async def frame(self) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream, payload of the next one."""
        head = await self.reader.readexactly(frames.HEAD_BYTES)
        high, low, kind, flags, stream = frames.HEAD.unpack(head)
        return kind, flags, stream, await self.reader.readexactly(high << 8 | low)

    async def request(self) -> int:
        """The stream of the next whole one."""
        while True:
            kind, flags, stream, _ = await self.frame()
            if kind == frames.DATA and flags & frames.END_STREAM:
                return stream

    def answer(self, stream: int, content: bytes = b"answer") -> None:
        """One message, and the end."""
        body = struct.pack(">BL", 0, len(content)) + content
        for flags, headers in ((0, HEAD), (frames.END_STREAM, OK)):
            block = self.encoder.encode(headers)
            self.writer.write(
                frames.frame(frames.HEADERS, flags | frames.END_HEADERS, stream, block)
            )
            if not flags:
                self.writer.write(frames.frame(frames.DATA, 0, stream, body))

    def goaway(self, last: int) -> None:
        """No calls beyond this one."""
        self.writer.write(frames.frame(frames.GOAWAY, 0, 0, struct.pack(">LL", last, 0)))


Script = Callable[[Connection], Awaitable[None]]


@asynccontextmanager
async def playing(*scripts: Script, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """A server whose connections play one script after another, the last one again and again."""
    left, connections = list(scripts), []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        script = left.pop(0) if len(left) > 1 else left[0]
        try:
            await script(Connection(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):  # the client has hung up
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(play, host, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    finally:
        server.close()
        for writer in connections:
            writer.close()


async def answering(connection: Connection) -> None:
    """Answers all calls."""
    await connection.open()
    while True:
        connection.answer(await connection.request())


def run(
    *scripts: Script, test: Callable[[Channel], Awaitable[None]], host: str = "127.0.0.1"
) -> None:
    """A test of a channel to such a server."""

    async def inside() -> None:
        async with playing(*scripts, host=host) as url:
            channel = Channel(Endpoint(url))
            await asyncio.wait_for(test(channel), PATIENCE_SECONDS)
            await channel.close()

    asyncio.run(inside())


async def ask(channel: Channel, **options: Any) -> list[bytes]:
    """All responses."""
    call = channel.unary_stream("/test.Service/Stream", bytes, bytes)(b"request", **options)
    return [response async for response in call]


async def failure(channel: Channel, **options: Any) -> CallError:
    """How a call fails."""
    with pytest.raises(CallError) as caught:
        await ask(channel, **options)
    return caught.value


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_call_and_another_one(host: str) -> None:
    """On one connection."""

    async def test(channel: Channel) -> None:
        assert await ask(channel) == [b"answer"]
        assert await ask(channel) == [b"answer"]

    async def once(connection: Connection) -> None:
        raise AssertionError("a second connection")

    run(answering, once, test=test, host=host)


def test_a_drain_loses_no_call() -> None:
    """The one that the server has begun with ends there, later ones go to a new connection."""
    answered = asyncio.Event()

    async def drains(connection: Connection) -> None:
        await connection.open()
        seen, _unseen = await connection.request(), await connection.request()
        connection.goaway(seen)
        await answered.wait()
        connection.answer(seen, b"the old one")

    async def takes_over(connection: Connection) -> None:
        await connection.open()
        connection.answer(await connection.request(), b"the new one")
        answered.set()
        connection.answer(await connection.request(), b"the new one")

    async def test(channel: Channel) -> None:
        old, new = await asyncio.gather(ask(channel), ask(channel))
        assert (old, new) == ([b"the old one"], [b"the new one"])
        assert await ask(channel) == [b"the new one"]

    run(drains, takes_over, test=test)


def test_a_server_that_takes_one_call_at_a_time() -> None:
    """Many get connections, the rest wait for a place; none fails."""
    most = 0

    async def one_at_a_time(connection: Connection) -> None:
        nonlocal most
        most += 1
        await connection.open((frames.MAX_CONCURRENT_STREAMS, 1))
        while True:
            stream = await connection.request()
            await asyncio.sleep(0.002)
            connection.answer(stream)

    async def test(channel: Channel) -> None:
        found = await asyncio.gather(*(ask(channel) for _ in range(200)))
        assert found == [[b"answer"]] * 200
        assert most <= 64

    run(one_at_a_time, test=test)


def test_a_limit_that_came_too_late() -> None:
    """Calls beyond it are refused, and asked again once there is room."""

    async def lowers(connection: Connection) -> None:
        await connection.open()
        first, second = await connection.request(), await connection.request()
        limit = struct.pack(">HL", frames.MAX_CONCURRENT_STREAMS, 1)
        connection.writer.write(frames.frame(frames.SETTINGS, 0, 0, limit))
        connection.writer.write(frames.reset(second, frames.REFUSED_STREAM))
        connection.answer(first)
        while True:
            connection.answer(await connection.request())

    async def test(channel: Channel) -> None:
        asked = [ask(channel), ask(channel)]
        assert await asyncio.gather(*asked) == [[b"answer"]] * 2

    run(lowers, test=test)


async def silent(connection: Connection) -> None:
    """Takes the connection and says nothing."""
    await connection.reader.read()


def test_a_deadline_while_there_is_no_connection() -> None:
    """It holds, whatever the time that connecting may take."""

    async def test(channel: Channel) -> None:
        assert (await failure(channel, timeout=0.05)).code() is CODES.DEADLINE_EXCEEDED

    run(silent, test=test)


def test_who_waits_for_a_connection_may_leave() -> None:
    """The request of a call that was cancelled goes to nobody."""
    go, requests = asyncio.Event(), 0

    async def slow(connection: Connection) -> None:
        nonlocal requests
        await go.wait()
        await connection.open()
        while True:
            stream = await connection.request()
            requests += 1
            connection.answer(stream)

    async def test(channel: Channel) -> None:
        leaving = channel.unary_stream("/test.Service/Stream", bytes, bytes)(b"request")
        leaving.cancel()
        assert await leaving.code() is CODES.CANCELLED
        go.set()
        assert await ask(channel) == [b"answer"]
        assert requests == 1

    run(slow, test=test)


async def hangs_up(_: Connection) -> None:
    """As a server does that wants TLS, or another certificate."""


def test_a_server_that_hangs_up() -> None:
    """No connection was made: its remedies are about connecting."""

    async def test(channel: Channel) -> None:
        error = await failure(channel)
        assert error.code() is CODES.UNAVAILABLE
        assert error.details().startswith("failed to connect to ")
        assert "Socket closed" in error.details()

    run(hangs_up, test=test)


def test_a_connection_that_breaks_under_a_call() -> None:
    """The server may have begun with it: it is not asked again. The next call connects anew."""

    async def breaks(connection: Connection) -> None:
        await connection.open()
        await connection.request()

    async def test(channel: Channel) -> None:
        error = await failure(channel)
        assert (error.code(), error.details()) == (CODES.UNAVAILABLE, "Socket closed")
        assert await ask(channel) == [b"answer"]

    run(breaks, answering, test=test)


def test_calls_end_with_their_channel() -> None:
    """Those under way, those that wait, those that come too late: they are cancelled."""

    async def waits(connection: Connection) -> None:
        await connection.open((frames.MAX_CONCURRENT_STREAMS, 1))
        await connection.request()
        await silent(connection)

    async def test(channel: Channel) -> None:
        asking = [asyncio.create_task(failure(channel)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await channel.close()
        errors = [*await asyncio.gather(*asking), await failure(channel)]
        assert [error.code() for error in errors] == [CODES.CANCELLED] * 4

    run(waits, silent, test=test)


def test_a_client_that_is_closed_goes_on_nowhere() -> None:
    """Its answers do not resume at other endpoints."""

    async def inside() -> None:
        async with playing(silent) as silence, playing(answering) as other:
            client = AsyncTritonClient(silence, resume_on=[other, NOBODY], max_resumes=100)
            asking = asyncio.create_task(client.generate("speller", "7"))
            await asyncio.sleep(0.05)
            await client.close()
            with pytest.raises(ServerError, match="CANCELLED"):
                await asyncio.wait_for(asking, PATIENCE_SECONDS)

    asyncio.run(inside())


def test_a_hundred_streams_of_a_client_share_a_connection() -> None:
    """And none mixes with another."""
    replica = Replica()

    async def inside(url: str) -> None:
        async with AsyncTritonClient(url) as client:
            asked = (client.generate("speller", "72") for _ in range(100))
            assert {whole.text for whole in await asyncio.gather(*asked)} == {"seven ty-two"}

    with serving(replica) as (url,):
        asyncio.run(inside(url))


@pytest.mark.parametrize(
    ("url", "proxy", "ours"),
    [
        ("127.0.0.1:8001", "", True),
        ("triton.example.com:8001", "", True),
        ("[::1]:8001", "", True),
        ("[fe80::1%eth0]:8001", "", True),
        ("127.0.0.1:8001", "http_proxy", True),
        ("localhost:8001", "grpc_proxy", True),
        ("triton.example.com:8001", "http_proxy", False),
        ("triton.example.com:8001", "https_proxy", False),
        ("triton.example.com:8001", "grpc_proxy", False),
        ("triton.example.com", "", False),
        ("triton:99999", "", False),
        ("unix:/run/triton.sock", "", False),
        ("dns:///triton:8001", "", False),
        ("ipv4:127.0.0.1:8001", "", False),
        ("::1", "", False),
    ],
)
def test_which_http2(url: str, proxy: str, *, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, unless gRPC alone gets there."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    if proxy:
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")

    async def inside() -> None:
        channel = cheapest_channel(Endpoint(url))
        assert isinstance(channel, Channel) is ours
        await channel.close()

    asyncio.run(inside())


def test_a_socket_of_the_file_system(tmp_path: Path) -> None:
    """As gRPC's channels have it."""

    class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        def ModelReady(self, *_: Any) -> Any:  # noqa: N802
            """Every model is."""
            return service_pb2.ModelReadyResponse(ready=True)

    url = f"unix:{tmp_path / 'triton.sock'}"
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), server)
    server.add_insecure_port(url)
    server.start()

    async def inside() -> None:
        async with AsyncTritonClient(url) as client:
            assert await client.model_ready("speller")

    try:
        asyncio.run(inside())
    finally:
        server.stop(0).wait()


def test_a_certificate_that_is_missing(tmp_path: Path) -> None:
    """It is told at once, not with the first call."""
    with pytest.raises(HostError, match="cannot be read"):
        AsyncTritonClient("127.0.0.1:8001", tls=ClientTls(tmp_path / "none.crt"))
