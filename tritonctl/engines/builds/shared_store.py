# SPDX-License-Identifier: Apache-2.0
"""A folder of artefacts that several projects share (`engines:` of the project file).

Artefacts are stored by fingerprint. A project hard-links the files it needs, or copies them to
another file system, after verifying every hash. A project thus keeps its engines even if they are
removed here. Files without another hard link are unused.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tritonctl.engines.artefacts.manifest import MANIFEST, read_manifest, write_manifest
from tritonctl.engines.artefacts.store import read_artefact
from tritonctl.engines.builds.stages import StageBuild
from tritonctl.errors import HostError, RepositoryError
from tritonctl.host.files import as_host_error, exclusive, try_exclusive, write_atomically
from tritonctl.host.progress import Progress
from tritonctl.store.entries import verify
from tritonctl.store.folders import (
    STAGING,
    file_statuses,
    hard_link,
    publish_folder,
    remove_folder,
    staging_folder,
)

_LOCKS = ".locks"
_ABANDONED_SECONDS = 24 * 3600


@contextmanager
def hold_shared_lock(build: StageBuild, progress: Progress) -> Iterator[None]:
    """Hold the artefact's lock, so that a second project that needs the artefact waits."""
    if build.shared is None or not _is_writable(build.shared):
        yield
        return
    with exclusive(_lock(build.shared, build.folder.name), progress, f"build {build.name}"):
        yield


def is_shared(build: StageBuild) -> bool:
    """Whether the folder has an artefact of that fingerprint, intact or not."""
    entry = _shared_folder(build)
    return entry is not None and (entry / MANIFEST).is_file()


def copy_shared(build: StageBuild, staging: Path, progress: Progress) -> bool:
    """Link the shared artefact into the empty folder `staging`.

    Returns False for a missing or damaged artefact and notes the damage; a build replaces it.
    """
    entry = _shared_folder(build)
    if entry is None:
        return False
    findings = verify(read_artefact(entry), progress)
    if findings or read_manifest(entry).fingerprint != build.fingerprint.digest:
        reason = f"{findings[0].path}: {findings[0].detail}" if findings else "another fingerprint"
        progress.note(f"{build.location}: {entry} is damaged and built again ({reason})")
        return False
    with as_host_error(staging):
        _link_tree(entry, staging)
        # The fingerprint ignores paths: rewrite them for this project.
        manifest = read_manifest(entry).model_copy(update={"request": build.request})
        write_manifest(staging, manifest)
        record = build.request.model_dump(by_alias=True, mode="json")
        text = json.dumps(record, indent=2, ensure_ascii=False)
        write_atomically(staging / "request.json", text)
    return True


def share_artefact(build: StageBuild, progress: Progress) -> None:
    """Copy a new artefact to the shared folder. A failure is only noted."""
    entry = _shared_folder(build)
    if entry is None or build.shared is None:
        return
    hidden = build.shared / f"{STAGING}{uuid.uuid4().hex}"
    try:
        with as_host_error(build.shared), staging_folder(hidden) as staging:
            _link_tree(build.folder, staging)
            publish_folder(staging, entry)
    except HostError as error:
        progress.note(f"{build.location} is built and not shared: {error.problem}")


def unused_artefacts(shared: Path) -> list[Path]:
    """Return unused shared artefacts and the leftovers of killed commands.

    Only projects on this file system count as users.
    """
    entries = [folder for folder in sorted(shared.glob("*")) if folder.is_dir()]
    return [folder for folder in entries if folder.name != _LOCKS and _is_unused(folder)]


def remove_unused(shared: Path, chosen: list[Path], progress: Progress) -> list[Path]:
    """Remove the `chosen` artefacts that are unused and not being built. Raises HostError."""
    removed = []
    for folder in chosen:
        with try_exclusive(_lock(shared, folder.name)) as free:
            if not free or not folder.is_dir() or not _is_unused(folder):
                continue
            with progress.step(f"Removing {folder.name}"):
                remove_folder(folder)
            removed.append(folder)
    return removed


def _shared_folder(build: StageBuild) -> Path | None:
    return build.shared / build.folder.name if build.shared else None


def _lock(shared: Path, name: str) -> Path:
    return shared / _LOCKS / f"{name}.lock"


def _is_writable(shared: Path) -> bool:
    """Whether the folder is writable. A read-only folder never changes and needs no lock."""
    existing = next(path for path in (shared, *shared.parents) if path.exists())
    return os.access(existing, os.W_OK)


def _link_tree(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        destination = target / path.relative_to(source)
        if path.is_symlink():
            raise RepositoryError(
                f"{path} is a symbolic link",
                remedy="make the engine again: `tritonctl build --force`",
            )
        if path.is_dir():
            destination.mkdir(parents=True, exist_ok=True)
        else:
            destination.parent.mkdir(parents=True, exist_ok=True)
            if not hard_link(path, destination):
                shutil.copy2(path, destination)


def _is_unused(folder: Path) -> bool:
    """Whether no project has hard links to the artefact; for a hidden folder, whether it is old."""
    if folder.name.startswith("."):
        return time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS
    return all(status.st_nlink == 1 for status in file_statuses(folder))
