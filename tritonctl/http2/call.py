# SPDX-License-Identifier: Apache-2.0
"""One gRPC call with one request and a stream of responses: messages, then a status.

Readers wait in subclasses: tasks in channel.py, threads in blocking.py.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

import grpc

from tritonctl.http2.frames import WINDOW_BYTES

_PREFIX = struct.Struct(">BL")  # message prefix: compression flag, length
_PREFIX_BYTES = _PREFIX.size
MAX_MESSAGE_BYTES = (2 << 30) - 1  # protobuf's limit
_OK = 200
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# gRPC codes by HTTP status, for answers without a gRPC status, for example from a proxy.
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
# gRPC codes by HTTP/2 error code, for streams that were reset.
_OF_RESET = {
    7: grpc.StatusCode.UNAVAILABLE,
    8: grpc.StatusCode.CANCELLED,
    11: grpc.StatusCode.RESOURCE_EXHAUSTED,
    12: grpc.StatusCode.PERMISSION_DENIED,
}


class CallError(grpc.RpcError):  # type: ignore[misc] # grpc has no types
    """A call ended with a status other than OK. Compatible with grpc.aio's errors."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return self._code

    def details(self) -> str:
        """Return the server's message, or ours about the connection."""
        return self._details


class Http2Stream(Protocol):
    """A call's stream on a connection, or its entry in the waiting list."""

    def credit(self, size: int) -> None:
        """Let the server send `size` more bytes."""

    def leave(self) -> None:
        """Abort the stream: its reader has left."""


class GrpcCall(ABC):
    """A call. `read`: parses a message.

    `window`: bytes that the server may send ahead of the reader; it is extended while less than
    half of it is unread.
    """

    def __init__(
        self,
        read: Callable[[bytes], Any],
        *,
        window: int = WINDOW_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.stream: Http2Stream | None = None  # None: not started
        self.status: grpc.StatusCode | None = None
        self.window = window
        self._max_message_bytes = max_message_bytes
        self._max_unread = window // 2
        self._credit = window // 4  # minimum extension of the window
        self._details = ""
        self._read = read
        self._was_resent = False
        self._messages: deque[bytes] = deque()
        self._unread = 0  # their bytes
        self._buffer = bytearray()  # of an incomplete message
        self._owed = 0  # received bytes by which the window is not yet extended
        self._max_owed = max(window, WINDOW_BYTES)  # what the server may send
        self._http_status = 0

    @property
    def has_ended(self) -> bool:
        """Whether all responses were taken. Raises CallError for a status other than OK."""
        if self.status is None or self._messages:
            return False
        if self.status is grpc.StatusCode.OK:
            return True
        raise CallError(self.status, self._details)

    def take(self) -> Any:
        """Return the next response. Raises IndexError without one."""
        message = self._messages.popleft()
        self._unread -= _PREFIX_BYTES + len(message)
        if self._owed >= self._credit:
            self._widen()
        return self._read(message)

    def drop(self) -> None:
        """Discard the unread responses."""
        self._messages.clear()
        self._unread = 0
        self._widen()

    def cancel(self) -> None:
        """Cancel the call; no effect on a finished call."""
        self.end(grpc.StatusCode.CANCELLED, "cancelled by its client")

    def late(self) -> None:
        """End the call because its deadline has passed."""
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")

    def data(self, payload: bytes, padding: int = 0) -> None:
        """Handle received bytes of messages. padding: more bytes that the frame took."""
        self._owed += len(payload) + padding
        if self._owed > self._max_owed:
            self.end(grpc.StatusCode.INTERNAL, "the server sent more than the window allows")
            return
        if not self._buffer and len(payload) >= _PREFIX_BYTES:
            compressed, size = _PREFIX.unpack_from(payload)
            if (
                size == len(payload) - _PREFIX_BYTES and not compressed
            ):  # one complete message, the usual case
                self._messages.append(payload[_PREFIX_BYTES:])
                self._unread += len(payload)
                self._wake()
                return
        self._buffer += payload
        self._split()
        self._widen()

    def headers(self, headers: Mapping[str, str], *, last: bool) -> None:
        """Handle a header block: the head, the trailers, or both in one."""
        status = headers.get(":status", "")
        if status.isdecimal():
            self._http_status = int(status)
        kind = headers.get("content-type", "application/grpc")
        if last or (self._http_status >= _OK and not kind.startswith("application/grpc")):
            self._finish(headers, kind)

    def was_reset(self, error_code: int) -> None:
        """Handle a stream that the server ended without trailers."""
        code = _OF_RESET.get(error_code, grpc.StatusCode.INTERNAL)
        self._set_status(code, f"Received RST_STREAM with error code {error_code}")

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End the call here and at the server."""
        if self.status is None:
            self._set_status(code, details)
            if self.stream is not None:
                self.stream.leave()

    def lost(self, reason: str) -> None:
        """End the call because its connection failed."""
        self._set_status(grpc.StatusCode.UNAVAILABLE, reason)

    def not_processed(self, reason: str) -> None:
        """Restart the call, once: the server says that it has not processed the request."""
        if self._was_resent or self._http_status:
            self.lost(reason)
        elif self.status is None:
            self._was_resent = True
            self._restart()

    def _finish(self, headers: Mapping[str, str], kind: str) -> None:
        number = headers.get("grpc-status", "")
        if number.isdecimal():
            code = _CODES.get(int(number), grpc.StatusCode.UNKNOWN)
            if code is grpc.StatusCode.OK and self._buffer:
                self._set_status(grpc.StatusCode.INTERNAL, "the last message is incomplete")
            else:
                self._set_status(code, unquote(headers.get("grpc-message", ""), errors="replace"))
            return
        code = _OF_HTTP.get(self._http_status, grpc.StatusCode.UNKNOWN)
        self.end(code, f"an answer of HTTP status {self._http_status} and type {kind[:80]}")

    def _split(self) -> None:
        """Extract complete messages from the buffer."""
        buffer, at = self._buffer, 0
        while len(buffer) - at >= _PREFIX_BYTES:
            compressed, size = _PREFIX.unpack_from(buffer, at)
            if compressed:
                self.end(grpc.StatusCode.INTERNAL, "a response is compressed")
                return
            if size > self._max_message_bytes:
                too_long = f"a response has {size} bytes, of at most {self._max_message_bytes}"
                self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, too_long)
                return
            end = at + _PREFIX_BYTES + size
            if end > len(buffer):
                break
            self._messages.append(bytes(buffer[at + _PREFIX_BYTES : end]))
            self._unread += end - at
            at = end
        if at:
            del buffer[:at]
            self._wake()

    def _widen(self) -> None:
        """Extend the window, unless the reader is behind."""
        if self._owed >= self._credit and self._unread < self._max_unread and self.stream:
            self.stream.credit(self._owed)
            self._owed = 0

    def _set_status(self, code: grpc.StatusCode, details: str) -> None:
        if self.status is None:
            self.status, self._details = code, details
            self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """Wake the reader: a message has arrived, or the call has ended."""

    @abstractmethod
    def _restart(self) -> None:
        """Send the request on another connection."""
