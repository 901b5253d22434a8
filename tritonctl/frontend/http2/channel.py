# SPDX-License-Identifier: Apache-2.0
"""An endpoint's connections: made when they are needed, and again.

Behaves as a channel of grpc.aio as far as AsyncConnection sees it: a call waits for a connection
that is being made, and is UNAVAILABLE when that fails; calls share a connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import grpc

from tritonctl.frontend.http2.call import Call, CallError
from tritonctl.frontend.http2.connection import Http2Connection
from tritonctl.frontend.http2.frames import literals
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.connection import Metadata

_CONNECT_SECONDS = 20.0  # gRPC's
_MESSAGE = b"\0"  # not compressed; its length follows
_MOST_CONNECTIONS = 64  # where a server takes few calls on each
_MOST_TIMEOUT_MS = 99_999_999  # eight digits
Write = Callable[[Any], bytes]
Read = Callable[[bytes], Any]


class Channel:
    """Of one endpoint, for one event loop: what is used of grpc.aio's channels."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url
        parts = urlsplit(f"//{endpoint.url}")
        self._place = parts.hostname or "", parts.port or 0
        self._tls = endpoint.tls
        self._authority = (endpoint.tls and endpoint.tls.server_name) or endpoint.url
        self._connections: list[Http2Connection] = []
        self._connecting: asyncio.Task[Http2Connection] | None = None
        self._closed = False

    def unary_stream(
        self, method: str, request_serializer: Write, response_deserializer: Read, **_: Any
    ) -> Callable[..., Call]:
        """As grpc.aio's: calls are made with a request, `timeout` (seconds) and `metadata`."""
        head = literals(
            (
                (":method", "POST"),
                (":scheme", "http" if self._tls is None else "https"),
                (":path", method),
                (":authority", self._authority),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("user-agent", "tritonctl-frontend"),
            )
        )

        def ask(request: Any, *, timeout: float | None = None, metadata: Metadata = ()) -> Call:
            message = request_serializer(request)
            return self._call(head, message, response_deserializer, timeout, metadata)

        return ask

    def unary_unary(
        self, method: str, request_serializer: Write, response_deserializer: Read, **_: Any
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """As grpc.aio's."""
        begin = self.unary_stream(method, request_serializer, response_deserializer)

        async def ask(request: Any, **options: Any) -> Any:
            call = begin(request, **options)
            try:
                responses = [response async for response in call]
            finally:
                call.cancel()
            if not responses:
                raise CallError(grpc.StatusCode.INTERNAL, "there is no response")
            return responses[0]

        return ask

    def stream_stream(self, method: str, *_: Any, **__: Any) -> None:
        """For stubs, which have all methods: a stream of requests is of no use here."""

    def _call(
        self, head: bytes, message: bytes, read: Read, timeout: float | None, metadata: Metadata
    ) -> Call:
        """The request is out at once where there is a connection."""
        more = list(metadata)
        if timeout is not None:
            more.append(("grpc-timeout", f"{min(max(int(timeout * 1000), 1), _MOST_TIMEOUT_MS)}m"))
        headers = head + literals(more)
        message = _MESSAGE + len(message).to_bytes(4, "big") + message

        async def begin(call: Call) -> None:
            await self._begin(call, headers, message)

        call = Call(read, begin)
        if timeout is not None:
            call.expire(timeout)
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
