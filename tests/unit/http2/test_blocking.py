# SPDX-License-Identifier: Apache-2.0
"""Streams that threads read by themselves: gRPC's own servers, and servers that play a script."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.unit.http2.test_against_grpc import METHOD, Echo, certificates, echoing, secured
from tests.unit.http2.test_channel import (
    CODES,
    Connection,
    Script,
    answering,
    hangs_up,
    playing,
    silent,
)
from tests.unit.protocol.test_resuming import NOBODY, Replica, serving
from tritonctl.errors import HostError, ServerError
from tritonctl.http2 import frames
from tritonctl.http2.blocking import BlockingCall, BlockingChannel
from tritonctl.http2.call import CallError
from tritonctl.http2.channel import Channel
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.client import TritonClient

__all__ = ["certificates"]
PATIENCE_SECONDS = 20.0
SOON_SECONDS = 5.0


@contextmanager
def played(*scripts: Script, host: str = "127.0.0.1") -> Iterator[str]:
    """A server that plays them in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = playing(*scripts, host=host)

    def done(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_SECONDS)

    try:
        url = done(server.__aenter__())
        try:
            yield url
        finally:
            done(server.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@contextmanager
def channel_to(url: str, tls: ClientTls | None = None) -> Iterator[BlockingChannel]:
    """Closed in the end."""
    channel = BlockingChannel(Endpoint(url, tls))
    try:
        yield channel
    finally:
        channel.close()


def begin(channel: BlockingChannel, request: bytes = b"hello", **options: Any) -> BlockingCall:
    """A call."""
    return channel.unary_stream(METHOD, bytes, bytes)(request, **options)


def ask(channel: BlockingChannel, request: bytes = b"hello", **options: Any) -> list[bytes]:
    """All responses."""
    return list(begin(channel, request, **options))


def failure(channel: BlockingChannel, request: bytes = b"hello", **options: Any) -> CallError:
    """How a call fails, which must not take long."""
    began = time.monotonic()
    with pytest.raises(CallError) as caught:
        ask(channel, request, **options)
    assert time.monotonic() - began < SOON_SECONDS
    return caught.value


@pytest.mark.parametrize("size", [0, 5, 70_000, 5_000_000])
def test_requests_and_responses_of_any_length(size: int) -> None:
    """Far beyond all windows, both ways."""
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with echoing(Echo()) as url, channel_to(url) as channel:
        assert ask(channel, content) == [content] * 3
        assert ask(channel, content, timeout=PATIENCE_SECONDS) == [content] * 3


def test_metadata_a_deadline_and_a_status() -> None:
    """As gRPC's own client has them."""
    echo = Echo()
    with echoing(echo) as url, channel_to(url) as channel:
        ask(channel, timeout=30, metadata=(("x-api-key", "k" * 300),))
        assert echo.metadata["x-api-key"] == "k" * 300
        assert echo.seconds_left == pytest.approx(30, abs=5)
        error = failure(channel, b"fail")
        assert (error.code(), error.details()) == (CODES.RESOURCE_EXHAUSTED, "für 100 %\n")


def test_threads_share_a_channel() -> None:
    """None gets another one's responses; connections are used again."""
    connections = 0

    async def counted(connection: Connection) -> None:
        nonlocal connections
        connections += 1
        await connection.open()
        while True:
            stream = await connection.request()
            connection.answer(stream, f"{connections}".encode())

    with played(counted) as url, channel_to(url) as channel, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ask(channel), range(200)))
    assert all(len(responses) == 1 for responses in found)
    assert connections <= 8


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_is_used_again(host: str) -> None:
    """Also behind a call that was left."""

    async def once(connection: Connection) -> None:
        raise AssertionError("a second connection")

    with played(answering, once, host=host) as url, channel_to(url) as channel:
        left = begin(channel)
        left.cancel()
        assert ask(channel) == [b"answer"]
        assert ask(channel) == [b"answer"]


