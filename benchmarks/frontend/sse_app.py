# SPDX-License-Identifier: Apache-2.0
"""An application that does nothing but stream events: what a web server costs.

`/starlette` answers with Starlette's StreamingResponse, `/raw` with bare ASGI messages. The body
says how many events, and milliseconds between two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

EVENT = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1764110000,
    "model": "speller",
    "choices": [
        {"index": 0, "delta": {"content": " seven"}, "logprobs": None, "finish_reason": None}
    ],
}
HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


async def events(asked: dict[str, Any]) -> AsyncIterator[bytes]:
    """As chat completions make them."""
    pause = asked["interval_ms"] / 1000
    for number in range(asked["events"]):
        if number and pause:
            await asyncio.sleep(pause)
        yield b"data: " + orjson.dumps(EVENT) + b"\n\n"
    yield b"data: [DONE]\n\n"


async def streaming_response(request: Request) -> StreamingResponse:
    """By Starlette's own class."""
    asked = orjson.loads(await request.body())
    return StreamingResponse(events(asked), media_type="text/event-stream")


class Raw:
    """A response that writes ASGI messages itself, and watches for its client beside it."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        """Of ASGI."""
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        writing = asyncio.current_task()
        watching = asyncio.create_task(gone(receive, writing))
        try:
            async for event in events(self._asked):
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            watching.cancel()


async def gone(receive: Any, writing: asyncio.Task[Any] | None) -> None:
    """Cancel the answer when its client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if writing:
        writing.cancel()


async def raw(request: Request) -> Any:
    """By bare messages."""
    return Raw(orjson.loads(await request.body()))


app = Starlette(
    routes=[
        Route("/starlette", streaming_response, methods=["POST"]),
        Route("/raw", raw, methods=["POST"]),
    ]
)
