# SPDX-License-Identifier: Apache-2.0
"""The cheapest reader of event streams that is still right: the load shall not be what is measured.

One connection of HTTP/1.1 per client, kept alive; a body is read chunk by chunk only as far as
counting its events needs it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

END = b"data: [DONE]"
# How a server ends a chunked body; nothing of ours holds these bytes within an event.
LAST_CHUNK = b"0\r\n\r\n"
DATA = b"data: "
# An event with text; chat's first event has an empty one.
TEXT = re.compile(rb'"(?:content|text)": ?"[^"]')


class RefusedError(Exception):
    """An answer whose status is not 200, or that broke off."""


@dataclass
class Answered:
    """What came of a request. first: when its first event with text came; by perf_counter."""

    first: float
    last: float
    events: int
    body: bytes


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port, self.path = parts.hostname or "", parts.port or 80, parts.path
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Answered] | None = None
        self._buffer = bytearray()
        self._first = 0.0

    async def ask(self, body: dict[str, Any]) -> Answered:
        """Send it and wait for the end. Raises RefusedError."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, self.host, self.port)
        self._buffer.clear()
        self._first = 0.0
        self._done = loop.create_future()
        content = json.dumps(body).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Content-Type: application/json\r\nAuthorization: Bearer sk-none\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        assert self._transport is not None  # noqa: S101
        self._transport.write(head.encode() + content)
        return await self._done

    def close(self) -> None:
        """Leave, also amid an answer."""
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio."""
        if self._done and not self._done.done():
            self._done.set_exception(
                RefusedError(f"broke off: {exc}: {bytes(self._buffer[-300:])!r}")
            )

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        self._buffer += data
        if not self._first and TEXT.search(self._buffer):
            self._first = time.perf_counter()
        if self._buffer.endswith(LAST_CHUNK) and self._done and not self._done.done():
            self._end()

    def _end(self) -> None:
        assert self._done is not None  # noqa: S101
        now, head = time.perf_counter(), bytes(self._buffer)
        if not head.startswith(b"HTTP/1.1 200") or END not in head:
            self._done.set_exception(RefusedError(head[:500].decode("utf-8", "replace")))
            return
        events = head.count(DATA) - 1
        self._done.set_result(Answered(self._first or now, now, events, head))