def test_who_leaves_frees_the_server() -> None:
    """It learns of it while it works."""
    echo = Echo()
    with echoing(echo) as url, channel_to(url) as channel:
        call = begin(channel, b"wait")
        assert next(call) == b"wait"
        call.cancel()
        assert echo.left.wait(SOON_SECONDS)
        assert ask(channel) == [b"hello"] * 3


def test_who_does_not_read_holds_the_server_up() -> None:
    """It sends no more than fits into windows and sockets."""
    echo = Echo(10_000)
    with echoing(echo) as url, channel_to(url) as channel:
        call = begin(channel, bytes(10_000))
        next(call)
        before = -1
        while echo.sent != before:
            before = echo.sent
            time.sleep(0.3)
        assert echo.sent < 100
        call.cancel()


def test_a_drain_loses_no_call() -> None:
    """What the server has not begun with goes to a new connection."""

    async def drains(connection: Connection) -> None:
        await connection.open()
        await connection.request()
        connection.goaway(0)

    with played(drains, answering) as url, channel_to(url) as channel:
        assert ask(channel) == [b"answer"]


def test_a_refused_call_is_asked_again_once() -> None:
    """The second refusal is its error."""

    async def refuses(connection: Connection) -> None:
        await connection.open()
        while True:
            stream = await connection.request()
            connection.writer.write(frames.reset(stream, frames.REFUSED_STREAM))

    with played(refuses, answering) as url, channel_to(url) as channel:
        error = failure(channel)
        assert error.code() is CODES.UNAVAILABLE
        assert error.details() == "Received RST_STREAM with error code 7"


@pytest.mark.parametrize(
    "words", [b"", frames.frame(frames.GOAWAY, 0, 0, struct.pack(">LL", 1, 0))]
)
def test_a_connection_that_ended_while_nobody_read(words: bytes) -> None:
    """The next call learns of it before it is sent."""
    ended = threading.Event()

    async def ends(connection: Connection) -> None:
        await connection.open()
        connection.answer(await connection.request())
        connection.writer.write(words)
        if words:
            await connection.writer.drain()
            ended.set()
            await silent(connection)
        connection.writer.close()
        await connection.writer.wait_closed()
        ended.set()

    with played(ends, answering) as url, channel_to(url) as channel:
        assert ask(channel) == [b"answer"]
        assert ended.wait(SOON_SECONDS)
        time.sleep(0.05)
        assert ask(channel) == [b"answer"]


def test_a_loop_that_did_not_run_meanwhile() -> None:
    """A channel of asyncio's learns of the end as late as a thread does, and early enough."""
    ended = threading.Event()

    async def ends(connection: Connection) -> None:
        await connection.open()
        connection.answer(await connection.request())
        await connection.writer.drain()
        connection.writer.close()
        await connection.writer.wait_closed()
        ended.set()

    async def asked(url: str) -> None:
        channel = Channel(Endpoint(url))
        for _ in range(2):
            call = channel.unary_stream(METHOD, bytes, bytes)(b"hello")
            assert [response async for response in call] == [b"answer"]
            assert ended.wait(SOON_SECONDS)
            time.sleep(0.05)
        await channel.close()

    with played(ends, answering) as url:
        asyncio.run(asked(url))


async def opens_and_waits(connection: Connection) -> None:
    """Takes a request and does not answer."""
    await connection.open()
    await silent(connection)


@pytest.mark.parametrize("script", [silent, opens_and_waits])
def test_a_deadline(script: Script) -> None:
    """It holds while the connection is made and while nothing comes."""
    with played(script) as url, channel_to(url) as channel:
        assert failure(channel, timeout=0.1).code() is CODES.DEADLINE_EXCEEDED


def test_a_deadline_of_a_request_that_is_not_taken() -> None:
    """The socket is full, the server does not read."""

    async def reads_nothing(connection: Connection) -> None:
        settings = struct.pack(">HL", frames.INITIAL_WINDOW_SIZE, frames.STREAM)
        connection.writer.write(
            frames.frame(frames.SETTINGS, 0, 0, settings) + frames.window_update(0, 1 << 30)
        )
        await asyncio.sleep(PATIENCE_SECONDS)

    with played(reads_nothing) as url, channel_to(url) as channel:
        error = failure(channel, bytes(50 << 20), timeout=0.5)
        assert error.code() is CODES.DEADLINE_EXCEEDED


