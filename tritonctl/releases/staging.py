# SPDX-License-Identifier: Apache-2.0
"""Lay out a release in its staging folder: link immutable files, copy editable ones.

A hard link shares its permissions with the file in the engine store, so a released engine becomes
read-only there, too. Builds and renderings replace such files and never write to them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import RepositoryError
from tritonctl.host.files import sha256
from tritonctl.host.requirements import (
    LOCK_SUFFIX,
    lock_of,
    requirement_lines,
    requirements_text,
)
from tritonctl.host.resources import usable_cores
from tritonctl.project.schema import STATE_FOLDER
from tritonctl.releases.manifest import REPOSITORY, REQUIREMENTS, ReleasedFile, ReleasedModel
from tritonctl.repository.contents import CONFIG, HandwrittenModel
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.server_environment import requirement_files
from tritonctl.store.folders import hard_link

_BYTECODE = "__pycache__"
_READABLE, _RUNNABLE, _EXECUTE = 0o444, 0o555, 0o111
_FICLONE = 0x40049409  # Linux: share the bytes of a file, copy on write
_ANY = "*"  # stands for the version folder: equal content has equal hashes under every number


@dataclass(frozen=True)
class StagedModels:
    """The staged models."""

    models: tuple[ReleasedModel, ...]
    linked: frozenset[str]  # paths of files that are hard links


def place_models(plan: RepositoryPlan, published: Path, staging: Path, number: int) -> StagedModels:
    """Lay out the models of a published repository, rendered ones as the version `number`.

    The response cache identifies a model by its version, possibly on many machines (Redis), so a
    cached model keeps its content's version. Raises OSError, RepositoryError.
    """
    models, links = [], set()
    for model in plan.models:
        version = model.version if model.is_cached else str(number)
        models.append(ReleasedModel(name=model.name, owner=model.owner, version=version))
        folder = staging / REPOSITORY / model.name / version
        folder.mkdir(parents=True)
        for source, place in model.files:
            target = folder / place
            lies = published / model.name / model.version / place
            if _place(lies, target, link=STATE_FOLDER in source.parts):
                links.add(target.relative_to(staging).as_posix())
    for by_hand in plan.handwritten:
        models.append(ReleasedModel(name=by_hand.name, owner=by_hand.name, version=None))
        _place_folder(by_hand, staging / REPOSITORY / by_hand.name)
    return StagedModels(tuple(models), frozenset(links))


def place_requirements(plan: RepositoryPlan, staging: Path) -> None:
    """Write the requirements of its Python models, with included files inlined, and their locks.

    Raises OSError.
    """
    folder = staging / REQUIREMENTS
    for at, file in enumerate(requirement_files(plan.programs)):
        folder.mkdir(exist_ok=True)
        lines = "".join(f"{line}\n" for _, line in requirement_lines(file))
        target = folder / f"{at:02}-{file.parent.name}.txt"
        target.write_text(lines, encoding="utf-8")
        if lock := lock_of(file):
            copied = target.with_suffix(LOCK_SUFFIX)
            copied.write_text(requirements_text(lock), encoding="utf-8")


def place_configs(
    plan: RepositoryPlan, placed: StagedModels, published: Path, staging: Path, final: Path
) -> dict[str, str]:
    """Write every config.pbtxt; return the digest of each for the hash.

    Some configurations name files by path: these paths lie in the release folder, `final`.
    """
    versions = {model.name: model.version for model in placed.models}
    counted = {}
    for model in plan.models:
        folder = staging / REPOSITORY / model.name
        model_path = f"{final / REPOSITORY / model.name}/{versions[model.name]}/"
        text = model.config.replace(f"{published / model.name}/{model.version}/", model_path)
        (folder / CONFIG).write_text(text, encoding="utf-8")
        counted[f"{REPOSITORY}/{model.name}/{CONFIG}"] = location_independent_digest(
            text, model_path
        )
    return counted


def location_independent_digest(config: str, model_path: str) -> str:
    """Return the digest of a config.pbtxt, independent of its files' location."""
    return hashlib.sha256(config.replace(model_path, f"{_ANY}/").encode()).hexdigest()


