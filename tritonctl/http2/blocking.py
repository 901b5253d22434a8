# SPDX-License-Identifier: Apache-2.0
"""Streams for threads: a reader reads its socket directly, so no thread has to be woken.

A call uses a connection exclusively. Afterwards the connection is kept for the next call, so there
are as many connections as there were concurrent calls.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc

from tritonctl.http2.call import GrpcCall
from tritonctl.http2.connection import Http2Connection
from tritonctl.http2.connection_setup import (
    CONNECT_SECONDS,
    CallHeaders,
    Headers,
    ServerAddress,
    TlsFiles,
    address_of,
    frame_message,
    require_http2,
    tls_context,
)

_READ_BYTES = 65_536
_MAX_IDLE_CONNECTIONS = 128  # unused connections that stay open


class BlockingChannel:
    """A channel to one endpoint, for any number of threads; a subset of gRPC's, for streams.

    endpoint: host and port; proxies are ignored. Raises HostError for unreadable certificates.
    """

    def __init__(self, endpoint: ServerAddress) -> None:
        self._endpoint = endpoint
        self._place = address_of(endpoint)
        self._lock = threading.Lock()
        self._idle: list[_BlockingConnection] = []  # the last one was used most recently
        self._used: set[_BlockingConnection] = set()
        self.closed = False

    def unary_stream(
        self, method: str, request_serializer: Callable[[Any], bytes], response_deserializer: Any
    ) -> Callable[..., BlockingCall]:
        """As gRPC's: return a function of request, `timeout` (seconds) and `metadata`."""
        head = CallHeaders(self._endpoint, method)

        def ask(
            request: Any, *, timeout: float | None = None, metadata: Headers = ()
        ) -> BlockingCall:
            headers, message = (
                head.header_block(timeout, metadata),
                frame_message(request_serializer(request)),
            )
            call = BlockingCall(self, response_deserializer, headers, message, timeout)
            call.start()
            return call

        return ask

    def close(self) -> None:
        """Cancel running calls and all later ones."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
            used = list(self._used)
        for connection in idle:
            connection.end()
        for connection in used:
            connection.interrupt()

    def acquire(self, deadline: float | None) -> _BlockingConnection:
        """Return a connection for a call. Raises OSError or ValueError if connecting fails."""
        while connection := self._take_idle():
            if connection.is_usable():
                return connection
            self.release(connection)
        connection = _BlockingConnection(self._place, self._endpoint.tls, deadline)
        with self._lock:
            self._used.add(connection)
            closed = self.closed
        if closed:
            self.release(connection)
            raise ConnectionError("the channel was closed")
        return connection

    def release(self, connection: _BlockingConnection) -> None:
        """Take back a connection whose call has ended."""
        with self._lock:
            self._used.discard(connection)
            keep = (
                connection.http2.usable
                and not self.closed
                and len(self._idle) < _MAX_IDLE_CONNECTIONS
            )
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.end()

    def unreachable(self, error: Exception) -> str:
        """Format a connection error as gRPC does, because remedies match its words."""
        return f"failed to connect to {self._endpoint.url}: {error or type(error).__name__}"

    def _take_idle(self) -> _BlockingConnection | None:
        with self._lock:
            if not self._idle or self.closed:
                return None
            connection = self._idle.pop()
            self._used.add(connection)
            return connection


class BlockingCall(GrpcCall):
    """A call compatible with gRPC's: iterate over it, cancel it, wait for its end.

    Not thread-safe.
    """

    def __init__(
        self,
        channel: BlockingChannel,
        read: Callable[[bytes], Any],
        headers: bytes,
        message: bytes,
        timeout: float | None,
    ) -> None:
        super().__init__(read)
        self._channel = channel
        self._headers, self._message = headers, message
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._connection: _BlockingConnection | None = None
        self._needs_start = True

    def start(self) -> None:
        """Send the request."""
        self._needs_start = False
        try:
            self._connection = self._channel.acquire(self._deadline)
        except (OSError, ValueError) as error:  # ValueError: TLS without HTTP/2
            self.lost(self._channel.unreachable(error))
            return
        self._connection.deadline = self._deadline
        self._connection.http2.start_call(self, self._headers, self._message)

    def cancel(self) -> None:
        """As GrpcCall's."""
        super().cancel()
        self._release_connection()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next response. Raises CallError, or StopIteration at the end."""
        while not self._messages:
            if self.has_ended:
                raise StopIteration
            self._read_more(self._deadline)
        return self.take()

    def exception(self, timeout: float) -> None:
        """Wait for the end of the call and discard its responses; named as in grpc.

        timeout: seconds. Raises grpc.FutureTimeoutError.
        """
        deadline = time.monotonic() + timeout
        while self.status is None:
            if time.monotonic() >= deadline:
                raise grpc.FutureTimeoutError
            self.drop()
            self._read_more(deadline if self._deadline is None else min(deadline, self._deadline))

    def lost(self, reason: str) -> None:
        """As GrpcCall's, unless the channel was closed or the deadline has passed."""
        if self._channel.closed:
            super().cancel()
        elif self._is_late:
            self.late()
        else:
            super().lost(reason)

    @property
    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _read_more(self, deadline: float | None) -> None:
        """Receive bytes. deadline: a time of time.monotonic; None: no limit.

        The connection is released only afterwards.
        """
        if (
            self._connection is not None
            and not self._connection.receive(deadline)
            and self._is_late
        ):
            self.late()
        if self._needs_start or self.status is not None:
            self._release_connection()
        if self._needs_start:
            self.start()

    def _wake(self) -> None:
        pass  # the waiting thread itself reads the socket

    def _restart(self) -> None:
        self._needs_start = True  # later, because the current connection is still reading

    def _release_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._channel.release(connection)


