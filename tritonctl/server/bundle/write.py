# SPDX-License-Identifier: Apache-2.0
"""Writes a bundle: staged beside its place, hashed file by file, renamed when it is whole."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines.build.fingerprint import sha256
from tritonctl.errors import UsageError
from tritonctl.host import bundled
from tritonctl.host.environments import Recipe
from tritonctl.host.files import explained
from tritonctl.host.progress import Progress
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project
from tritonctl.repository.publish import render
from tritonctl.server.bundle import contents
from tritonctl.server.bundle.wheels import collect_wheels, tritonctl_source

_SUMS = "SHA256SUMS"
_INSTALL = "docker/bundle_install.sh"


@dataclass(frozen=True)
class Bundle:
    """A folder that another machine installs from."""

    folder: Path
    wheels: int
    images: tuple[str, ...]
    size: int


def write_bundle(
    project: Project,
    folder: Path,
    progress: Progress,
    *,
    builders: bool = False,
    wheel: Path | None = None,
    environments: Sequence[Recipe] = (),
) -> Bundle:
    """Collect project, checkpoints, engines, wheels and names of images into the new `folder`.

    builders: also the wheels that building needs. wheel: tritonctl's own, where it is not run from
    a clone. environments: of other programs that run there, such as load generators.

    Raises UsageError for a folder that exists, RepositoryError for an engine not built,
    ConfigurationError for a file outside the project, HostError when pip fails.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists", remedy="name a new folder, or remove that one")
    files = contents.files(project)
    if project.server.mode == "docker":
        render(project, progress)  # the deployment's sizes, and so its images, come from it
    images = contents.images(project)
    recipes = [*contents.recipes(project, builders=builders), *environments]
    source = tritonctl_source(wheel)
    staging = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    try:
        with explained(folder):
            staging.mkdir(parents=True)
        collect_wheels(source, recipes, staging / "wheels", progress)
        with explained(folder), progress.step("Copying project, checkpoints and engines") as step:
            for place, path in files.items():
                step.update(str(place))
                _copy(path, staging / "project" / place)
            _describe(staging, images)
            _seal(staging)
            staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Bundle(folder, len(list((folder / "wheels").iterdir())), tuple(images), _size(folder))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():  # links of the hub's cache become files
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored)
    else:
        shutil.copyfile(source, target)


def _describe(staging: Path, images: list[str]) -> None:
    record = {
        "schema": "tritonctl.bundle/1",
        "tritonctl": __version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
        "system": platform.system(),
    }
    text = json.dumps(record, indent=2) + "\n"
    (staging / "bundle.json").write_text(text, encoding="utf-8")
    listing = "".join(f"{image}\n" for image in images)
    (staging / "images.txt").write_text(listing, encoding="utf-8")
    script = bundled.text(_INSTALL).replace("@PYTHON@", record["python"])
    install = staging / "install.sh"
    install.write_text(script, encoding="utf-8")
    install.chmod(0o755)


def _seal(staging: Path) -> None:
    """What `sha256sum --check` reads: nothing is missing or changed after a copy by hand."""
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    lines = [f"{sha256(path)}  {path.relative_to(staging).as_posix()}\n" for path in files]
    (staging / _SUMS).write_text("".join(lines), encoding="utf-8")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
