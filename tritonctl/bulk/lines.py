# SPDX-License-Identifier: Apache-2.0
"""Read lines of a file or of standard input, with the position at which each ends.

Reads only available bytes, so that a typed line is answered before the next one. An endless line
does not exhaust memory.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.errors import UsageError

MAX_LINE_BYTES = 64 << 20
_CHUNK = 64 << 10
_HASH_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class RawLine:
    """One line of the input."""

    index: int  # from 0
    content: bytes  # without the line break
    end: int  # bytes of the input up to the next line
    too_long: bool = False


@dataclass(frozen=True)
class LineSource:
    """A source of lines."""

    name: str
    path: Path | None
    read: Callable[[int], bytes]
    size: int | None  # bytes; None if unknown, such as for a pipe
    _file: Any
    _state: tuple[int, int] | None = None

    @classmethod
    def from_bytes(cls, name: str, content: bytes) -> LineSource:
        """Create a source from bytes in memory."""
        file = io.BytesIO(content)
        return cls(name, None, file.read, None, file)

    @classmethod
    def open_path(cls, path: Path | None) -> LineSource:
        """Open a file, or standard input for None. Raises UsageError for an unreadable file."""
        if path is None:
            # Unbuffered: the buffer waits until it is full.
            file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
            return cls("standard input", None, file.read, None, file)
        try:
            file = path.open("rb", buffering=0)
            status = os.fstat(file.fileno())
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read: {error.strerror}",
                remedy="name a file with an item on each line, or pipe it in",
            ) from error
        if not stat.S_ISREG(status.st_mode):  # such as /dev/stdin
            return cls(str(path), path, file.read, None, file)
        return cls(str(path), path, file.read, status.st_size, file, _file_state(status))

    def close(self) -> None:
        """Close the file, but not standard input."""
        if self.path is not None:
            self._file.close()

    def content_hash(self) -> str | None:
        """Return the SHA-256 of a file; None for a source that can be read only once."""
        if self.path is None or self.size is None:
            return None
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(_HASH_BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def seek(self, byte_offset: int) -> None:
        """Continue reading a file at this byte."""
        self._file.seek(byte_offset)

    @property
    def is_changed(self) -> bool:
        """Whether the file was modified since it was opened."""
        return self._state is not None and _file_state(os.fstat(self._file.fileno())) != self._state


def _file_state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def raw_lines(
    read: Callable[[int], bytes], index: int = 0, start: int = 0
) -> Iterator[list[RawLine]]:
    """Yield groups of the available lines; the first line has this index and starts at `start`.

    Lines end with LF or CR LF. The last line may have no line ending.
    """
    parts: list[bytes] = []
    size, end = 0, start
    while chunk := read(_CHUNK):
        head, *next_parts = chunk.split(b"\n")
        lines: list[RawLine] = []
        size += len(head)
        if size <= MAX_LINE_BYTES:
            parts.append(head)
        for following in next_parts:
            end += size + 1
            lines.append(_line(index, parts, end, size))
            index += 1
            parts, size = [following], len(following)
        if lines:
            yield lines
    if size:
        yield [_line(index, parts, end + size, size)]


def _line(index: int, parts: list[bytes], end: int, size: int) -> RawLine:
    if size > MAX_LINE_BYTES:
        return RawLine(index, b"", end, too_long=True)
    return RawLine(index, b"".join(parts).removesuffix(b"\r"), end)
