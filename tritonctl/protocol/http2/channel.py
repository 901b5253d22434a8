# SPDX-License-Identifier: Apache-2.0
"""An endpoint's connections: made when they are needed, and again.

Behaves as a channel of grpc.aio as far as AsyncConnection sees it: a call waits for a connection
that is being made, and is UNAVAILABLE when that fails; calls share a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.http2.call import MOST_MESSAGE_BYTES, Call, CallError
from tritonctl.protocol.http2.connection import Http2Connection
from tritonctl.protocol.http2.frames import WINDOW_BYTES
from tritonctl.protocol.http2.opening import (
    CONNECT_SECONDS,
    Head,
    framed,
    place,
    refuse_other_protocol,
    tls_context,
)

_MOST_CONNECTIONS = 64  # where a server takes few calls on each
_ONE_RESPONSE_WINDOW = 4 << 20  # nobody reads it in pieces, so it may come as fast as it can
Write = Callable[[Any], bytes]
Read = Callable[[bytes], Any]
Headers = Sequence[tuple[str, str]]


def open_channel(endpoint: Endpoint) -> Any:
    """The cheapest that gets there: grpc.aio's knows proxies, and addresses of many kinds."""
    return Channel(endpoint) if endpoint.is_direct else endpoint.aio_channel()


class AsyncCall(Call):
    """Used as a call of grpc.aio is: iterate over it, cancel it, ask for its code."""

    def __init__(self, read: Read, begin: Callable[[AsyncCall], None], **bounds: int) -> None:
        super().__init__(read, **bounds)
        self._begin = begin  # gives it a stream, and again where a server has not looked at it
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> AsyncCall:
        return self

    async def __anext__(self) -> Any:
        """The next response. Raises CallError, or StopAsyncIteration at the end."""
        while not self._messages:
            if self.has_ended:
                raise StopAsyncIteration
            await self._news()
        return self.take()

    async def code(self) -> grpc.StatusCode:
        """Wait for the end; responses that come until then are lost."""
        while self.status is None:
            self.drop()
            await self._news()
        return self.status

    def expire(self, seconds: float) -> None:
        """It may take so long."""
        self._timer = self._loop.call_later(seconds, self.late)

    def _news(self) -> asyncio.Future[None]:
        """Done when a message has come, or the end."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def _begin_again(self) -> None:
        self._begin(self)

    def _wake(self) -> None:
        if self._timer is not None and self.status is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Channel:
    """Of one endpoint, for one event loop: what is used of grpc.aio's channels.

    endpoint: one that `is_direct`, whatever proxies there are. most: bytes of a response. Raises
    HostError for certificates that cannot be read.
    """

    def __init__(self, endpoint: Endpoint, most: int = MOST_MESSAGE_BYTES) -> None:
        self._endpoint = endpoint
        self._most = most
        self._place = place(endpoint)
        self._tls = endpoint.tls
        self._connections: list[Http2Connection] = []
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: dict[Call, _Waiting] = {}
        self._looking = False
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
        """As grpc.aio's: calls are made with a request, `timeout` (seconds) and `metadata`.

        window: bytes that the server may send ahead of who reads.
        """
        head = Head(self._endpoint, method)

        def ask(request: Any, *, timeout: float | None = None, metadata: Headers = ()) -> AsyncCall:
            headers, message = head.of(timeout, metadata), framed(request_serializer(request))

            def begin(call: Call) -> None:
                self._begin(call, headers, message)

            call = AsyncCall(response_deserializer, begin, window=window, most=self._most)
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
            return
        connection = None if self._waiting else self._usable()
        if connection is not None and not connection.is_idle:
            connection.begin(call, headers, message)
            return
        call.stream = self._waiting[call] = _Waiting(self._waiting, call, headers, message)
        if connection is not None:
            # It may have ended while the loop did something else: a turn to read that, one to act.
            loop = asyncio.get_running_loop()
            self._looking = True
            loop.call_soon(loop.call_soon, self._look)
        elif not self._looking:
            self._admit()

    def _look(self) -> None:
        self._looking = False
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
                why = f"failed to connect to {self._endpoint.url}: {error or type(error).__name__}"
                for call in list(self._waiting):
                    del self._waiting[call]
                    call.lost(why)
            return
        finally:
            self._connecting = None
        self._connections.append(connection)
        self._admit()

    async def _opened(self) -> Http2Connection:
        loop = asyncio.get_running_loop()
        opened = loop.create_future()

        def changed() -> None:
            if not opened.done() and not connection.is_opening:
                opened.set_result(None)
            self._admit()

        connection = Http2Connection(changed)
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, _ = await loop.create_connection(
                lambda: connection,
                *self._place,
                ssl=None if self._tls is None else tls_context(self._tls),
                server_hostname=None if self._tls is None else self._tls.server_name,
            )
            try:
                refuse_other_protocol(transport.get_extra_info("ssl_object"))
                await opened
                if connection.gone:
                    raise ConnectionError(connection.why or "GOAWAY received")
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
