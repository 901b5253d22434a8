# SPDX-License-Identifier: Apache-2.0
"""The application behind a real socket: clients that go away, dawdle, or send no HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fakes.ensemble_client import FakeEnsemble, Step, chunks_of
from tests.frontend_thread import serving
from tests.unit.frontend.conftest import CHAT, config_of
from tritonctl.frontend.connections import MAX_HEAD_BYTES

pytestmark = pytest.mark.timed

WaitUntil = Callable[[Callable[[], object]], None]
FREED_SECONDS = 0.5
FOREVER: list[Step] = [*chunks_of(["a", "b"], ""), 60.0]


@dataclass
class Listening:
    """The application at a port of its own."""

    port: int
    ensemble: FakeEnsemble

    async def send(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which these bytes went out."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer

    def ask(self, data: bytes, *, end: bool = False) -> bytes:
        """All that comes back until the server hangs up. end: no more data will follow."""

        async def exchange() -> bytes:
            reader, writer = await self.send(data)
            if end:
                writer.write_eof()
            answer = await reader.read()
            writer.close()
            return answer

        return asyncio.run(exchange())


@contextmanager
def listening(ensemble: FakeEnsemble, **settings: Any) -> Iterator[Listening]:
    """uvicorn as `tritonctl frontend` runs it, in a thread."""
    with serving(config_of(port=0, **settings), ensemble.connect) as port:
        yield Listening(port, ensemble)


def request(body: Any, *, path: str = CHAT, close: bool = False) -> bytes:
    """A whole POST."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(data)}\r\n" + ("connection: close\r\n" if close else "")
    return head.encode() + b"\r\n" + data


def chat(**fields: Any) -> dict[str, Any]:
    """A conversation."""
    return {"model": "speller", "messages": [{"role": "user", "content": "x"}]} | fields


def error_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of a response in the raw."""
    head, _, body = answer.partition(b"\r\n\r\n")
    record: dict[str, Any] = json.loads(body)["error"]
    return int(head.split()[1]), record


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"n": 3}])
def test_a_client_that_goes_away(wait_until: WaitUntil, fields: dict[str, Any]) -> None:
    """Its streams are cancelled within half a second, streamed and not."""
    with listening(FakeEnsemble(script=FOREVER)) as frontend:

        async def leave() -> None:
            reader, writer = await frontend.send(request(chat(**fields)))
            if fields.get("stream"):
                await reader.readuntil(b'"b"')
            while frontend.ensemble.open < fields.get("n", 1):
                await asyncio.sleep(0.01)
            writer.close()

        asyncio.run(leave())
        left = time.monotonic()
        wait_until(lambda: not frontend.ensemble.open)
        assert time.monotonic() - left < FREED_SECONDS
        assert frontend.ensemble.cancelled == fields.get("n", 1)


def test_events_come_one_by_one() -> None:
    """The first is there while the model still works on the next."""
    with listening(FakeEnsemble(script=FOREVER)) as frontend:

        async def first() -> bytes:
            reader, writer = await frontend.send(request(chat(stream=True)))
            seen = await asyncio.wait_for(reader.readuntil(b'"content":"b"'), 30)
            writer.close()
            return seen

        assert b"200 OK" in asyncio.run(first())


def test_a_slow_head() -> None:
    """408, and the server hangs up."""
    with listening(FakeEnsemble(), body_timeout_seconds=0.2) as frontend:
        status, error = error_of(frontend.ask(b"POST /v1/chat/completions HTTP/1.1\r\nhost:"))
        assert (status, error["code"]) == (408, "request_timeout")
        assert frontend.ask(b"") == frontend.ask(b"\r\n") != b""


def test_a_slow_head_behind_a_whole_request() -> None:
    """A connection is not kept for the bytes that trickle in after an answer."""
    with listening(FakeEnsemble(), body_timeout_seconds=0.2) as frontend:
        answer = frontend.ask(request(chat()) + b"POST /v1")
        assert answer.count(b"HTTP/1.1") == 2
        assert b"408" in answer


def test_a_long_answer_outlives_the_limit_of_heads() -> None:
    """The limit is for what the client sends."""
    script: list[Step] = [*chunks_of(["a", "b"])[:1], 0.6, *chunks_of(["a", "b"])[1:]]
    with listening(FakeEnsemble(script=script), body_timeout_seconds=0.2) as frontend:
        answer = frontend.ask(request(chat(stream=True), close=True))
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_slow_body() -> None:
    """408, and the server hangs up."""
    with listening(FakeEnsemble(), body_timeout_seconds=0.2) as frontend:
        status, error = error_of(frontend.ask(request(chat())[:-5]))
        assert (status, error["code"]) == (408, "request_timeout")


def test_a_head_without_end() -> None:
    """431 as soon as it is too long."""
    with listening(FakeEnsemble()) as frontend:
        lines = b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(100))
        assert len(lines) > MAX_HEAD_BYTES
        status, _ = error_of(frontend.ask(b"GET / HTTP/1.1\r\nhost: x\r\n" + lines))
        assert status == 431


def test_what_is_no_http() -> None:
    """400 in OpenAI's shape."""
    with listening(FakeEnsemble()) as frontend:
        status, error = error_of(frontend.ask(b"\x16\x03\x01 TLS\r\n\r\n"))
        assert (status, error["code"]) == (400, "invalid_http")


def test_a_body_that_is_too_long() -> None:
    """413 reaches the client although it is still sending."""
    with listening(FakeEnsemble(), max_body_bytes=1000) as frontend:
        status, error = error_of(frontend.ask(request(b" " * 15_000)))
        assert (status, error["code"]) == (413, "request_too_large")


