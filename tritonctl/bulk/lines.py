# SPDX-License-Identifier: Apache-2.0
"""Lines of a file or of standard input, as they come, and where each ends.

What is there is read, not more: a line that is typed is answered before the next one. A line
without end does not fill the memory.
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

MOST_LINE_BYTES = 64 << 20
_CHUNK = 64 << 10
_HASHED = 1 << 20


@dataclass(frozen=True)
class RawLine:
    """A line without its end. `index`: from 0. `end`: bytes of the input up to the next line."""

    index: int
    content: bytes
    end: int
    too_long: bool = False


@dataclass(frozen=True)
class Source:
    """Where lines come from. `size`: bytes, None where unknown, as of a pipe."""

    name: str
    path: Path | None
    read: Callable[[int], bytes]
    size: int | None
    _file: Any
    _state: tuple[int, int] | None = None

    @classmethod
    def of(cls, name: str, content: bytes) -> Source:
        """Lines that are at hand."""
        file = io.BytesIO(content)
        return cls(name, None, file.read, None, file)

    @classmethod
    def opened(cls, path: Path | None) -> Source:
        """A file, or standard input for None. Raises UsageError for what is no readable file."""
        if path is None:
            # Below its buffer, which waits until it is full.
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
        return cls(str(path), path, file.read, status.st_size, file, _state(status))

    def close(self) -> None:
        """A file of ours."""
        if self.path is not None:
            self._file.close()

    def content_hash(self) -> str | None:
        """SHA-256 of a file's content; None of what can be read once only."""
        if self.path is None or self.size is None:
            return None
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(_HASHED):
                digest.update(block)
        return digest.hexdigest()

    def seek(self, start: int) -> None:
        """Go on reading a file at this byte."""
        self._file.seek(start)

    @property
    def changed(self) -> bool:
        """Whether somebody has written to the file since it was opened."""
        return self._state is not None and _state(os.fstat(self._file.fileno())) != self._state


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def raw_lines(
    read: Callable[[int], bytes], index: int = 0, start: int = 0
) -> Iterator[list[RawLine]]:
    """Lines in groups, as many as are there; the first has this index and begins at byte `start`.

    A line ends with LF or CR LF; the last one may lack it.
    """
    parts: list[bytes] = []
    size, end = 0, start
    while chunk := read(_CHUNK):
        head, *others = chunk.split(b"\n")
        lines: list[RawLine] = []
        size += len(head)
        if size <= MOST_LINE_BYTES:
            parts.append(head)
        for following in others:
            end += size + 1
            lines.append(_line(index, parts, end, size))
            index += 1
            parts, size = [following], len(following)
        if lines:
            yield lines
    if size:
        yield [_line(index, parts, end + size, size)]


def _line(index: int, parts: list[bytes], end: int, size: int) -> RawLine:
    if size > MOST_LINE_BYTES:
        return RawLine(index, b"", end, too_long=True)
    return RawLine(index, b"".join(parts).removesuffix(b"\r"), end)
