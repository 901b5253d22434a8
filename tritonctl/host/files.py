# SPDX-License-Identifier: Apache-2.0
"""The cache folder, locks between tritonctl processes, whole files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, HostError, TritonctlError
from tritonctl.host.progress import Progress

# For files with secrets: only their owner may read them.
PRIVATE = 0o600
_LOCK_POLL_SECONDS = 0.2


def cache_folder() -> Path:
    """TRITONCTL_CACHE_DIR, else `tritonctl` under XDG_CACHE_HOME or ~/.cache. Raises HostError."""
    chosen = os.environ.get("TRITONCTL_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tritonctl"
    except RuntimeError as error:  # as in a container whose user has a number and no name
        raise HostError(
            f"this user has no home directory for the cache: {error}",
            remedy="set TRITONCTL_CACHE_DIR to a folder that this user may write",
        ) from error


@contextmanager
def exclusive(lock: Path, progress: Progress, work: str) -> Iterator[None]:
    """Hold `lock` (advisory, released by the kernel if we die); waiting is shown as a step."""
    with explained(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a+", encoding="utf-8")
    with handle:
        if not _try_lock(handle):
            with progress.step(f"Waiting for another tritonctl to {work}"):
                _wait_for_lock(handle)
        yield


@contextmanager
def if_free(lock: Path) -> Iterator[bool]:
    """Hold `lock` if it is free; yields whether."""
    with explained(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a+", encoding="utf-8")
    with handle:
        yield _try_lock(handle)


def _try_lock(handle: Any) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)  # it locks bytes from where the file stands, also beyond its end
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _wait_for_lock(handle: Any) -> None:
    if sys.platform == "win32":  # its own way of waiting gives up after ten seconds
        while not _try_lock(handle):
            time.sleep(_LOCK_POLL_SECONDS)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the operating system's errors about `path` into HostError with a remedy."""
    try:
        yield
    except OSError as error:
        raise _host_error(error, path) from error


def _host_error(error: OSError, path: Path) -> TritonctlError:
    # Copying and renaming name two files: the second is the one written.
    place = error.filename2 or error.filename or path
    # shutil.copytree collects what went wrong as text and drops the error number.
    collected = isinstance(error, shutil.Error) and os.strerror(errno.ENOSPC) in str(error)
    if collected or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return HostError(
            f"no space left while writing {place}",
            remedy=f"free space there (`df -h {path.parent}`) and run the command again; "
            "nothing half-written was left behind",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HostError(
            f"no permission to write {place}: {error.strerror}",
            remedy=f"make {path.parent} writable, or choose another folder",
        )
    return HostError(
        f"{error.filename or path}: {error.strerror or error}", remedy="check the path and its disk"
    )


def read_record(file: Path) -> dict[str, Any]:
    """The JSON object of a file that a command may do without; {} if absent or damaged."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def read_object(file: Path, *, remedy: str) -> dict[str, Any]:
    """The JSON object of a file that a command needs. Raises ConfigurationError."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{file} cannot be read: {reason}", remedy=remedy) from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{file} is not a JSON object", remedy=remedy)
    return value


def write_atomically(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write a whole file or nothing: temporary sibling, fsync, rename. Raises HostError.

    mode: PRIVATE for secrets; the umask decides when None.
    """
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not mkstemp, whose files only their owner may read: here the umask decides.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("x", encoding="utf-8") as file:
                if mode is not None:
                    temporary.chmod(mode)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
