# SPDX-License-Identifier: Apache-2.0
"""Streams for threads: whoever reads one reads its socket, and nobody has to be woken.

A call has a connection for itself. It is kept for the next call when it ends, so there are as many
as there were calls at once.
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

from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.http2.call import Call
from tritonctl.protocol.http2.connection import Http2Connection
from tritonctl.protocol.http2.opening import (
    CONNECT_SECONDS,
    Head,
    Headers,
    framed,
    place,
    refuse_other_protocol,
    tls_context,
)

_READ_BYTES = 65_536
_MOST_KEPT = 128  # connections that nobody uses


class BlockingChannel:
    """Of one endpoint, for any number of threads: what is used of gRPC's for streams.

    endpoint: one that `is_direct`. Raises HostError for certificates that cannot be read.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._place = place(endpoint)
        self._lock = threading.Lock()
        self._kept: list[_Line] = []  # the one that was used last comes last
        self._used: set[_Line] = set()
        self.closed = False

    def unary_stream(
        self, method: str, request_serializer: Callable[[Any], bytes], response_deserializer: Any
    ) -> Callable[..., BlockingCall]:
        """As gRPC's: calls are made with a request, `timeout` (seconds) and `metadata`."""
        head = Head(self._endpoint, method)

        def ask(
            request: Any, *, timeout: float | None = None, metadata: Headers = ()
        ) -> BlockingCall:
            headers, message = head.of(timeout, metadata), framed(request_serializer(request))
            call = BlockingCall(self, response_deserializer, headers, message, timeout)
            call.begin()
            return call

        return ask

    def close(self) -> None:
        """Calls under way are cancelled, as are those that begin later."""
        with self._lock:
            self.closed = True
            kept, self._kept = self._kept, []
            used = list(self._used)
        for line in kept:
            line.end()
        for line in used:
            line.interrupt()

    def line(self, deadline: float | None) -> _Line:
        """A connection that takes a call. Raises OSError, ValueError where none can be made."""
        while line := self._next_kept():
            if line.is_fit():
                return line
            self.give_back(line)
        line = _Line(self._place, self._endpoint.tls, deadline)
        with self._lock:
            self._used.add(line)
            closed = self.closed
        if closed:
            self.give_back(line)
            raise ConnectionError("the channel was closed")
        return line

    def give_back(self, line: _Line) -> None:
        """A call has ended on it."""
        with self._lock:
            self._used.discard(line)
            keep = line.connection.usable and not self.closed and len(self._kept) < _MOST_KEPT
            if keep:
                self._kept.append(line)
        if not keep:
            line.end()

    def unreachable(self, error: Exception) -> str:
        """In gRPC's words, by which remedies are found."""
        return f"failed to connect to {self._endpoint.url}: {error or type(error).__name__}"

    def _next_kept(self) -> _Line | None:
        with self._lock:
            if not self._kept or self.closed:
                return None
            line = self._kept.pop()
            self._used.add(line)
            return line


class BlockingCall(Call):
    """Used as a call of gRPC's is: iterate over it, cancel it, wait for its end.

    By one thread at a time.
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
        self._line: _Line | None = None
        self._is_to_begin = True

    def begin(self) -> None:
        """Send it."""
        self._is_to_begin = False
        try:
            self._line = self._channel.line(self._deadline)
        except (OSError, ValueError) as error:  # ValueError: TLS without HTTP/2
            self.lost(self._channel.unreachable(error))
            return
        self._line.deadline = self._deadline
        self._line.connection.begin(self, self._headers, self._message)

    def cancel(self) -> None:
        """As Call's."""
        super().cancel()
        self._leave_line()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next response. Raises CallError, or StopIteration at the end."""
        while not self._messages:
            if self.has_ended:
                raise StopIteration
            self._read_more(self._deadline)
        return self.take()

    def exception(self, timeout: float) -> None:
        """Wait so many seconds for the end; responses that come until then are lost.

        Raises grpc.FutureTimeoutError.
        """
        until = time.monotonic() + timeout
        while self.status is None:
            if time.monotonic() >= until:
                raise grpc.FutureTimeoutError
            self.drop()
            self._read_more(until if self._deadline is None else min(until, self._deadline))

    def lost(self, why: str) -> None:
        """As Call's; where that is what was asked for, it is no loss."""
        if self._channel.closed:
            super().cancel()
        elif self._is_late:
            self.late()
        else:
            super().lost(why)

    @property
    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _read_more(self, until: float | None) -> None:
        """Wait for bytes, not longer than until then (time.monotonic), and take them in.

        Only behind that is the connection anybody else's.
        """
        if self._line is not None and not self._line.take_in(until) and self._is_late:
            self.late()
        if self._is_to_begin or self.status is not None:
            self._leave_line()
        if self._is_to_begin:
            self.begin()

    def _wake(self) -> None:
        pass  # who waits is who has read it

    def _begin_again(self) -> None:
        self._is_to_begin = True  # later: the connection that says so is still reading

    def _leave_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._channel.give_back(line)


class _Line:
    """A connection and its socket, which is the connection's transport.

    Made whole, until the server has said that it speaks HTTP/2. Raises OSError, ValueError.
    """

    def __init__(
        self, place: tuple[str, int], tls: ClientTls | None, deadline: float | None
    ) -> None:
        until = time.monotonic() + CONNECT_SECONDS
        until = until if deadline is None else min(until, deadline)
        self._seconds: float | None = _seconds_to(until)
        self._socket = socket.create_connection(place, self._seconds)
        self.connection = Http2Connection()
        self.deadline: float | None = until
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                name = tls.server_name or place[0]
                self._socket = tls_context(tls).wrap_socket(self._socket, server_hostname=name)
                refuse_other_protocol(self._socket)
            self.connection.connection_made(self)  # type: ignore[arg-type] # what is used of one
            while self.connection.is_opening:
                if not self.take_in(until):
                    raise TimeoutError("timed out")
            if not self.connection.usable:
                raise ConnectionError(self.connection.why or "GOAWAY received")
        except BaseException:
            self._socket.close()
            raise

    def take_in(self, until: float | None) -> bool:
        """Wait for bytes, and give them to the connection; False: none came until then."""
        try:
            self._wait_until(until)
            received = self._socket.recv(_READ_BYTES)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            self.connection.connection_lost(error)
            return True
        if received:
            self.connection.data_received(received)
        else:
            self.connection.connection_lost(None)
        return True

    def is_fit(self) -> bool:
        """Whether it still takes a call, after what came while nobody read."""
        while self.connection.usable and self.take_in(0.0):
            pass
        return self.connection.usable

    def interrupt(self) -> None:
        """Whoever reads it in another thread reads its end."""
        with suppress(OSError):  # ssl's own would take the TLS away from under the reader
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def end(self) -> None:
        """Nobody will use it any more."""
        self.connection.close()

    # As a transport.

    def write(self, data: bytes) -> None:
        """All of it; a socket that does not take it is lost."""
        try:
            self._wait_until(self.deadline)
            self._socket.sendall(data)
        except OSError as error:
            self.connection.connection_lost(error)

    def abort(self) -> None:
        """Close it."""
        self._socket.close()

    close = abort

    def _wait_until(self, until: float | None) -> None:
        """As the socket's next operation does."""
        seconds = None if until is None else _seconds_to(until)
        if seconds != self._seconds:
            self._socket.settimeout(seconds)
            self._seconds = seconds


def _seconds_to(until: float) -> float:
    return max(0.0, until - time.monotonic())