def describe_files(staging: Path, links: Iterable[str]) -> list[ReleasedFile]:
    """Describe every file of the staged release, by path. Raises OSError."""
    paths = list(content_paths(staging))
    shared = frozenset(links)
    with ThreadPoolExecutor(usable_cores()) as threads:  # hashing releases the GIL
        digests = list(threads.map(sha256, (staging / path for path in paths)))
    return [
        ReleasedFile(
            path=path,
            size=(status := (staging / path).stat()).st_size,
            sha256=digest,
            mode="0555" if status.st_mode & _EXECUTE else "0444",
            linked=path in shared,
        )
        for path, digest in zip(paths, digests, strict=True)
    ]


def content_paths(folder: Path) -> Iterator[str]:
    """Yield the sorted paths of a release's content, without following links.

    Bytecode does not count: each version of Python writes different files.
    """
    for part in (REPOSITORY, REQUIREMENTS):
        for path in sorted((folder / part).rglob("*")):
            if _BYTECODE not in path.parts and (path.is_symlink() or not path.is_dir()):
                yield path.relative_to(folder).as_posix()


def content_hash(
    files: Iterable[ReleasedFile],
    models: Iterable[ReleasedModel],
    counted: Mapping[str, str],
) -> str:
    """Hash the paths, digests and permissions of a release, without version folders.

    counted: digests that replace those of the files, by path.
    """
    versions = {
        f"{REPOSITORY}/{m.name}/{m.version}/": f"{REPOSITORY}/{m.name}/{_ANY}/"
        for m in models
        if m.version is not None
    }
    entries = []
    for file in files:
        folder = "/".join(file.path.split("/", 3)[:3]) + "/"
        path = file.path.replace(folder, versions.get(folder, folder), 1)
        entries.append([path, counted.get(file.path, file.sha256), file.mode])
    return hashlib.sha256(json.dumps(sorted(entries)).encode()).hexdigest()


def seal(folder: Path) -> None:
    """Remove all write permissions and sync everything to disk. Raises OSError."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            path.chmod(_unwritable(path))
            sync(path)
        Path(parent).chmod(_RUNNABLE)
        sync(Path(parent))


def _unwritable(file: Path) -> int:
    return _RUNNABLE if file.stat().st_mode & _EXECUTE else _READABLE


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk. Raises OSError."""
    if os.name == "nt":  # Windows syncs only files that are open for writing
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _place_folder(model: HandwrittenModel, target: Path) -> None:
    """Copy a handwritten model: users edit its files in place."""
    for path in sorted(model.folder.rglob("*")):
        place = path.relative_to(model.folder)
        if _BYTECODE in place.parts:
            continue
        if path.is_dir():
            if path.is_symlink():
                raise RepositoryError(
                    f"{path} is a link to a folder, and a release must contain its files",
                    remedy="copy the folder there instead of the link",
                )
            (target / place).mkdir(parents=True, exist_ok=True)
        else:
            _place(path, target / place, link=False)


def _place(source: Path, target: Path, *, link: bool) -> bool:
    """Link or copy a file; return whether `target` is a hard link to `source`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if link and hard_link(source, target):
        try:
            target.chmod(_unwritable(target))
        except PermissionError:  # another user's file in a shared engine folder
            target.unlink()
        else:
            return True
    _copy(source, target)
    return False


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its permissions; as a reflink if the file system supports it."""
    with source.open("rb") as read, target.open("xb") as write:
        if not _cloned(read.fileno(), write.fileno()):
            shutil.copyfileobj(read, write)
    with suppress(OSError):
        shutil.copymode(source, target)


def _cloned(source: int, target: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:  # most file systems
        return False
    return True


def rendered_model(model: ReleasedModel, folder: Path, files: Iterable[str]) -> PlannedModel:
    """Restore the plan of a released model. Raises OSError."""
    top = folder / REPOSITORY / model.name
    version = model.version or ""
    prefix = f"{REPOSITORY}/{model.name}/{version}/"
    return PlannedModel(
        name=model.name,
        owner=model.owner,
        config=(top / CONFIG).read_text(encoding="utf-8"),
        files=tuple(
            (folder / path, path.removeprefix(prefix)) for path in files if path.startswith(prefix)
        ),
        version=version,
    )
