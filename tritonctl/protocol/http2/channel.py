# SPDX-License-Identifier: Apache-2.0
"""An endpoint's connections: made when they are needed, and again.

Behaves as a channel of grpc.aio as far as AsyncConnection sees it: a call waits for a connection
that is being made, and is UNAVAILABLE when that fails; calls share a connection.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.http2.call import MOST_MESSAGE_BYTES, Call, CallError
from tritonctl.protocol.http2.connection import Http2Connection
from tritonctl.protocol.http2.frames import WINDOW_BYTES, literals

_CONNECT_SECONDS = 20.0  # gRPC's
_MESSAGE = b"\0"  # not compressed; its length follows
_MOST_CONNECTIONS = 64  # where a server takes few calls on each
_MOST_TIMEOUT_MS = 99_999_999  # eight digits
_ONE_RESPONSE_WINDOW = 4 << 20  # nobody reads it in pieces, so it may come as fast as it can
Write = Callable[[Any], bytes]
Read = Callable[[bytes], Any]
Headers = Sequence[tuple[str, str]]


def open_channel(endpoint: Endpoint) -> Any:
    """The cheapest that gets there: grpc.aio's knows proxies, and addresses of many kinds."""
    return Channel(endpoint) if endpoint.is_direct else endpoint.aio_channel()


class Channel:
    """Of one endpoint, for one event loop: what is used of grpc.aio's channels.

    endpoint: one that `is_direct`, whatever proxies there are. most: bytes of a response. Raises
    HostError for certificates that cannot be read.
    """

    def __init__(self, endpoint: Endpoint, most: int = MOST_MESSAGE_BYTES) -> None:
        self._url = endpoint.url
        self._most = most
        host, _, port = endpoint.url.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._tls = endpoint.tls
        if self._tls is not None:
            self._tls.credentials()  # read again for each connection, which may be days later
        self._authority = (endpoint.tls and endpoint.tls.server_name) or endpoint.url
        self._connections: list[Http2Connection] = []
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: dict[Call, _Waiting] = {}
        self._closed = False

    def unary_stream(
        self,
        method: str,
        request_serializer: Write,
        response_deserializer: Read,
        *,
        window: int = WINDOW_BYTES,
        **_: Any,
    ) -> Callable[..., Call]:
        """As grpc.aio's: calls are made with a request, `timeout` (seconds) and `metadata`.

        window: bytes that the server may send ahead of who reads.
        """
        head = literals(
            (
                (":method", "POST"),
                (":scheme", "http" if self._tls is None else "https"),
                (":path", method),
                (":authority", self._authority),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("user-agent", "tritonctl"),
            )
        )

        def ask(request: Any, *, timeout: float | None = None, metadata: Headers = ()) -> Call:
            message = request_serializer(request)
            message = _MESSAGE + len(message).to_bytes(4, "big") + message
            headers = head
            if metadata:
                headers += literals(metadata)
            if timeout is not None:
                left = min(max(int(timeout * 1000), 1), _MOST_TIMEOUT_MS)
                headers += literals((("grpc-timeout", f"{left}m"),))

            def begin(call: Call) -> None:
                self._begin(call, headers, message)

            call = Call(response_deserializer, begin, window=window, most=self._most)
            if timeout is not None:
                call.expire(timeout)
            begin(call)
            return call

        return ask

    def unary_unary(
        self, method: str, request_serializer: Write, response_deserializer: Read, **_: Any
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """As grpc.aio's."""
        begin = self.unary_stream(
            method, request_serializer, response_deserializer, window=_ONE_RESPONSE_WINDOW
        )

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

    async def close(self) -> None:
        """Calls under way are cancelled, as are those that begin later."""
        self._closed = True
        for call in list(self._waiting):
            call.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
        for connection in list(self._connections):
            connection.close()
        self._connections.clear()

    def _begin(self, call: Call, headers: bytes, message: bytes) -> None:
        """The request is out at once where there is a connection."""
        if self._closed:
            call.end(grpc.StatusCode.CANCELLED, "the channel was closed")
        elif not self._waiting and (connection := self._usable()):
            connection.begin(call, headers, message)
        else:
            call.stream = self._waiting[call] = _Waiting(self._waiting, call, headers, message)
            self._admit()

    def _admit(self) -> None:
        """Let calls that wait begin; make one more connection for those that go on waiting."""
        while self._waiting and (connection := self._usable()):
            asked = self._waiting.pop(next(iter(self._waiting)))
            connection.begin(asked.call, asked.headers, asked.message)
        self._connections = [each for each in self._connections if not each.gone]
        if (
            self._waiting
            and not self._closed
            and self._connecting is None
            and len(self._connections) < _MOST_CONNECTIONS
        ):
            self._connecting = asyncio.create_task(self._connect())

    def _usable(self) -> Http2Connection | None:
        for connection in self._connections:
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> None:
        """One more connection; without any, those that wait learn why there is none."""
        try:
            connection = await self._opened()
        except (OSError, ValueError) as error:  # ValueError: TLS without HTTP/2
            if not any(each.usable for each in self._connections):
                why = f"failed to connect to {self._url}: {error or type(error).__name__}"
                for call in list(self._waiting):
                    del self._waiting[call]
                    call.lost(why)
            return
        finally:
            self._connecting = None
        self._connections.append(connection)
        self._admit()

    async def _opened(self) -> Http2Connection:
        async with asyncio.timeout(_CONNECT_SECONDS):
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: Http2Connection(self._admit),
                *self._place,
                ssl=None if self._tls is None else _context(self._tls),
                server_hostname=None if self._tls is None else self._tls.server_name,
            )
            try:
                secured = transport.get_extra_info("ssl_object")
                if secured is not None and secured.selected_alpn_protocol() != "h2":
                    raise ValueError("it uses TLS, and does not speak HTTP/2")
                await connection.opened()
            except BaseException:
                transport.abort()
                raise
        return connection


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call that has no connection yet; as a Stream."""

    among: dict[Call, _Waiting]
    call: Call
    headers: bytes
    message: bytes

    def credit(self, size: int) -> None:
        """Nothing comes."""

    def leave(self) -> None:
        """Nobody waits any more."""
        self.among.pop(self.call, None)


def _context(tls: ClientTls) -> ssl.SSLContext:
    """As strict as gRPC's: what it accepts, and no more."""
    context = ssl.create_default_context(cafile=tls.ca or _authorities())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    return context


def _authorities() -> str | None:
    """Those that gRPC trusts where nobody names one; None, the system's, where it has no list."""
    if named := os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        return named
    bundled = Path(grpc.__file__).parent / "_cython" / "_credentials" / "roots.pem"
    return str(bundled) if bundled.is_file() else None
