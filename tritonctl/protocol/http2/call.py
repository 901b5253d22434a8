# SPDX-License-Identifier: Apache-2.0
"""One gRPC call with one request and a stream of responses: messages in, a status at the end.

How a reader waits is not known here: tasks do in channel.py, threads in blocking.py.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

import grpc

from tritonctl.protocol.http2.frames import WINDOW_BYTES

_PREFIX = struct.Struct(">BL")  # of a message: whether it is compressed, its length
_PREFIX_BYTES = _PREFIX.size
MOST_MESSAGE_BYTES = (2 << 30) - 1  # protobuf's own limit
_OK = 200
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# What a status of HTTP means where gRPC's own is missing: something in between has answered.
_OF_HTTP = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    429: grpc.StatusCode.UNAVAILABLE,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNAVAILABLE,
}
# And one of HTTP/2, for a stream that was reset.
_OF_RESET = {
    7: grpc.StatusCode.UNAVAILABLE,
    8: grpc.StatusCode.CANCELLED,
    11: grpc.StatusCode.RESOURCE_EXHAUSTED,
    12: grpc.StatusCode.PERMISSION_DENIED,
}


class CallError(grpc.RpcError):  # type: ignore[misc] # grpc has no types
    """A call that ended with another status than OK; it has what grpc.aio's errors are read for."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """The status."""
        return self._code

    def details(self) -> str:
        """The server's words, or ours about the connection."""
        return self._details


class Stream(Protocol):
    """A call's place on a connection, or among those that wait for one."""

    def credit(self, size: int) -> None:
        """So many bytes more may come."""

    def leave(self) -> None:
        """Nobody reads it any more."""


class Call(ABC):
    """`read`: makes a response of a message's bytes. `stream`: where it has begun.

    `window`: bytes that the server may send ahead of the reader, who may be behind by half as many
    before. `most`: bytes of a message.
    """

    def __init__(
        self,
        read: Callable[[bytes], Any],
        *,
        window: int = WINDOW_BYTES,
        most: int = MOST_MESSAGE_BYTES,
    ) -> None:
        self.stream: Stream | None = None
        self.status: grpc.StatusCode | None = None
        self.window = window
        self._most = most
        self._most_unread = window // 2
        self._credit = window // 4  # a window is not widened by less
        self._details = ""
        self._read = read
        self._sent_again = False
        self._messages: deque[bytes] = deque()
        self._unread = 0  # bytes of them
        self._rest = bytearray()  # of a message that has not come whole
        self._owed = 0  # bytes that the window is not yet wider by
        self._http_status = 0

    @property
    def has_ended(self) -> bool:
        """Whether all responses were taken. Raises CallError for another status than OK."""
        if self.status is None or self._messages:
            return False
        if self.status is grpc.StatusCode.OK:
            return True
        raise CallError(self.status, self._details)

    def take(self) -> Any:
        """The next response, where there is one."""
        message = self._messages.popleft()
        self._unread -= len(message)
        if self._owed >= self._credit:
            self._widen()
        return self._read(message)

    def drop(self) -> None:
        """Nobody wants the responses that have come."""
        self._messages.clear()
        self._unread = 0

    def cancel(self) -> None:
        """Leave it; without effect on one that has ended."""
        self.end(grpc.StatusCode.CANCELLED, "cancelled by its client")

    def late(self) -> None:
        """Its deadline has passed."""
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")

    def data(self, payload: bytes) -> None:
        """Bytes of messages have come."""
        self._owed += len(payload)
        if not self._rest and len(payload) >= _PREFIX_BYTES:
            compressed, size = _PREFIX.unpack_from(payload)
            if size == len(payload) - _PREFIX_BYTES and not compressed:  # a message, as is usual
                self._messages.append(payload[_PREFIX_BYTES:])
                self._unread += size
                self._wake()
                return
        self._rest += payload
        self._split()
        self._widen()

    def headers(self, headers: Mapping[str, str], *, last: bool) -> None:
        """A block of headers has come: the head, the trailers, or both in one."""
        status = headers.get(":status", "")
        if status.isdecimal():
            self._http_status = int(status)
        kind = headers.get("content-type", "application/grpc")
        if last or (self._http_status >= _OK and not kind.startswith("application/grpc")):
            self._finish(headers, kind)

    def was_reset(self, error_code: int) -> None:
        """The server has ended it without trailers."""
        code = _OF_RESET.get(error_code, grpc.StatusCode.INTERNAL)
        self._ended(code, f"Received RST_STREAM with error code {error_code}")

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End it from here, also for the server."""
        if self.status is None:
            self._ended(code, details)
            if self.stream is not None:
                self.stream.leave()

    def lost(self, why: str) -> None:
        """Its connection is gone, or was never there."""
        self._ended(grpc.StatusCode.UNAVAILABLE, why)

    def unseen(self, why: str) -> None:
        """Its connection will not be used for it: the server says that it has not begun with it."""
        if self._sent_again or self._http_status:
            self.lost(why)
        elif self.status is None:
            self._sent_again = True
            self._begin_again()

    def _finish(self, headers: Mapping[str, str], kind: str) -> None:
        number = headers.get("grpc-status", "")
        if number.isdecimal():
            code = _CODES.get(int(number), grpc.StatusCode.UNKNOWN)
            if code is grpc.StatusCode.OK and self._rest:
                self._ended(grpc.StatusCode.INTERNAL, "the last message is incomplete")
            else:
                self._ended(code, unquote(headers.get("grpc-message", ""), errors="replace"))
            return
        code = _OF_HTTP.get(self._http_status, grpc.StatusCode.UNKNOWN)
        self.end(code, f"an answer of HTTP status {self._http_status} and type {kind[:80]}")

    def _split(self) -> None:
        """Take whole messages from what has come."""
        rest, at = self._rest, 0
        while len(rest) - at >= _PREFIX_BYTES:
            compressed, size = _PREFIX.unpack_from(rest, at)
            if compressed:
                self.end(grpc.StatusCode.INTERNAL, "a response is compressed")
                return
            if size > self._most:
                too_long = f"a response has {size} bytes, of at most {self._most}"
                self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, too_long)
                return
            end = at + _PREFIX_BYTES + size
            if end > len(rest):
                break
            self._messages.append(bytes(rest[at + _PREFIX_BYTES : end]))
            self._unread += size
            at = end
        if at:
            del rest[:at]
            self._wake()

    def _widen(self) -> None:
        """Let the server send more, unless the reader is behind."""
        if self._owed >= self._credit and self._unread < self._most_unread and self.stream:
            self.stream.credit(self._owed)
            self._owed = 0

    def _ended(self, code: grpc.StatusCode, details: str) -> None:
        if self.status is None:
            self.status, self._details = code, details
            self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """A message has come, or the end."""

    @abstractmethod
    def _begin_again(self) -> None:
        """On another connection."""
