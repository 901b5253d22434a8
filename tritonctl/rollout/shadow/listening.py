# SPDX-License-Identifier: Apache-2.0
"""Receive the copies that Envoy sends: HTTP/1.1 on a Unix socket.

The listener reads and answers everything at once, whatever happens to it: an unread copy would
eventually block the stream it was copied from.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.gateway.mirror import require_short_path

MAX_BYTES = 1 << 20  # of a request; longer ones are dropped
_MAX_CONNECTIONS = 160
_MAX_HEAD_BYTES = 64 << 10
_CHUNK_BYTES = 64 << 10
_FRAME_HEADER_BYTES = 5  # gRPC: compression flag and message length
_LOG = logging.getLogger("tritonctl.shadow")
_OK_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class RequestCopy:
    """A received request."""

    path: str
    headers: Mapping[str, str]  # names in lower case
    content: bytes | None  # one gRPC message or the whole body; None if too long

    @property
    def is_grpc(self) -> bool:
        """Whether the content is protobuf."""
        return self.headers.get("content-type", "").startswith("application/grpc")


class MalformedError(Exception):
    """The data is not HTTP as Envoy writes it."""


class CopyListener:
    """Passes every copy to `on_copy`, which must not wait."""

    def __init__(self, socket: Path, on_copy: Callable[[RequestCopy], None]) -> None:
        self._socket, self._on_copy = socket, on_copy
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises HostError if the socket cannot be created."""
        require_short_path(self._socket)
        try:
            self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._server = await asyncio.start_unix_server(
                self._serve_connection, self._socket, limit=_MAX_HEAD_BYTES
            )
            self._socket.chmod(0o600)
            self._inode = self._socket.stat().st_ino
        except OSError as error:
            raise HostError(
                f"{self._socket}: cannot create the socket for request copies: {error.strerror}",
                remedy="make its folder writable",
            ) from error

    async def close(self) -> None:
        """Stop listening and close all connections."""
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        with suppress(FileNotFoundError):
            if self._socket.stat().st_ino == self._inode:  # not a later listener's
                self._socket.unlink()

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= _MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            while await self._read_request(reader):
                writer.write(_OK_RESPONSE)
        except (ConnectionError, EOFError) as error:
            _LOG.debug("Envoy closed the connection: %s", type(error).__name__)
        except (asyncio.LimitOverrunError, MalformedError) as error:
            # Log no content: it may hold a user's words.
            _LOG.warning("closed: not HTTP as Envoy writes it: %s", type(error).__name__)
        except OSError as error:
            _LOG.warning("closed: %s", error.strerror or type(error).__name__)
        except asyncio.CancelledError:  # only by `close`; Python 3.11 would log it as an error
            _LOG.debug("connection cancelled by close()")
        finally:
            self._connections.discard(task)
            writer.close()

    async def _read_request(self, reader: asyncio.StreamReader) -> bool:
        """Read one request to its end; False if the connection is closed."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        path, headers = read_head(head)
        if headers.get("content-type", "").startswith("application/grpc"):
            frames = GrpcFrames()
            async for chunk in _body_chunks(reader, headers):
                for message in frames.feed(chunk):
                    self._on_copy(
                        RequestCopy(path, headers, decompressed(message, headers, "grpc-encoding"))
                    )
        else:
            parts, size = list[bytes](), 0
            async for chunk in _body_chunks(reader, headers):
                size += len(chunk)
                if size <= MAX_BYTES:
                    parts.append(chunk)
            body = (False, b"".join(parts)) if size <= MAX_BYTES else None
            if body is not None and "content-encoding" in headers:
                body = (True, body[1])
            self._on_copy(
                RequestCopy(path, headers, decompressed(body, headers, "content-encoding"))
            )
        return True


def read_head(head: bytes) -> tuple[str, dict[str, str]]:
    """Parse path and headers, with names in lower case. Raises MalformedError."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, path, HTTP
        raise MalformedError(first[:80])
    pairs = (line.partition(":") for line in lines)
    return parts[1], {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body_chunks(
    reader: asyncio.StreamReader, headers: Mapping[str, str]
) -> AsyncIterator[bytes]:
    """Yield chunks of the body. Raises MalformedError, or EOFError if the connection closes."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        remaining = _length(headers.get("content-length", "0"), 10)
        while remaining > 0:
            chunk = await reader.read(min(remaining, _CHUNK_BYTES))
            if not chunk:
                raise EOFError
            remaining -= len(chunk)
            yield chunk
        return
    while size := _length((await reader.readuntil(b"\r\n")).split(b";")[0].decode("latin-1"), 16):
        while size > 0:
            chunk = await reader.read(min(size, _CHUNK_BYTES))
            if not chunk:
                raise EOFError
            size -= len(chunk)
            yield chunk
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers


def _length(text: str, base: int) -> int:
    try:
        length = int(text, base)
    except ValueError:
        length = -1
    if length < 0:
        raise MalformedError(f"a length of {text[:80]!r}")
    return length


class GrpcFrames:
    """Splits a gRPC stream into messages, each with its compression flag; None if too long."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> list[tuple[bool, bytes] | None]:
        """Return the messages that are complete now."""
        dropped = min(self._skip, len(data))
        self._skip -= dropped
        self._buffer += data[dropped:]
        messages: list[tuple[bool, bytes] | None] = []
        while len(self._buffer) >= _FRAME_HEADER_BYTES:
            length = int.from_bytes(self._buffer[1:_FRAME_HEADER_BYTES], "big")
            if length > MAX_BYTES:
                messages.append(None)
                self._skip = max(0, length + _FRAME_HEADER_BYTES - len(self._buffer))
                del self._buffer[: length + _FRAME_HEADER_BYTES]
            elif len(self._buffer) >= _FRAME_HEADER_BYTES + length:
                messages.append(
                    (
                        bool(self._buffer[0]),
                        bytes(self._buffer[_FRAME_HEADER_BYTES : _FRAME_HEADER_BYTES + length]),
                    )
                )
                del self._buffer[: _FRAME_HEADER_BYTES + length]
            else:
                break
        return messages


def decompressed(
    message: tuple[bool, bytes] | None, headers: Mapping[str, str], encoding: str
) -> bytes | None:
    """Decompressed; None where it would be too long, or is compressed in a way not known here."""
    if message is None or not message[0]:
        return message and message[1]
    # 47: gzip or zlib, by what it begins with.
    if headers.get(encoding, "") not in ("gzip", "deflate"):
        return None
    unpack = zlib.decompressobj(47)
    try:
        content = unpack.decompress(message[1], MAX_BYTES)
    except zlib.error:
        return None
    return content if unpack.eof else None
