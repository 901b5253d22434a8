# SPDX-License-Identifier: Apache-2.0
"""Files of a repository, read only if they are files and small enough to be what they should be."""

from __future__ import annotations

import stat
from pathlib import Path


class UnreadableError(Exception):
    """Why a file cannot be read, in words that follow its name."""


def read_small(path: Path, largest: int) -> bytes:
    """The content of a file of at most so many bytes. Raises UnreadableError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("it is not a file")
        if status.st_size > largest:
            raise UnreadableError(f"it has over {largest >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
