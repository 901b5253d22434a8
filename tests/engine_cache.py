# SPDX-License-Identifier: Apache-2.0
"""What tests have built, kept across the stages of a run and across runs.

An entry's name is a hash of everything that shapes its content: the project's own fingerprint of
the build (request, checkpoint, the builder's files and requirements), the environment it runs in,
the modules of tritonctl that write the artefact's folder, this machine. An entry is staged, hashed
and renamed; every use gets a copy, and a copy that is not what was hashed is made anew.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from tritonctl.engines.artefacts.manifest import read_manifest, write_manifest
from tritonctl.engines.builds import engine as building
from tritonctl.engines.builds.fingerprint import settings_of
from tritonctl.engines.builds.parallel import build_engines
from tritonctl.engines.builds.plan import plan_builds
from tritonctl.engines.builds.runners import builder_recipe
from tritonctl.engines.builds.stages import StageBuild, plan_stages
from tritonctl.errors import TritonctlError
from tritonctl.host import environments, process
from tritonctl.host.files import cache_folder, exclusive, sha256, try_exclusive, write_atomically
from tritonctl.host.progress import SharedProgressBoard, Silent
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project

MOST_BYTES = 6 << 30
LONGEST_SECONDS = 30 * 24 * 3600
LOG_CHARACTERS = 6000
_CONTENTS = "contents.json"
_FILES = "files"

Make = Callable[[Path], object]


def build_cached(project: Project, *names: str) -> None:
    """The engines of a project, all or those named: from the cache, or built now and kept.

    Models that differ in their name alone have one engine.

    What runs in a container is always built: an image's name does not say what is in it.
    """
    planned = {name: plan_stages(project, name) for name in names or project.models}
    cached = {name: _artefact_key(builds) for name, builds in planned.items() if _local(builds)}
    with _locked(cached.values()):
        absent = [name for name in planned if name not in cached or not _restored(planned[name])]
        first = {cached.get(name, name): name for name in reversed(absent)}
        if absent:
            _build(project, {name: planned[name] for name in first.values()})
        for key, name in first.items():
            if name in cached:
                _keep(key, partial(_copy_stages, planned[name]))
        for name in absent:
            if name in cached and not _restored(planned[name]):
                raise AssertionError(f"the engine of {name} was kept, and is not what was kept")
    _prune()


def _build(project: Project, planned: Mapping[str, list[StageBuild]]) -> None:
    """Two at a time: each build waits for imports most of its time. An error brings its log."""
    board = SharedProgressBoard(Silent())
    try:
        plans = plan_builds(project, list(planned), Silent())
        for _ in build_engines(list(plans.values()), Silent(), board, jobs=2):
            pass
    except TritonctlError as error:
        for log in {build.failed_log for builds in planned.values() for build in builds}:
            if log.exists():
                text = log.read_text(encoding="utf-8", errors="replace")
                error.add_note(f"{log.name}:\n{text[-LOG_CHARACTERS:]}")
        raise


def kept(kind: str, inputs: Mapping[str, Any], make: Make, into: Path) -> Path:
    """What `make` leaves in a folder, copied into the new folder `into`.

    `inputs`: everything that shapes it, as JSON; `make` runs where no entry has the same.
    """
    key = _key(kind, inputs)
    with _locked([key]):
        if not _copied(key, into):
            _keep(key, make)
            if not _copied(key, into):
                raise AssertionError(f"the entry {key} was kept, and is not what was kept")
    _prune()
    return into


def content(path: Path) -> str:
    """A hash over names and contents of a file or a folder, bytecode left out."""
    if path.is_file():
        return sha256(path)
    files = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    listing = [(file.relative_to(path).as_posix(), sha256(file)) for file in files]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


def _folder() -> Path:
    return cache_folder() / "test-engines"


def _key(kind: str, inputs: Mapping[str, Any]) -> str:
    record = json.dumps({**inputs, "machine": _machine()}, sort_keys=True)
    return f"{kind}-{hashlib.sha256(record.encode()).hexdigest()[:32]}"


@cache
def _machine() -> list[str]:
    """Rounding differs between processors."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = sorted({line for line in cpu if line.startswith(("model name", "flags"))})
    return [platform.machine(), sys.version, *models]


@cache
def _writers() -> str:
    """The modules that plan, run and publish a build."""
    # The whole room, however it is divided.
    file = Path(inspect.getfile(building))
    room = next(folder for folder in file.parents if folder.name == "engines")
    others = [Path(inspect.getfile(module)) for module in (environments, process)]
    return "".join(map(content, [room, *others]))


def _local(builds: list[StageBuild]) -> bool:
    return all(build.runner in {"venv", "current"} for build in builds)


