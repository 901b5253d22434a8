# SPDX-License-Identifier: Apache-2.0
"""Publishes a plan as a model repository: stage next to it, verify, rename model by model.

Triton must never see half a model, and every sub-folder of a repository is a model: so staging
happens in a hidden sibling on the same file system. Composing models go in before ensembles.
"""

from __future__ import annotations

import compileall
import filecmp
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines.build.engine import Artefact
from tritonctl.errors import RepositoryError
from tritonctl.host.files import cache_folder, exclusive, explained, write_atomically
from tritonctl.host.interpreters import find, running
from tritonctl.host.progress import Progress
from tritonctl.project.schema import STATE_FOLDER, Project
from tritonctl.repository.checking import refuse_mistakes
from tritonctl.repository.contents import CONFIG, is_ours, record_of, rendered_names
from tritonctl.repository.plan import Plan, plan_repository
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.server_environment import PYTHONS

_WRITABLE = 0o222


@dataclass(frozen=True)
class Rendered:
    """What a rendering did; names of models, in publishing order."""

    repository: Path
    plan: Plan
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


def render(
    project: Project, progress: Progress, artefacts: Mapping[str, Artefact] | None = None
) -> Rendered:
    """Render a project's model repository. Equal input leaves every byte as it is.

    artefacts: the engines, where the caller has resolved them already.
    Raises RepositoryError, ConfigurationError or HostError; the repository then still holds
    only whole models.
    """
    plan = plan_repository(project, artefacts)
    repository = project.repository
    with exclusive(_lock(repository), progress, "render"):
        _refuse_foreign(repository, plan)
        with progress.step(f"Rendering {repository.name}"), _staging(repository) as staging:
            for model in plan.models:
                assemble(model, staging / model.name)
            if plan.models:  # else hand-written ones alone were chosen
                refuse_mistakes(staging, project, progress, _edited(plan, repository))
            changed = _publish_all(plan, staging, repository)
            removed = _remove_dropped(project, plan, staging)
    unchanged = tuple(m.name for m in plan.models if m.name not in changed)
    return Rendered(repository, plan, changed, unchanged, removed)


@contextmanager
def unchanged(rendered: Rendered, progress: Progress) -> Iterator[None]:
    """Hold the repository as it was rendered: nobody renders into it meanwhile.

    Raises RepositoryError where somebody has, just before.
    """
    with exclusive(_lock(rendered.repository), progress, "render"):
        for model in rendered.plan.models:
            file = rendered.repository / model.name / CONFIG
            if not file.is_file() or file.read_text(encoding="utf-8") != model.config:
                raise RepositoryError(
                    f"{file} has been rendered anew meanwhile", remedy="run the command again"
                )
        yield


def _edited(plan: Plan, repository: Path) -> dict[str, Path]:
    """By the place of a file of code in the repository, the file it is copied from."""
    return {
        f"{repository.name}/{model.name}/{model.version}/{place}": source
        for model in plan.models
        for source, place in model.files
        if STATE_FOLDER not in source.parts
    }


def _lock(repository: Path) -> Path:
    """Not in the project, because two projects may render into one repository."""
    digest = hashlib.sha256(str(repository).encode()).hexdigest()
    return cache_folder() / "locks" / f"render-{digest[:16]}.lock"


@contextmanager
def _staging(repository: Path) -> Iterator[Path]:
    staging = repository.parent / f".{repository.name}.staging"
    with explained(staging):
        shutil.rmtree(staging, ignore_errors=True)  # of a rendering that was killed
        staging.mkdir(parents=True)
        repository.mkdir(exist_ok=True)
    try:
        with explained(staging):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def assemble(model: PlannedModel, folder: Path) -> None:
    """Lay a planned model out in a new folder. Raises OSError."""
    (folder / model.version).mkdir(parents=True)
    (folder / CONFIG).write_text(model.config, encoding="utf-8")
    for source, relative in model.files:
        target = folder / model.version / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        _place(source, target)


def compile_python(folders: Iterable[Path]) -> None:
    """Write the bytecode of models' Python files, which Triton's stubs otherwise do on loading.

    To Triton a model whose folder has changed since is another one: asked to load an ensemble, it
    loads the steps below it again, and tritonserver 2.51 corrupts its heap by swapping one.
    """
    python = find(PYTHONS, shared=True)
    if python is None or python.version == running().version:
        for folder in folders:
            compileall.compile_dir(folder, quiet=2)
    elif paths := [str(folder) for folder in folders]:
        # Each version has bytecode of its own. Files that do not compile are for the stub to tell.
        command = [str(python.path), "-I", "-m", "compileall", "-qq", *paths]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _place(source: Path, target: Path) -> None:
    """Hard-link an artefact or a release (engines are large); copy what people edit in place."""
    unchanging = STATE_FOLDER in source.parts or not source.stat().st_mode & _WRITABLE
    if not unchanging or not linked(source, target):
        shutil.copyfile(source, target)


def linked(source: Path, target: Path) -> bool:
    """Whether `target` is now a further name of the file."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        return False
    return True


def _publish_all(plan: Plan, staging: Path, repository: Path) -> tuple[str, ...]:
    changed = []
    for model in plan.models:
        new, old = staging / model.name, repository / model.name
        files, _ = entries = _entries(new)
        if entries != _entries(old) or any(_differ(new / name, old / name) for name in files):
            _swap_in(staging, model.name, repository)
            changed.append(model.name)
    return tuple(changed)


def _swap_in(staging: Path, name: str, repository: Path) -> None:
    target, replaced = repository / name, staging / f"{name}.replaced"
    if target.exists():
        os.rename(target, replaced)
    try:
        os.rename(staging / name, target)
    except BaseException:
        if replaced.exists():
            os.rename(replaced, target)
        raise


def _entries(folder: Path) -> tuple[set[Path], set[Path]]:
    """Relative paths of files and of folders (an ensemble's version folder is empty).

    The bytecode that Triton's stubs leave behind does not count.
    """
    paths = {path.relative_to(folder) for path in folder.rglob("*")}
    ours = {path for path in paths if "__pycache__" not in path.parts}
    files = {path for path in ours if (folder / path).is_file()}
    return files, ours - files


def _differ(left: Path, right: Path) -> bool:
    return not left.samefile(right) and not filecmp.cmp(left, right, shallow=False)


def _refuse_foreign(repository: Path, plan: Plan) -> None:
    for model in plan.models:
        folder = repository / model.name
        if folder.exists() and not is_ours(folder):
            raise RepositoryError(
                f"{folder} exists and was not rendered by tritonctl",
                remedy="move it away, or choose another model name or model_repository",
            )


def _remove_dropped(project: Project, plan: Plan, staging: Path) -> tuple[str, ...]:
    """Remove what an earlier rendering of this project left and the project no longer names."""
    names = [model.name for model in plan.models]
    others = [name for name in rendered_names(project) if name not in names]
    # Of a choice of models nothing is known about the others: they stay.
    kept = others if project.chosen is not None else []
    dropped = [name for name in others if name not in kept]
    # Ensembles were published last, so backwards they go first.
    removed = [name for name in reversed(dropped) if is_ours(project.repository / name)]
    for name in removed:
        # Moved out whole: a removal that is killed half-way would leave half a model.
        os.rename(project.repository / name, staging / f"{name}.removed")
    record = {"repository": str(project.repository), "models": [*kept, *names]}
    write_atomically(record_of(project), json.dumps(record, indent=2))
    return tuple(removed)
