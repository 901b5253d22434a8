# SPDX-License-Identifier: Apache-2.0
"""Stage, publish and remove folders, so that no partial entry ever looks complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tritonctl.host.files import as_host_error

REMOVED = ".removed-"  # prefix of folders that are being removed
STAGING = ".staging-"  # prefix of folders that are being filled inside a store


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """Create the empty `folder`, and remove it afterwards unless it was published.

    The caller holds a lock: an existing folder is the leftover of a killed command. Raises
    HostError.
    """
    with as_host_error(folder):
        if folder.exists():
            remove_tree(folder)
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        with suppress(OSError):  # published, or removed by the next command
            remove_tree(folder)


def publish_folder(staging: Path, folder: Path) -> None:
    """Rename a complete staging folder to its final name, replacing an older one.

    On failure the older one stays. Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    replaced = staging.with_name(f"{staging.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        os.rename(folder, replaced)
    try:
        os.rename(staging, folder)
    except BaseException:
        if replaced.exists():
            os.rename(replaced, folder)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def hard_link(source: Path, target: Path) -> bool:
    """Hard-link a file; return whether the file system supports it."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        return False
    return True


def remove_folder(folder: Path) -> int:
    """Rename a folder to a hidden name, then delete it; return the bytes freed.

    A hidden folder is deleted under its name. Raises HostError.
    """
    with as_host_error(folder):
        freed_bytes = unlinked_bytes(folder)
        doomed = folder
        if not folder.name.startswith("."):
            doomed = folder.with_name(f"{REMOVED}{folder.name}")
            if doomed.exists():  # of a killed command
                remove_tree(doomed)
            os.rename(folder, doomed)
        remove_tree(doomed)
    return freed_bytes


def remove_tree(folder: Path) -> None:
    """Delete a folder whose subfolders may be read-only. Raises OSError."""
    for parent, _, _ in os.walk(folder):
        with suppress(PermissionError):  # another user's folder in a shared store
            Path(parent).chmod(0o700)
    shutil.rmtree(folder)


def unlinked_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder that have no other hard link."""
    return sum(status.st_size for status in file_statuses(folder) if status.st_nlink == 1)


def file_statuses(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of every file below a folder that another process does not remove."""
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = (Path(parent) / name).lstat()
            except FileNotFoundError:
                continue
            yield status