def test_too_many_requests() -> None:
    """429 for those beyond `max_requests`."""
    with listening(FakeEnsemble(script=FOREVER), max_requests=1) as frontend:

        async def both() -> bytes:
            reader, writer = await frontend.send(request(chat(stream=True)))
            await reader.readuntil(b'"b"')
            second, other = await frontend.send(request(chat(), close=True))
            answer = await second.read()
            writer.close()
            other.close()
            return answer

        answer = asyncio.run(both())
        assert error_of(answer)[0] == 429
        assert b"retry-after: 1" in answer


def test_bodies_that_do_not_arrive() -> None:
    """They keep nobody out, however few requests may be in flight."""
    with listening(FakeEnsemble(), max_requests=1) as frontend:

        async def both() -> bytes:
            writers = [(await frontend.send(request(chat())[:-5]))[1] for _ in range(3)]
            reader, writer = await frontend.send(request(chat(), close=True))
            answer = await reader.read()
            for each in (*writers, writer):
                each.close()
            return answer

        assert b"200 OK" in asyncio.run(both())


CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}zz\r\n0\r\n\r\n",
        CHUNKED + b"-1\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\n",
    ],
)
def test_a_bad_chunk(data: bytes) -> None:
    """400 in OpenAI's shape, whether it comes with the head or later."""
    with listening(FakeEnsemble()) as frontend:
        assert error_of(frontend.ask(data))[0] == 400

        async def later() -> bytes:
            reader, writer = await frontend.send(CHUNKED)
            await asyncio.sleep(0.1)
            writer.write(data.removeprefix(CHUNKED))
            answer = await reader.read()
            writer.close()
            return answer

        status, error = error_of(asyncio.run(later()))
        assert (status, error["code"]) == (400, "invalid_http")


GARBAGE = b"\x16\x03\x01 TLS\r\n\r\n"
SLOW: list[Step] = [*chunks_of(["a", "b"])[:1], 0.3, *chunks_of(["a", "b"])[1:]]


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}])
@pytest.mark.parametrize("count", [1, 2])
def test_garbage_behind_requests(fields: dict[str, Any], count: int) -> None:
    """Complete requests get complete answers, and the server hangs up."""
    with listening(FakeEnsemble(script=SLOW)) as frontend:
        answer = frontend.ask(request(chat(**fields)) * count + GARBAGE)
        assert answer.count(b"HTTP/1.1 200") == answer.count(b"HTTP/1.1 ") == count
        assert answer.count(b'"finish_reason":"stop"') == count


def test_a_bad_chunk_behind_a_request() -> None:
    """The first gets its answer; nothing is said of the second while that is sent."""
    with listening(FakeEnsemble(script=SLOW)) as frontend:
        answer = frontend.ask(request(chat(stream=True)) + CHUNKED + b"zz\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}])
@pytest.mark.parametrize("count", [1, 2])
def test_half_closed_clients(fields: dict[str, Any], count: int) -> None:
    """Who has said everything, but reads, gets everything."""
    with listening(FakeEnsemble(script=SLOW)) as frontend:
        answer = frontend.ask(request(chat(**fields)) * count, end=True)
        assert answer.count(b'"finish_reason":"stop"') == count
        assert answer.count(b"HTTP/1.1 200") == count
        assert frontend.ensemble.cancelled == 0


@pytest.mark.parametrize("data", [b"POST /v1", request(chat())[:-5], CHUNKED + b"2\r\n{"])
def test_half_a_request(data: bytes) -> None:
    """400 at once to who ends in the middle."""
    with listening(FakeEnsemble()) as frontend:
        status, error = error_of(frontend.ask(data, end=True))
        assert (status, error["code"]) == (400, "invalid_http")
        assert frontend.ask(b"", end=True) == b""


def expecting(body: bytes, *lines: bytes) -> bytes:
    """A head that waits for the server's word."""
    head = request(body).partition(b"\r\n\r\n")[0]
    return b"\r\n".join([head, b"expect: 100-continue", *lines]) + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (expecting(b" " * 2000), 413),
        (expecting(b"{}").replace(b"application/json", b"text/plain"), 415),
        (expecting(b"{}").replace(b"100-continue", b"magic"), 417),
        (expecting(b"{}").replace(b"/v1/chat", b"/v7/chat"), 404),
    ],
)
def test_a_body_that_is_not_welcome(head: bytes, status: int) -> None:
    """The client learns it before it sends the body, and the connection ends."""
    with listening(FakeEnsemble(), max_body_bytes=1000) as frontend:
        answer = frontend.ask(head)
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert b"connection: close" in answer


def test_a_body_that_is_welcome() -> None:
    """100 first."""
    with listening(FakeEnsemble()) as frontend:
        body = json.dumps(chat()).encode()

        async def exchange() -> bytes:
            reader, writer = await frontend.send(expecting(body, b"connection: close"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            answer = await reader.read()
            writer.close()
            return answer

        assert asyncio.run(exchange()).startswith(b"HTTP/1.1 200")


def test_an_offer_to_upgrade() -> None:
    """Java's client offers HTTP/2 in the clear with every request; it is answered as it is."""
    with listening(FakeEnsemble()) as frontend:
        offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAM\r\n"
        data = request(chat()).replace(b"host: x\r\n", b"host: x\r\n" + offer)

        async def exchange() -> list[bytes]:
            reader, writer = await frontend.send(data)
            first = await reader.readuntil(b"}}")
            writer.write(data)
            second = await reader.readuntil(b"}}")
            writer.close()
            return [first, second]

        assert all(each.startswith(b"HTTP/1.1 200") for each in asyncio.run(exchange()))