class _BlockingConnection:
    """An HTTP/2 connection with its socket, as its transport.

    The constructor returns after the server's settings have arrived. Raises OSError, ValueError.
    """

    def __init__(
        self, address: tuple[str, int], tls: TlsFiles | None, deadline: float | None
    ) -> None:
        connect_deadline = time.monotonic() + CONNECT_SECONDS
        if deadline is not None:
            connect_deadline = min(connect_deadline, deadline)
        self._timeout: float | None = _seconds_to(connect_deadline)
        self._socket = socket.create_connection(address, self._timeout)
        self.http2 = Http2Connection()
        self.deadline: float | None = connect_deadline
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                name = tls.server_name or address[0]
                self._socket = tls_context(tls).wrap_socket(self._socket, server_hostname=name)
                require_http2(self._socket)
            self.http2.connection_made(self)  # type: ignore[arg-type] # implements the used part
            while self.http2.is_opening:
                if not self.receive(connect_deadline):
                    raise TimeoutError("timed out")
            if not self.http2.usable:
                raise ConnectionError(self.http2.end_reason or "GOAWAY received")
        except BaseException:
            self._socket.close()
            raise

    def receive(self, deadline: float | None) -> bool:
        """Receive bytes and pass them to the connection; False: none arrived in time."""
        try:
            self._set_timeout(deadline)
            received = self._socket.recv(_READ_BYTES)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            self.http2.connection_lost(error)
            return True
        if received:
            self.http2.data_received(received)
        else:
            self.http2.connection_lost(None)
        return True

    def is_usable(self) -> bool:
        """Whether a call can start, after handling bytes that arrived in the meantime."""
        while self.http2.usable and self.receive(0.0):
            pass
        return self.http2.usable

    def interrupt(self) -> None:
        """End the read of another thread."""
        with suppress(
            OSError
        ):  # SSLSocket.shutdown would remove the TLS state that the reader uses
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def end(self) -> None:
        """Close the connection."""
        self.http2.close()

    # Methods of a transport.

    def write(self, data: bytes) -> None:
        """Send all data; a failure ends the connection."""
        try:
            self._set_timeout(self.deadline)
            self._socket.sendall(data)
        except OSError as error:
            self.http2.connection_lost(error)

    def abort(self) -> None:
        """Close the socket."""
        self._socket.close()

    close = abort

    def _set_timeout(self, deadline: float | None) -> None:
        """Set the timeout of the socket's next operation."""
        timeout = None if deadline is None else _seconds_to(deadline)
        if timeout != self._timeout:
            self._socket.settimeout(timeout)
            self._timeout = timeout


def _seconds_to(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
