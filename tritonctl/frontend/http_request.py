# SPDX-License-Identifier: Apache-2.0
"""One HTTP request and its response over ASGI."""

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

from tritonctl.frontend.budgets.tenant import ALL_CLIENTS, TenantLimits
from tritonctl.frontend.errors import ApiError, Headers
from tritonctl.frontend.telemetry import RequestRecord, RequestTelemetry

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Response header: the version of the model that answered, which is its release's number.
RELEASE_HEADER = b"x-tritonctl-release"
CLOSE: Headers = ((b"connection", b"close"),)
JSON: Headers = ((b"content-type", b"application/json"),)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class ClientGoneError(Exception):
    """The client has closed its connection."""


@dataclass
class HttpRequest:
    """A request and its response."""

    scope: MutableMapping[str, Any]
    receive: Receive
    send: Send
    id: str = ""  # returned as `x-request-id`; a valid id of the client is used
    record: RequestRecord = field(default_factory=lambda: RequestRecord(time.monotonic()))
    telemetry: RequestTelemetry = field(init=False)  # of Telemetry.start_request
    started: bool = False
    finished: bool = False
    tenant: TenantLimits = ALL_CLIENTS
    client_address: str = ""  # behind the project's gateway: of the gateway's client
    body: bytes = b""  # once it has been read
    headers: Headers = ()  # added to every response, also to errors
    # Encodes an error as the last events of a started stream.
    encode_stream_error: Callable[[ApiError], bytes] = lambda error: (
        b"data: " + error.body + b"\n\n"
    )

    def __post_init__(self) -> None:
        """Choose the id."""
        client_id = self.header(b"x-request-id") or b""
        valid = _REQUEST_ID.fullmatch(client_id)
        self.id = client_id.decode("ascii") if valid else f"req_{secrets.token_hex(12)}"

    def header(self, name: bytes) -> bytes | None:
        """Return a request header; name in lower case."""
        return next((value for key, value in self.scope["headers"] if key == name), None)

    async def start(self, status: int, headers: Headers) -> None:
        """Send the response's head."""
        self.started = True
        self.record.status = status
        id_headers = [(b"x-request-id", self.id.encode("ascii"))]
        if self.record.model_version:
            id_headers.append(
                (RELEASE_HEADER, self.record.model_version.encode("ascii", "replace"))
            )
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self._additional_headers(headers), *id_headers],
            }
        )

    def _additional_headers(self, headers: Headers) -> Headers:
        """`self.headers` without names that `headers` contains."""
        sent_names = {name for name, _ in headers}
        return tuple((name, value) for name, value in self.headers if name not in sent_names)

    async def write(self, data: bytes) -> None:
        """Send a part of the response's body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last part of the response's body."""
        self.finished = True
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send a complete JSON response."""
        length = ((b"content-length", str(len(body)).encode("ascii")),)
        await self.start(status, (*JSON, *length, *headers))
        await self.finish(body)

    async def answer_json(self, data: Any) -> None:
        """Send a complete JSON response with status 200."""
        await self.answer(200, orjson.dumps(data))

    async def refuse(self, error: ApiError) -> None:
        """Send an error: as the response, or at the end of a started stream."""
        self.record.outcome = error.code or error.type
        if self.finished:
            return
        if self.started:
            await self.finish(self.encode_stream_error(error))
        else:
            await self.answer(error.status, error.body, error.headers + self._closing(error))

    def _closing(self, error: ApiError) -> Headers:
        """The header that ends a connection whose client may still send, or keep, a body."""
        is_awaited = self.header(b"expect") is not None and not self.body
        return CLOSE if is_awaited and CLOSE[0] not in error.headers else ()

    @asynccontextmanager
    async def cancel_on_disconnect(self) -> AsyncIterator[None]:
        """Cancel the block when the client disconnects, and raise ClientGoneError.

        Use it only after the body has been read.
        """
        task = asyncio.current_task()
        client_gone = False

        async def watch() -> None:
            nonlocal client_gone
            while (await self.receive())["type"] != "http.disconnect":
                pass
            if task is not None and not self.finished:
                client_gone = True
                task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if client_gone and task is not None and not task.uncancel():
                raise ClientGoneError from None
            raise
        finally:
            watcher.cancel()