def _artefact_key(builds: list[StageBuild]) -> str:
    stages = [
        [build.stage.name, _shaping(build), build.runner, _made_in(build)] for build in builds
    ]
    return _key("engine", {"stages": stages, "writers": _writers(), "version": __version__})


def _shaping(build: StageBuild) -> dict[str, Any]:
    """What its fingerprint is made of, but for the model's name, also in that of the stage before:
    no builder asks for it.
    """
    settings = settings_of(build.request, build.stage)
    inputs = build.fingerprint.inputs
    return {
        "task": build.model.task,
        "settings": {key: value for key, value in settings.items() if key != "model"},
        "inputs": {key: value for key, value in inputs.items() if key != "source"},
    }


def _made_in(build: StageBuild) -> str:
    """The environment that a stage runs in."""
    if build.runner == "current":
        return sys.version
    return builder_recipe(build.builder, build.stage, build.request.target).fingerprint()


@contextmanager
def _locked(keys: Iterable[str]) -> Iterator[None]:
    """Hold the locks of entries; always in the same order, so that nobody waits in a circle."""
    with ExitStack() as held:
        for lock in sorted(set(map(_lock, keys))):
            held.enter_context(exclusive(lock, Silent(), "build engines"))
        yield


def _lock(key: str) -> Path:
    """One of 256 files: a file per entry could not be removed while somebody waits for it."""
    return _folder() / "locks" / hashlib.sha256(key.encode()).hexdigest()[:2]


def _keep(key: str, make: Make) -> None:
    """Stage, hash, rename. The caller holds the lock."""
    staging = _folder() / f"{key}.{uuid.uuid4().hex}"
    (staging / _FILES).mkdir(parents=True)
    try:
        make(staging / _FILES)
        write_atomically(staging / _CONTENTS, json.dumps(_contents(staging / _FILES)))
        shutil.rmtree(_folder() / key, ignore_errors=True)
        os.rename(staging, _folder() / key)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder).as_posix(): sha256(file) for file in files}


def _copied(key: str, into: Path) -> bool:
    """Whether the entry was there, whole, and is copied. The caller holds the lock."""
    entry = _folder() / key
    try:
        expected = json.loads((entry / _CONTENTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent, or of a disk that was full: made anew
        return False
    shutil.copytree(entry / _FILES, into)
    if _contents(into) != expected:
        shutil.rmtree(into)
        return False
    os.utime(entry)  # the last use
    return True


def _copy_stages(builds: list[StageBuild], folder: Path) -> None:
    for build in builds:
        shutil.copytree(build.folder, folder / build.stage.name)


def _restored(builds: list[StageBuild]) -> bool:
    """Whether every stage's artefact is where the project expects it."""
    if builds[-1].is_published:
        return True
    scratch = builds[-1].state / "staging" / f"restored-{uuid.uuid4().hex}"
    if not _copied(_artefact_key(builds), scratch):
        return False
    for build in builds:
        build.folder.parent.mkdir(parents=True, exist_ok=True)
        _relocate(scratch / build.stage.name, build)
        shutil.rmtree(build.folder, ignore_errors=True)
        os.rename(scratch / build.stage.name, build.folder)
    scratch.rmdir()
    return True


def _relocate(artefact: Path, build: StageBuild) -> None:
    """Write down the paths of this project, and the name of its model."""
    own = {
        "request": build.request,
        "fingerprint": build.fingerprint.digest,
        "source": build.fingerprint.inputs.get("source"),
        "inputs": build.fingerprint.inputs,
    }
    write_manifest(artefact, read_manifest(artefact).model_copy(update=own))
    record = build.request.model_dump(by_alias=True, mode="json")
    text = json.dumps(record, indent=2, ensure_ascii=False)
    write_atomically(artefact / "request.json", text)


def _prune() -> None:
    """Remove what was not used for long, and beyond a size those that were used longest ago."""
    total = 0
    for used, size, entry in sorted(_entries(), reverse=True):
        total += size
        if total > MOST_BYTES or used < time.time() - LONGEST_SECONDS:
            _remove(entry)


def _entries() -> Iterator[tuple[float, int, Path]]:
    """Last use and size of every entry; another process may be removing one."""
    for entry in _folder().glob("*-*"):
        with suppress(FileNotFoundError):
            if entry.is_dir():
                files = [file for file in entry.rglob("*") if file.is_file()]
                yield entry.stat().st_mtime, sum(file.stat().st_size for file in files), entry


def _remove(entry: Path) -> None:
    """Of a staging folder that a killed process left, nobody holds the lock."""
    with try_exclusive(_lock(entry.name.partition(".")[0])) as free:
        if free:
            shutil.rmtree(entry, ignore_errors=True)
