# SPDX-License-Identifier: Apache-2.0
"""One HTTP request and its response, and what is known of it when it ends."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from tritonctl.frontend.budgets.tenant import EVERYBODY, Tenant
from tritonctl.frontend.errors import ApiError, Headers
from tritonctl.frontend.facts import Facts
from tritonctl.frontend.observed import Observed

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Of a response: the version of the model that answered, which is the number of its release.
RELEASE = b"x-tritonctl-release"
JSON: Headers = ((b"content-type", b"application/json"),)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class ClientGoneError(Exception):
    """The client has closed its connection: nobody waits for an answer."""


@dataclass
class Exchange:
    """A request over ASGI. `id` goes back as `x-request-id`; a client's own is kept.

    `headers`: further ones of its response, whatever it is. `observed`: where metrics and traces
    take what happens to it; set by Observer.begin.
    """

    scope: MutableMapping[str, Any]
    receive: Receive
    send: Send
    id: str = ""
    facts: Facts = field(default_factory=lambda: Facts(time.monotonic()))
    observed: Observed = field(init=False)
    started: bool = False
    finished: bool = False
    tenant: Tenant = EVERYBODY
    headers: Headers = ()

    def __post_init__(self) -> None:
        """Choose the id."""
        given = self.header(b"x-request-id") or b""
        valid = _REQUEST_ID.fullmatch(given)
        self.id = given.decode("ascii") if valid else f"req_{secrets.token_hex(12)}"

    def header(self, name: bytes) -> bytes | None:
        """A header of the request; name in lower case."""
        return next((value for key, value in self.scope["headers"] if key == name), None)

    async def start(self, status: int, headers: Headers) -> None:
        """The head of the response."""
        self.started = True
        self.facts.status = status
        own = [(b"x-request-id", self.id.encode("ascii"))]
        if self.facts.model_version:
            own.append((RELEASE, self.facts.model_version.encode("ascii", "replace")))
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self._further(headers), *own],
            }
        )

    def _further(self, headers: Headers) -> Headers:
        """`self.headers` without those that are told already."""
        told = {name for name, _ in headers}
        return tuple((name, value) for name, value in self.headers if name not in told)

    async def write(self, data: bytes) -> None:
        """A piece of the response's body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """The last piece."""
        self.finished = True
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """A whole response of JSON."""
        length = ((b"content-length", str(len(body)).encode("ascii")),)
        await self.start(status, (*JSON, *length, *headers))
        await self.finish(body)

    async def answer_json(self, data: Any) -> None:
        """A whole response with status 200."""
        await self.answer(200, orjson.dumps(data))

    async def refuse(self, error: ApiError) -> None:
        """An error as the whole response, or as the last event of a stream that has begun."""
        self.facts.outcome = error.code or error.type
        if self.finished:
            return
        if self.started:
            await self.finish(b"data: " + error.body + b"\n\n")
        else:
            await self.answer(error.status, error.body, error.headers)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Cancel what is done inside when the client goes away. Raises ClientGoneError then.

        For use once the body has been read.
        """
        task = asyncio.current_task()
        gone = False

        async def watch() -> None:
            nonlocal gone
            while (await self.receive())["type"] != "http.disconnect":
                pass
            if task is not None and not self.finished:
                gone = True
                task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if gone and task is not None and not task.uncancel():
                raise ClientGoneError from None
            raise
        finally:
            watcher.cancel()
