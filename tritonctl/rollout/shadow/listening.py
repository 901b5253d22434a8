# SPDX-License-Identifier: Apache-2.0
"""Takes the copies that Envoy sends: HTTP/1.1 on a socket of the file system.

Everything is read as it comes and answered at once, whatever becomes of it: a copy that is not read
would in the end hold up the stream that it is a copy of.
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
from tritonctl.server.gateway.mirror import require_short

MOST_BYTES = 1 << 20  # of a request; one that is longer is dropped
_MOST_CONNECTIONS = 160
_MOST_HEAD_BYTES = 64 << 10
_PIECE = 64 << 10
_FRAME = 5  # of gRPC: whether the message is compressed, and its length
_LOG = logging.getLogger("tritonctl.shadow")
_DONE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class Copy:
    """A request as it came: of gRPC one message, else the whole body. headers: names in lower case.

    content: None of one that is too long.
    """

    path: str
    headers: Mapping[str, str]
    content: bytes | None

    @property
    def is_grpc(self) -> bool:
        """Whether the content is protobuf."""
        return self.headers.get("content-type", "").startswith("application/grpc")


class MalformedError(Exception):
    """What came is not HTTP as Envoy writes it."""


class Listener:
    """Hands every copy to `take`, which must not wait."""

    def __init__(self, socket: Path, take: Callable[[Copy], None]) -> None:
        self._socket, self._take = socket, take
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises HostError where the socket cannot be made."""
        require_short(self._socket)
        try:
            self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._server = await asyncio.start_unix_server(
                self._connected, self._socket, limit=_MOST_HEAD_BYTES
            )
            self._socket.chmod(0o600)
            self._inode = self._socket.stat().st_ino
        except OSError as error:
            raise HostError(
                f"{self._socket}: no socket for copies of requests: {error.strerror}",
                remedy="make its folder writable",
            ) from error

    async def close(self) -> None:
        """Stop listening, hang up."""
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        with suppress(FileNotFoundError):
            if self._socket.stat().st_ino == self._inode:  # not of another one, which came after
                self._socket.unlink()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            while await self._request(reader):
                writer.write(_DONE)
        except (OSError, EOFError):
            pass  # Envoy has hung up
        except (asyncio.LimitOverrunError, MalformedError) as error:
            # Not what it was: it may hold a user's words.
            _LOG.warning("hung up: that was not HTTP as Envoy writes it: %s", type(error).__name__)
        except asyncio.CancelledError:
            pass  # by `close` alone; Python 3.11 would log it as an error
        finally:
            self._connections.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> bool:
        """Read one, to its end; False when the other side has none left."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        path, headers = read_head(head)
        if headers.get("content-type", "").startswith("application/grpc"):
            frames = Frames()
            async for piece in _body(reader, headers):
                for message in frames.feed(piece):
                    self._take(Copy(path, headers, plain(message, headers, "grpc-encoding")))
        else:
            parts, size = list[bytes](), 0
            async for piece in _body(reader, headers):
                size += len(piece)
                if size <= MOST_BYTES:
                    parts.append(piece)
            whole = (False, b"".join(parts)) if size <= MOST_BYTES else None
            if whole is not None and "content-encoding" in headers:
                whole = (True, whole[1])
            self._take(Copy(path, headers, plain(whole, headers, "content-encoding")))
        return True


def read_head(head: bytes) -> tuple[str, dict[str, str]]:
    """Path and headers, their names in lower case. Raises MalformedError."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, path, HTTP
        raise MalformedError(first[:80])
    pairs = (line.partition(":") for line in lines)
    return parts[1], {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Pieces, as they come. Raises MalformedError, EOFError when the other side hangs up."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        left = _length(headers.get("content-length", "0"), 10)
        while left > 0:
            piece = await reader.read(min(left, _PIECE))
            if not piece:
                raise EOFError
            left -= len(piece)
            yield piece
        return
    while size := _length((await reader.readuntil(b"\r\n")).split(b";")[0].decode("latin-1"), 16):
        while size > 0:
            piece = await reader.read(min(size, _PIECE))
            if not piece:
                raise EOFError
            size -= len(piece)
            yield piece
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


class Frames:
    """Messages of a gRPC stream, each with whether it is compressed; None for one too long."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> list[tuple[bool, bytes] | None]:
        """Those that are whole now."""
        dropped = min(self._skip, len(data))
        self._skip -= dropped
        self._held += data[dropped:]
        found: list[tuple[bool, bytes] | None] = []
        while len(self._held) >= _FRAME:
            length = int.from_bytes(self._held[1:_FRAME], "big")
            if length > MOST_BYTES:
                found.append(None)
                self._skip = max(0, length + _FRAME - len(self._held))
                del self._held[: length + _FRAME]
            elif len(self._held) >= _FRAME + length:
                found.append((bool(self._held[0]), bytes(self._held[_FRAME : _FRAME + length])))
                del self._held[: _FRAME + length]
            else:
                break
        return found


def plain(
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
        content = unpack.decompress(message[1], MOST_BYTES)
    except zlib.error:
        return None
    return content if unpack.eof else None
