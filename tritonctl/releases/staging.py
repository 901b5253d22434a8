# SPDX-License-Identifier: Apache-2.0
"""Lays a release out in its staging folder: linked where nobody writes, copied where people edit.

A hard link shares its permissions with the file in the engine store: an engine that was released
cannot be written to there, either. Nobody does: builds and renderings put a new file in its place.
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

from tritonctl.engines.build.fingerprint import sha256
from tritonctl.errors import RepositoryError
from tritonctl.host.environments import requirement_lines
from tritonctl.host.resources import usable_cores
from tritonctl.project.schema import STATE_FOLDER
from tritonctl.releases.manifest import REPOSITORY, REQUIREMENTS, ReleasedFile, ReleasedModel
from tritonctl.repository.contents import CONFIG, HandwrittenModel
from tritonctl.repository.plan import Plan
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.publish import linked
from tritonctl.repository.server_environment import requirement_files

_BYTECODE = "__pycache__"
_READABLE, _RUNNABLE, _EXECUTE = 0o444, 0o555, 0o111
_FICLONE = 0x40049409  # Linux: share the bytes of a file, copy those that are written to
_ANY = "*"  # stands for the version folder: the same content has the same hash under every number


@dataclass(frozen=True)
class Placed:
    """What was staged: models with their versions, and which files have a second name elsewhere."""

    models: tuple[ReleasedModel, ...]
    linked: frozenset[str]


def place_models(plan: Plan, published: Path, staging: Path, number: int) -> Placed:
    """Lay out the models of a published repository, rendered ones as the version `number`.

    The response cache knows a model by its version, maybe on many machines (Redis): one that is
    cached stays the version that its content is. Raises OSError, RepositoryError.
    """
    models, links = [], set()
    for model in plan.models:
        version = model.version if model.cached else str(number)
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
    return Placed(tuple(models), frozenset(links))


def place_requirements(plan: Plan, staging: Path) -> None:
    """The packages of its Python models, each file with those that it includes. Raises OSError."""
    folder = staging / REQUIREMENTS
    for at, file in enumerate(requirement_files(plan.programs)):
        folder.mkdir(exist_ok=True)
        lines = "".join(f"{line}\n" for _, line in requirement_lines(file))
        (folder / f"{at:02}-{file.parent.name}.txt").write_text(lines, encoding="utf-8")


def place_configs(
    plan: Plan, placed: Placed, published: Path, staging: Path, final: Path
) -> dict[str, str]:
    """Write every config.pbtxt; returns each as it counts for the hash.

    A few name files by their place: here that of the release's own folder, `final`.
    """
    versions = {model.name: model.version for model in placed.models}
    counted = {}
    for model in plan.models:
        folder = staging / REPOSITORY / model.name
        there = f"{final / REPOSITORY / model.name}/{versions[model.name]}/"
        text = model.config.replace(f"{published / model.name}/{model.version}/", there)
        (folder / CONFIG).write_text(text, encoding="utf-8")
        counted[f"{REPOSITORY}/{model.name}/{CONFIG}"] = neutral(text, there)
    return counted


def neutral(config: str, there: str) -> str:
    """The digest of a config.pbtxt wherever its files are."""
    return hashlib.sha256(config.replace(there, f"{_ANY}/").encode()).hexdigest()


def described(staging: Path, links: Iterable[str]) -> list[ReleasedFile]:
    """Every file of the staged release with its digest, by path. Raises OSError."""
    paths = list(content(staging))
    shared = frozenset(links)
    with ThreadPoolExecutor(usable_cores()) as threads:  # hashing holds no lock of Python's
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


def content(folder: Path) -> Iterator[str]:
    """What counts as the content of a release: paths in it, sorted. Links are not followed.

    Bytecode does not: each version of Python writes its own.
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
    """The identity of a release: paths, digests and permissions, version folders left out.

    counted: digests that count in place of the files' own, by path.
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
    """Take away every permission to write, and see all of it on the disk. Raises OSError."""
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
    """See a file, or the names in a folder, on the disk. Raises OSError."""
    if os.name == "nt":  # Windows syncs only what is open for writing
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _place_folder(model: HandwrittenModel, target: Path) -> None:
    """A copy of a model by hand: people edit its files where they are."""
    for path in sorted(model.folder.rglob("*")):
        place = path.relative_to(model.folder)
        if _BYTECODE in place.parts:
            continue
        if path.is_dir():
            if path.is_symlink():
                raise RepositoryError(
                    f"{path} is a link to a folder, and a release holds files of its own",
                    remedy="copy the folder there instead of the link",
                )
            (target / place).mkdir(parents=True, exist_ok=True)
        else:
            _place(path, target / place, link=False)


def _place(source: Path, target: Path, *, link: bool) -> bool:
    """Whether the file at `target` is a further name of `source`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if link and linked(source, target):
        try:
            target.chmod(_unwritable(target))
        except PermissionError:  # another user's, of a folder of engines that many share
            target.unlink()
        else:
            return True
    _copy(source, target)
    return False


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its permissions; where the file system can, without its bytes."""
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
    """A model of a release as it was planned. Raises OSError."""
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
