# SPDX-License-Identifier: Apache-2.0
"""An endpoint's connections for asyncio, opened and reopened on demand.

Compatible with grpc.aio's channels as far as AsyncConnection uses them: calls share connections,
wait while a connection is opened, and become UNAVAILABLE if that fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from tritonctl.http2.call import MAX_MESSAGE_BYTES, CallError, GrpcCall
from tritonctl.http2.connection import Http2Connection
from tritonctl.http2.connection_setup import (
    CONNECT_SECONDS,
    CallHeaders,
    ServerAddress,
    address_of,
    frame_message,
    require_http2,
    tls_context,
)
from tritonctl.http2.frames import WINDOW_BYTES

_MAX_CONNECTIONS = 64  # for servers that allow few calls per connection
_ONE_RESPONSE_WINDOW = 4 << 20  # a single response is read at once, so it needs no flow control
Write = Callable[[Any], bytes]
Read = Callable[[bytes], Any]
Headers = Sequence[tuple[str, str]]


class AsyncCall(GrpcCall):
    """A call compatible with grpc.aio's: iterate over it, cancel it, await its code."""

    def __init__(self, read: Read, start: Callable[[AsyncCall], None], **bounds: int) -> None:
        super().__init__(read, **bounds)
        # Assigns a stream; called again if the server did not process the request.
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> AsyncCall:
        return self

    async def __anext__(self) -> Any:
        """Return the next response. Raises CallError, or StopAsyncIteration at the end."""
        while not self._messages:
            if self.has_ended:
                raise StopAsyncIteration
            await self._next_event()
        return self.take()

    async def code(self) -> grpc.StatusCode:
        """Wait for the end, discard responses, and return the status."""
        while self.status is None:
            self.drop()
            await self._next_event()
        return self.status

    def set_timeout(self, seconds: float) -> None:
        """Limit the call's duration."""
        self._timer = self._loop.call_later(seconds, self.late)

    def _next_event(self) -> asyncio.Future[None]:
        """Return a future for the next message or the end."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def _restart(self) -> None:
        self._start(self)

    def _wake(self) -> None:
        if self._timer is not None and self.status is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Channel:
    """A channel to one endpoint, for one event loop; a subset of grpc.aio's channels.

    endpoint: host and port; proxies are ignored. max_message_bytes: of a response. Raises
    HostError for unreadable certificates.
    """

    def __init__(self, endpoint: ServerAddress, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._endpoint = endpoint
        self._max_message_bytes = max_message_bytes
        self._place = address_of(endpoint)
        self._tls = endpoint.tls
        self._connections: list[Http2Connection] = []
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: dict[GrpcCall, _Waiting] = {}
        self._is_checking = False
        self._closed = False

    def unary_stream(
        self,
        method: str,
        request_serializer: Write,
        response_deserializer: Read,
        *,
        window: int = WINDOW_BYTES,
        **_: Any,
    ) -> Callable[..., AsyncCall]:
        """As grpc.aio's: return a function of request, `timeout` (seconds) and `metadata`.

        window: bytes that the server may send ahead of the reader.
        """
        head = CallHeaders(self._endpoint, method)

        def ask(request: Any, *, timeout: float | None = None, metadata: Headers = ()) -> AsyncCall:
            headers, message = (
                head.header_block(timeout, metadata),
                frame_message(request_serializer(request)),
            )

            def start(call: GrpcCall) -> None:
                self._start_call(call, headers, message)

            call = AsyncCall(
                response_deserializer,
                start,
                window=window,
                max_message_bytes=self._max_message_bytes,
            )
            if timeout is not None:
                call.set_timeout(timeout)
            start(call)
            return call

        return ask

    def unary_unary(
        self, method: str, request_serializer: Write, response_deserializer: Read, **_: Any
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """As grpc.aio's: for calls with one response."""
        start_call = self.unary_stream(
            method, request_serializer, response_deserializer, window=_ONE_RESPONSE_WINDOW
        )

        async def ask(request: Any, **options: Any) -> Any:
            call = start_call(request, **options)
            try:
                responses = [response async for response in call]
            finally:
                call.cancel()
            if not responses:
                raise CallError(grpc.StatusCode.INTERNAL, "there is no response")
            return responses[0]

        return ask

    def stream_stream(self, method: str, *_: Any, **__: Any) -> None:
        """Not supported; stubs require the method."""

    async def close(self) -> None:
        """Cancel running calls and all later ones."""
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

    def _start_call(self, call: GrpcCall, headers: bytes, message: bytes) -> None:
        """Send the request, or queue it until a connection is ready."""
        if self._closed:
            call.end(grpc.StatusCode.CANCELLED, "the channel was closed")
            return
        connection = None if self._waiting else self._usable()
        if connection is not None and not connection.is_idle:
            connection.start_call(call, headers, message)
            return
        call.stream = self._waiting[call] = _Waiting(self._waiting, call, headers, message)
        if connection is not None:
            # An idle connection may have ended unnoticed. One turn of the loop reads that, and the
            # next one handles it.
            loop = asyncio.get_running_loop()
            self._is_checking = True
            loop.call_soon(loop.call_soon, self._admit_checked)
        elif not self._is_checking:
            self._admit()

    def _admit_checked(self) -> None:
        self._is_checking = False
        self._admit()

    def _admit(self) -> None:
        """Start waiting calls; open another connection if some keep waiting."""
        while self._waiting and (connection := self._usable()):
            waiting = self._waiting.pop(next(iter(self._waiting)))
            connection.start_call(waiting.call, waiting.headers, waiting.message)
        self._connections = [each for each in self._connections if not each.is_closing]
        if (
            self._waiting
            and not self._closed
            and self._connecting is None
            and len(self._connections) < _MAX_CONNECTIONS
        ):
            self._connecting = asyncio.create_task(self._connect())

    def _usable(self) -> Http2Connection | None:
        for connection in self._connections:
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> None:
        """Open another connection. If it fails and no other exists, fail the waiting calls."""
        try:
            connection = await self._open_connection()
        except (OSError, ValueError) as error:  # ValueError: TLS without HTTP/2
            if not any(each.usable for each in self._connections):
                reason = (
                    f"failed to connect to {self._endpoint.url}: {error or type(error).__name__}"
                )
                for call in list(self._waiting):
                    del self._waiting[call]
                    call.lost(reason)
            return
        finally:
            self._connecting = None
        self._connections.append(connection)
        self._admit()

    async def _open_connection(self) -> Http2Connection:
        loop = asyncio.get_running_loop()
        opened = loop.create_future()

        def on_change() -> None:
            if not opened.done() and not connection.is_opening:
                opened.set_result(None)
            self._admit()

        connection = Http2Connection(on_change)
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, _ = await loop.create_connection(
                lambda: connection,
                *self._place,
                ssl=None if self._tls is None else tls_context(self._tls),
                server_hostname=None if self._tls is None else self._tls.server_name,
            )
            try:
                require_http2(transport.get_extra_info("ssl_object"))
                await opened
                if connection.is_closing:
                    raise ConnectionError(connection.end_reason or "GOAWAY received")
            except BaseException:
                transport.abort()
                raise
        return connection


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call without a connection. Implements Http2Stream."""

    among: dict[GrpcCall, _Waiting]
    call: GrpcCall
    headers: bytes
    message: bytes

    def credit(self, size: int) -> None:
        """Ignore: no data arrives."""

    def leave(self) -> None:
        """Remove the call from the waiting list."""
        self.among.pop(self.call, None)
