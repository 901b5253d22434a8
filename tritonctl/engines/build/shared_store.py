# SPDX-License-Identifier: Apache-2.0
"""A folder of artefacts that several projects share (`engines:` of the project file).

An artefact lies there under its fingerprint. A project that needs it takes it: hard links, or a
copy on another file system, verified by every file's hash before it counts. So each project keeps
what it uses, whatever is removed elsewhere, and an artefact of the folder whose files have no other
name is used by nobody.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tritonctl.engines.artefacts.manifest import MANIFEST, read_manifest, write_manifest
from tritonctl.engines.artefacts.store import read_stored, verify_artefact
from tritonctl.engines.build.stages import StageBuild
from tritonctl.errors import HostError, RepositoryError
from tritonctl.host.files import exclusive, explained, if_free, write_atomically
from tritonctl.host.progress import Progress

_LOCKS = ".locks"
_HIDDEN = ".staging-"
_ABANDONED_SECONDS = 24 * 3600


@contextmanager
def claimed(build: StageBuild, progress: Progress) -> Iterator[None]:
    """Hold the artefact's lock: of two projects that need it, one builds and one waits."""
    if build.shared is None or not _writable(build.shared):
        yield
        return
    with exclusive(_lock(build.shared, build.folder.name), progress, f"build {build.name}"):
        yield


def offered(build: StageBuild) -> bool:
    """Whether the folder has an artefact of that fingerprint; `take` looks whether it is whole."""
    entry = _entry(build)
    return entry is not None and (entry / MANIFEST).is_file()


def take(build: StageBuild, staging: Path, progress: Progress) -> bool:
    """Put the shared artefact into the empty folder `staging`, as this project's own.

    False for a damaged one, which is told; building it replaces it.
    """
    entry = _entry(build)
    if entry is None:
        return False
    findings = verify_artefact(read_stored(entry), progress)
    if findings or read_manifest(entry).fingerprint != build.fingerprint.digest:
        reason = f"{findings[0].path}: {findings[0].detail}" if findings else "another fingerprint"
        progress.note(f"{build.place}: {entry} is damaged and built again ({reason})")
        return False
    with explained(staging):
        _link_tree(entry, staging)
        # Paths do not count in a fingerprint: these files name those of this project.
        manifest = read_manifest(entry).model_copy(update={"request": build.request})
        write_manifest(staging, manifest)
        record = build.request.model_dump(by_alias=True, mode="json")
        text = json.dumps(record, indent=2, ensure_ascii=False)
        write_atomically(staging / "request.json", text)
    return True


def offer(build: StageBuild, progress: Progress) -> None:
    """Share what was just built. The engine is whole either way: a failure is only told."""
    entry = _entry(build)
    if entry is None or build.shared is None:
        return
    staging = build.shared / f"{_HIDDEN}{uuid.uuid4().hex}"
    try:
        with explained(build.shared):
            staging.mkdir(parents=True)
            _link_tree(build.folder, staging)
            _replace(staging, entry)
    except HostError as error:
        progress.note(f"{build.place} is built and not shared: {error.problem}")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def unused(shared: Path) -> list[Path]:
    """Shared artefacts that no project on this file system uses, and what killed commands left."""
    entries = [folder for folder in sorted(shared.glob("*")) if folder.is_dir()]
    return [folder for folder in entries if folder.name != _LOCKS and _alone(folder)]


def remove_unused(shared: Path, chosen: list[Path], progress: Progress) -> list[Path]:
    """Remove those of the `chosen` that nobody uses or builds now. Raises HostError."""
    removed = []
    for folder in chosen:
        with if_free(_lock(shared, folder.name)) as free:
            if not free or not folder.is_dir() or not _alone(folder):
                continue
            with progress.step(f"Removing {folder.name}"), explained(folder):
                doomed = folder
                if not folder.name.startswith(_HIDDEN):
                    doomed = folder.with_name(f"{_HIDDEN}{uuid.uuid4().hex}")
                    os.rename(folder, doomed)
                shutil.rmtree(doomed)
            removed.append(folder)
    return removed


def _entry(build: StageBuild) -> Path | None:
    return build.shared / build.folder.name if build.shared else None


def _lock(shared: Path, name: str) -> Path:
    return shared / _LOCKS / f"{name}.lock"


def _writable(shared: Path) -> bool:
    """A folder that may only be read is taken from, without a lock: nothing there changes."""
    existing = next(path for path in (shared, *shared.parents) if path.exists())
    return os.access(existing, os.W_OK)


def _replace(staging: Path, entry: Path) -> None:
    old = entry.with_name(f"{_HIDDEN}{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        os.rename(entry, old)
    os.rename(staging, entry)
    shutil.rmtree(old, ignore_errors=True)


def _link_tree(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_symlink():
            raise RepositoryError(
                f"{path} is a symbolic link",
                remedy="make the engine again: `tritonctl build --force`",
            )
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, place)
            except OSError:  # another file system, or one without hard links
                shutil.copy2(path, place)


def _alone(folder: Path) -> bool:
    """Whether no project has hard links to it; of what is being staged, whether nobody does."""
    if folder.name.startswith(_HIDDEN):
        return time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS
    return all(file.stat().st_nlink == 1 for file in folder.rglob("*") if file.is_file())