@pytest.mark.parametrize("script", [hangs_up, None])
def test_nobody_there(script: Script | None) -> None:
    """In the words by which errors are explained."""
    with played(script or silent) as url, channel_to(url if script else NOBODY) as channel:
        error = failure(channel)
        assert error.code() is CODES.UNAVAILABLE
        assert error.details().startswith("failed to connect to ")


def test_a_connection_that_breaks_under_a_call() -> None:
    """The server may have begun with it: it is not asked again. The next call connects anew."""

    async def breaks(connection: Connection) -> None:
        await connection.open()
        await connection.request()

    with played(breaks, answering) as url, channel_to(url) as channel:
        error = failure(channel)
        assert (error.code(), error.details()) == (CODES.UNAVAILABLE, "Socket closed")
        assert ask(channel) == [b"answer"]


def test_calls_end_with_their_channel() -> None:
    """One that another thread reads, and those that come too late."""
    with played(opens_and_waits) as url, ThreadPoolExecutor(1) as pool, channel_to(url) as channel:
        reading = pool.submit(failure, channel)
        time.sleep(0.1)
        channel.close()
        assert reading.result(SOON_SECONDS).code() is CODES.CANCELLED
        assert failure(channel).code() is CODES.CANCELLED


def test_waiting_for_the_end() -> None:
    """Not for longer than one wants to."""
    trailers = threading.Event()

    async def ends_late(connection: Connection) -> None:
        await connection.open()
        stream = await connection.request()
        await asyncio.to_thread(trailers.wait, PATIENCE_SECONDS)
        connection.answer(stream)

    with played(ends_late) as url, channel_to(url) as channel:
        call = begin(channel)
        with pytest.raises(grpc.FutureTimeoutError):
            call.exception(timeout=0.05)
        trailers.set()
        call.exception(timeout=PATIENCE_SECONDS)
        assert call.status is CODES.OK


def test_mutual_tls(certificates: Path) -> None:
    """With both certificates, and by another name than that which is dialled."""
    pair = certificates / "client.crt", certificates / "client.key"
    with secured(certificates) as url:
        for name in (None, "127.0.0.1"):
            tls = ClientTls(certificates / "ca.crt", *pair, server_name=name)
            with channel_to(url, tls) as channel:
                assert ask(channel) == ask(channel) == [b"hello"] * 3
                assert ask(channel, bytes(1_000_000)) == [bytes(1_000_000)] * 3


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
def test_tls_that_does_not_fit(certificates: Path, tls: Callable[[Path], ClientTls]) -> None:
    """UNAVAILABLE, for want of a connection, and nothing hangs."""
    with secured(certificates) as url, channel_to(url, tls(certificates)) as channel:
        error = failure(channel, timeout=PATIENCE_SECONDS)
        assert error.code() is CODES.UNAVAILABLE
        assert error.details().startswith("failed to connect to ")


def test_a_certificate_that_is_missing(tmp_path: Path) -> None:
    """It is told at once, not with the first call."""
    with pytest.raises(HostError, match="cannot be read"):
        TritonClient("127.0.0.1:8001", tls=ClientTls(tmp_path / "none.crt"))


def test_a_client_of_threads() -> None:
    """Text of many streams, one that is left, and one that cannot go on."""
    replica = Replica()
    with serving(replica) as (url,), ThreadPoolExecutor(4) as pool, TritonClient(url) as client:
        answers = pool.map(lambda _: client.generate("speller", "72"), range(40))
        assert {whole.text for whole in answers} == {"seven ty-two"}
        stream = client.stream("speller", "72")
        next(stream)
        stream.close()  # type: ignore[attr-defined] # it is a generator
        assert replica.cancelled.wait(SOON_SECONDS)
        with TritonClient(NOBODY) as nobody, pytest.raises(ServerError, match="failed to connect"):
            nobody.generate("speller", "72")
