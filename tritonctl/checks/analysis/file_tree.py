# SPDX-License-Identifier: Apache-2.0
"""Every file below a model's folder, by its status; links are not followed, nothing is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model

# An unpacked environment has this many; what follows is left alone.
MOST_ENTRIES = 20_000


class Entry(NamedTuple):
    """A file, folder or link; `place` is its path below the model's folder."""

    path: Path
    place: str
    status: os.stat_result

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def mode(self) -> int:
        """The bits of its permissions."""
        return stat.S_IMODE(self.status.st_mode)


def tree(model: Model) -> tuple[Entry, ...]:
    """Everything below the model's folder, in order of the paths; the folder itself not."""
    return memoized(model, "tree", lambda: tuple(_below(model)))


def _below(model: Model) -> Iterator[Entry]:
    left = MOST_ENTRIES
    folders = [model.path]
    while folders and left > 0:
        folder = folders.pop()
        for one in _entries(folder)[:left]:
            left -= 1
            try:
                status = one.stat(follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue
            path = Path(one.path)
            if stat.S_ISDIR(status.st_mode):
                folders.append(path)
            yield Entry(path, path.relative_to(model.path).as_posix(), status)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda one: one.name)
    except OSError:
        return []


def first_bytes(path: Path, most: int) -> bytes:
    """How a file begins; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError:
        return b""
