# SPDX-License-Identifier: Apache-2.0
"""The cache folder, locks between tritonctl processes, atomic writes, hashes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, HostError, TritonctlError
from tritonctl.host.progress import Progress

# Mode of files with secrets: only the owner may read them.
PRIVATE = 0o600
_LOCK_POLL_SECONDS = 0.2
_BLOCK_BYTES = 1 << 20


def cache_folder() -> Path:
    """Return TRITONCTL_CACHE_DIR, else `tritonctl` in XDG_CACHE_HOME or ~/.cache.

    Raises HostError.
    """
    chosen = os.environ.get("TRITONCTL_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tritonctl"
    except RuntimeError as error:  # e.g. in a container whose user has a number but no name
        raise HostError(
            f"this user has no home directory for the cache: {error}",
            remedy="set TRITONCTL_CACHE_DIR to a folder that this user may write",
        ) from error


@contextmanager
def exclusive(lock: Path, progress: Progress, work: str) -> Iterator[None]:
    """Hold `lock` (advisory; the kernel releases it if we die); show waiting as a step."""
    with as_host_error(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a+", encoding="utf-8")
    with handle:
        if not _try_lock(handle):
            waiting = f"Waiting for another tritonctl to {work}"
            progress.note(waiting)  # at once: without a terminal a step is shown at its end
            with progress.step(waiting):
                _wait_for_lock(handle)
        yield


@contextmanager
def try_exclusive(lock: Path) -> Iterator[bool]:
    """Hold `lock` if it is free; yield whether it was."""
    with as_host_error(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a+", encoding="utf-8")
    with handle:
        yield _try_lock(handle)


@contextmanager
def try_shared(lock: Path) -> Iterator[bool]:
    """Hold `lock` together with others unless it is exclusive; yield whether it was held.

    On Windows it is exclusive.
    """
    with as_host_error(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a+", encoding="utf-8")
    with handle:
        yield _try_lock(handle, shared=True)


def _try_lock(handle: Any, *, shared: bool = False) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)  # locking() locks bytes from the current position, even past the end
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _wait_for_lock(handle: Any) -> None:
    if sys.platform == "win32":  # its blocking lock gives up after ten seconds
        while not _try_lock(handle):
            time.sleep(_LOCK_POLL_SECONDS)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)


@contextmanager
def as_host_error(path: Path) -> Iterator[None]:
    """Convert the operating system's errors about `path` to HostError with a remedy."""
    try:
        yield
    except OSError as error:
        raise _host_error(error, path) from error


def _host_error(error: OSError, path: Path) -> TritonctlError:
    # Errors of copying and renaming name two files; the second is the one written.
    place = error.filename2 or error.filename or path
    # shutil.copytree collects errors as text without the error number.
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
    """Read an optional JSON object from a file; {} if missing or damaged."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def read_object(file: Path, *, remedy: str) -> dict[str, Any]:
    """Read a required JSON object from a file. Raises ConfigurationError."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{file} cannot be read: {reason}", remedy=remedy) from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{file} is not a JSON object", remedy=remedy)
    return value


def write_atomically(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write a file atomically: temporary sibling, fsync, rename. Raises HostError.

    `mode` is PRIVATE for secrets; None: the umask applies.
    """
    with as_host_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not mkstemp(): its files are private, but here the umask applies.
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


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)


def replace_text(path: Path, text: str) -> None:
    """Replace the content of an existing file atomically. Raises HostError.

    A symbolic link stays, and the file that it names changes. Permissions, access lists and, as
    far as the process may, the owner stay, too. Line ends are written as they are in `text`.
    """
    with as_host_error(path):
        target = path.resolve(strict=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with open(temporary, "x", encoding="utf-8", newline="", opener=_open_private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            status = target.stat()
            # First the owner: a change of it takes set-user-ID bits away.
            with suppress(PermissionError):
                os.chown(temporary, status.st_uid, status.st_gid)
            shutil.copystat(target, temporary)
            os.utime(temporary)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def create_private(file: Path) -> None:
    """Create an empty file that only its owner may read, such as a log with users' prompts.

    Programs that append to it later keep the mode. Raises HostError.
    """
    with as_host_error(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        try:
            os.fchmod(descriptor, PRIVATE)  # an earlier version may have made it
        finally:
            os.close(descriptor)


def sha256(file: Path) -> str:
    """Return the hex SHA-256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
