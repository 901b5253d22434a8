# SPDX-License-Identifier: Apache-2.0
"""An endpoint's connections for streams of Triton's: made when they are needed, and again.

Behaves as a channel of grpc.aio as far as callers of ModelStreamInfer see it: a call waits for a
connection that is being made, and is UNAVAILABLE when that fails; calls share a connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tritonctl.frontend.http2.call import Call
from tritonctl.frontend.http2.connection import Http2Connection
from tritonctl.frontend.http2.frames import literals
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.connection import Metadata

_CONNECT_SECONDS = 20.0  # gRPC's
_MESSAGE = b"\0"  # not compressed; its length follows
_MOST_CONNECTIONS = 64  # where a server takes few calls on each
_MOST_TIMEOUT_MS = 99_999_999  # eight digits


class Channel:
    """Of one endpoint, for one method. read: makes a response of its bytes. For one event loop."""

    def __init__(self, endpoint: Endpoint, method: str, read: Callable[[bytes], Any]) -> None:
        self._url = endpoint.url
        parts = urlsplit(f"//{endpoint.url}")
        self._place = parts.hostname or "", parts.port or 0
        self._tls = endpoint.tls
        self._read = read
        self._head = literals(
            (
                (":method", "POST"),
                (":scheme", "http" if endpoint.tls is None else "https"),
                (":path", method),
                (":authority", (endpoint.tls and endpoint.tls.server_name) or endpoint.url),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("user-agent", "tritonctl-frontend"),
            )
        )
        self._connections: list[Http2Connection] = []
        self._connecting: asyncio.Task[Http2Connection] | None = None
        self._closed = False

    def call(self, message: bytes, *, seconds: float | None, metadata: Metadata = ()) -> Call:
        """Ask; the request is out at once where there is a connection.

        seconds: for the whole call. metadata: names in lower case, values of ASCII.
        """
        more = list(metadata)
        if seconds is not None:
            more.append(("grpc-timeout", f"{min(max(int(seconds * 1000), 1), _MOST_TIMEOUT_MS)}m"))
        headers = self._head + literals(more)
        message = _MESSAGE + len(message).to_bytes(4, "big") + message

        async def begin(call: Call) -> None:
            await self._begin(call, headers, message)

        call = Call(self._read, begin)
        if seconds is not None:
            call.expire(seconds)
        if connection := self._usable():
            connection.begin(call, headers, message)
        return call

    async def close(self) -> None:
        """Calls under way are UNAVAILABLE."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await self._connecting
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    async def _begin(self, call: Call, headers: bytes, message: bytes) -> None:
        """Onto a connection, as soon as there is one; the call itself learns why there is none."""
        for _ in range(_MOST_CONNECTIONS):
            connection = self._usable()
            if connection is not None:
                if call.status is None:
                    connection.begin(call, headers, message)
                return
            if self._closed:
                call.lost("the channel was closed")
                return
            try:
                await self._connected()
            except (OSError, ValueError) as error:  # ValueError: TLS without HTTP/2
                call.lost(f"failed to connect to {self._url}: {error or type(error).__name__}")
                return
        call.lost(f"{self._url} takes no more calls")

    async def _connected(self) -> None:
        """Wait for the connection that is being made; who leaves leaves it to the others."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._connecting)

    def _usable(self) -> Http2Connection | None:
        for connection in self._connections:
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> Http2Connection:
        """One more connection, in the place of those that have gone."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    Http2Connection,
                    *self._place,
                    ssl=None if self._tls is None else _context(self._tls),
                    server_hostname=None if self._tls is None else self._tls.server_name,
                )
            secured = transport.get_extra_info("ssl_object")
            if secured is not None and secured.selected_alpn_protocol() != "h2":
                transport.abort()
                raise ValueError("it uses TLS, and does not speak HTTP/2")
            self._connections = [each for each in self._connections if not each.gone]
            self._connections.append(connection)
            return connection
        finally:
            self._connecting = None


def _context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    return context
