# SPDX-License-Identifier: Apache-2.0
"""Look at files of a repository: none of them may end the check.

`Path.exists` and its siblings raise for a link into a folder without search permission, and for a
target whose name is too long.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class UnreadableError(Exception):
    """A file cannot be read; the message continues a sentence after the file's name."""


def exists(path: Path) -> bool:
    """Whether a path exists; False if that cannot be found out."""
    return os.path.exists(path)  # noqa: PTH110 - see above


def is_file(path: Path) -> bool:
    """Whether a path is a regular file; False if that cannot be found out."""
    return os.path.isfile(path)  # noqa: PTH113 - see above


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; False if that cannot be found out."""
    return os.path.isdir(path)  # noqa: PTH112 - see above


def read_small(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of limited size. Raises UnreadableError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("it is not a file")
        if status.st_size > max_bytes:
            raise UnreadableError(f"it has over {max_bytes >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
