# SPDX-License-Identifier: Apache-2.0
"""Write a bundle: stage it next to its target, hash every file, rename it when complete."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.bundle import contents
from tritonctl.bundle.wheels import collect_wheels, tritonctl_source
from tritonctl.errors import UsageError
from tritonctl.host import bundled
from tritonctl.host.environments import EnvironmentRecipe
from tritonctl.host.files import as_host_error, sha256
from tritonctl.host.progress import Progress
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project
from tritonctl.repository.publish import render
from tritonctl.runtimes.docker.compose import GRAFANA_IMAGE, PROMETHEUS_IMAGE
from tritonctl.store.folders import staging_folder

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
    environments: Sequence[EnvironmentRecipe] = (),
) -> Bundle:
    """Collect project, checkpoints, engines, wheels and image names in the new `folder`.

    builders: include the wheels for building. wheel: tritonctl's wheel, if it does not run from a
    clone. environments: of other programs, such as load generators.

    Raises UsageError for a folder that exists, RepositoryError for an engine not built,
    ConfigurationError for a file outside the project, HostError when pip fails.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists", remedy="name a new folder, or remove this one")
    files = contents.files(project)
    if project.server.mode == "docker":
        render(project, progress)  # the deployment's limits, and thus its images, depend on it
    builds = contents.planned_builds(project)
    images = contents.images(project, builds)
    recipes = [*contents.recipes(project, builds if builders else ()), *environments]
    source = tritonctl_source(wheel)
    with staging_folder(folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")) as staging:
        collect_wheels(source, recipes, staging / "wheels", progress)
        with (
            as_host_error(folder),
            progress.step("Copying project, checkpoints and engines") as step,
        ):
            for relative_path, path in files.items():
                step.update(str(relative_path))
                _copy(path, staging / "project" / relative_path)
            _write_metadata(staging, images)
            _write_checksums(staging)
            staging.rename(folder)
    return Bundle(folder, len(list((folder / "wheels").iterdir())), tuple(images), _size(folder))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():  # links of the hub's cache become files
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored)
    else:
        shutil.copyfile(source, target)


def _write_metadata(staging: Path, image_names: list[str]) -> None:
    record = {
        "schema": "tritonctl.bundle/1",
        "tritonctl": __version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
        "system": platform.system(),
    }
    text = json.dumps(record, indent=2) + "\n"
    (staging / "bundle.json").write_text(text, encoding="utf-8")
    listing = "".join(f"{image}\n" for image in image_names)
    (staging / "images.txt").write_text(listing, encoding="utf-8")
    values = {
        "@PYTHON@": record["python"],
        "@PROMETHEUS@": PROMETHEUS_IMAGE.partition("@")[0],
        "@GRAFANA@": GRAFANA_IMAGE.partition("@")[0],
    }
    script = bundled.text(_INSTALL)
    for mark, value in values.items():
        script = script.replace(mark, value)
    install = staging / "install.sh"
    install.write_text(script, encoding="utf-8")
    install.chmod(0o755)


def _write_checksums(staging: Path) -> None:
    """Write the input of `sha256sum --check`, which detects incomplete or modified copies."""
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    lines = [f"{sha256(path)}  {path.relative_to(staging).as_posix()}\n" for path in files]
    (staging / _SUMS).write_text("".join(lines), encoding="utf-8")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
