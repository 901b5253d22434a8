# SPDX-License-Identifier: Apache-2.0
"""List every file below a model's folder with its status; follows no links, opens no files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model

# As many as an unpacked environment has. Further entries are ignored.
MAX_ENTRIES = 20_000


class TreeEntry(NamedTuple):
    """A file, folder or link below a model's folder."""

    path: Path
    relative_path: str  # below the model's folder
    status: os.stat_result

    @property
    def is_link(self) -> bool:
        """Whether the entry is a symbolic link."""
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        """Whether the entry is a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def mode(self) -> int:
        """The permission bits."""
        return stat.S_IMODE(self.status.st_mode)


def tree_entries(model: Model) -> tuple[TreeEntry, ...]:
    """Return everything below the model's folder, in path order, without the folder itself."""
    return memoized(model, "tree", lambda: tuple(_walk_tree(model)))


def _walk_tree(model: Model) -> Iterator[TreeEntry]:
    remaining = MAX_ENTRIES
    folders = [model.path]
    while folders and remaining > 0:
        folder = folders.pop()
        for dir_entry in _sorted_entries(folder)[:remaining]:
            remaining -= 1
            try:
                status = dir_entry.stat(follow_symlinks=False)
            except OSError:  # removed in the meantime
                continue
            path = Path(dir_entry.path)
            if stat.S_ISDIR(status.st_mode):
                folders.append(path)
            yield TreeEntry(path, path.relative_to(model.path).as_posix(), status)


def _sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def first_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the first bytes of a file; b"" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(max_bytes)
    except OSError:
        return b""
