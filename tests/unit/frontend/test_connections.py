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
from tritonctl.frontend.connections import MOST_HEAD_BYTES

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

    def ask(self, data: bytes) -> bytes:
        """All that comes back until the server hangs up."""

        async def exchange() -> bytes:
            reader, writer = await self.send(data)
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
        assert len(lines) > MOST_HEAD_BYTES
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
