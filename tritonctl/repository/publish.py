# SPDX-License-Identifier: Apache-2.0
"""Publishes a plan as a model repository: stage, verify, rename model by model.

Triton must never see half a model and takes every sub-folder for a model. Staging therefore uses a
hidden sibling folder on the same file system. Composing models are published before ensembles.
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

from tritonctl.engines.builds.engine import Artefact
from tritonctl.errors import RepositoryError
from tritonctl.host.files import as_host_error, cache_folder, exclusive, write_atomically
from tritonctl.host.interpreters import current_interpreter, find_interpreter
from tritonctl.host.progress import Progress
from tritonctl.project.schema import STATE_FOLDER, Project
from tritonctl.repository.checking import check_staged_repository
from tritonctl.repository.contents import CONFIG, is_rendered, render_record, rendered_names
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.server_environment import PYTHONS
from tritonctl.store.folders import hard_link, publish_folder, staging_folder

_WRITABLE = 0o222


@dataclass(frozen=True)
class RenderedRepository:
    """The result of a rendering; names of models are in publishing order."""

    repository: Path
    plan: RepositoryPlan
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


def render(
    project: Project, progress: Progress, artefacts: Mapping[str, Artefact] | None = None
) -> RenderedRepository:
    """Render a project's model repository. Equal input leaves every byte unchanged.

    `artefacts` are the engines, if the caller has already resolved them. Raises RepositoryError,
    ConfigurationError or HostError; the repository then still has only complete models.
    """
    plan = plan_repository(project, artefacts)
    repository = project.repository
    with exclusive(_lock(repository), progress, "render"):
        _refuse_foreign(repository, plan)
        with progress.step(f"Rendering {repository.name}"), _staging(repository) as staging:
            for model in plan.models:
                assemble(model, staging / model.name)
            if plan.models:  # False if only hand-written models are selected
                check_staged_repository(
                    staging, project, progress, _edited_sources(plan, repository)
                )
            changed = _publish_all(plan, staging, repository)
            removed = _remove_dropped(project, plan, staging)
    unchanged = tuple(m.name for m in plan.models if m.name not in changed)
    return RenderedRepository(repository, plan, changed, unchanged, removed)


@contextmanager
def hold_unchanged(rendered: RenderedRepository, progress: Progress) -> Iterator[None]:
    """Lock the repository in its rendered state, so that no other process renders into it.

    Raises RepositoryError if another process has already changed it.
    """
    with exclusive(_lock(rendered.repository), progress, "render"):
        for model in rendered.plan.models:
            file = rendered.repository / model.name / CONFIG
            if not file.is_file() or file.read_text(encoding="utf-8") != model.config:
                raise RepositoryError(
                    f"another process has rendered {file}", remedy="run the command again"
                )
        yield


def _edited_sources(plan: RepositoryPlan, repository: Path) -> dict[str, Path]:
    """Return the source of each code file, by path in the repository."""
    return {
        f"{repository.name}/{model.name}/{model.version}/{place}": source
        for model in plan.models
        for source, place in model.files
        if STATE_FOLDER not in source.parts
    }


def _lock(repository: Path) -> Path:
    """Return the lock's path, outside the project: two projects may share a repository."""
    digest = hashlib.sha256(str(repository).encode()).hexdigest()
    return cache_folder() / "locks" / f"render-{digest[:16]}.lock"


@contextmanager
def _staging(repository: Path) -> Iterator[Path]:
    folder = repository.parent / f".{repository.name}.staging"
    with as_host_error(folder), staging_folder(folder) as staging:
        repository.mkdir(exist_ok=True)
        yield staging


def assemble(model: PlannedModel, folder: Path) -> None:
    """Write a planned model to a new folder. Raises OSError."""
    (folder / model.version).mkdir(parents=True)
    (folder / CONFIG).write_text(model.config, encoding="utf-8")
    for source, relative in model.files:
        target = folder / model.version / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        _place_file(source, target)


def compile_python(folders: Iterable[Path]) -> None:
    """Write the bytecode of models' Python files, as Triton's stubs otherwise do on loading.

    Triton reloads a model whose folder has changed, also as a step of an ensemble that is loaded,
    and tritonserver 2.51 corrupts its heap when it replaces such a step.
    """
    python = find_interpreter(PYTHONS, shared=True)
    if python is None or python.version == current_interpreter().version:
        for folder in folders:
            compileall.compile_dir(folder, quiet=2)
    elif paths := [str(folder) for folder in folders]:
        # Bytecode depends on the Python version. The stub reports files that do not compile.
        command = [str(python.path), "-I", "-m", "compileall", "-qq", *paths]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _place_file(source: Path, target: Path) -> None:
    """Hard-link files of artefacts and releases (engines are large); copy editable files."""
    is_immutable = STATE_FOLDER in source.parts or not source.stat().st_mode & _WRITABLE
    if not is_immutable or not hard_link(source, target):
        shutil.copyfile(source, target)


def _publish_all(plan: RepositoryPlan, staging: Path, repository: Path) -> tuple[str, ...]:
    changed = []
    for model in plan.models:
        new, old = staging / model.name, repository / model.name
        files, _ = entries = _entries(new)
        if entries != _entries(old) or any(_differ(new / name, old / name) for name in files):
            publish_folder(new, old)
            changed.append(model.name)
    return tuple(changed)


def _entries(folder: Path) -> tuple[set[Path], set[Path]]:
    """Return relative paths of files and of folders (an ensemble's version folder is empty).

    Bytecode of Triton's stubs is ignored.
    """
    paths = {path.relative_to(folder) for path in folder.rglob("*")}
    content = {path for path in paths if "__pycache__" not in path.parts}
    files = {path for path in content if (folder / path).is_file()}
    return files, content - files


def _differ(first: Path, second: Path) -> bool:
    return not first.samefile(second) and not filecmp.cmp(first, second, shallow=False)


def _refuse_foreign(repository: Path, plan: RepositoryPlan) -> None:
    for model in plan.models:
        folder = repository / model.name
        if folder.exists() and not is_rendered(folder):
            raise RepositoryError(
                f"{folder} exists and was not rendered by tritonctl",
                remedy="move it away, or choose another model name or model_repository",
            )


def _remove_dropped(project: Project, plan: RepositoryPlan, staging: Path) -> tuple[str, ...]:
    """Remove models of an earlier rendering that the project no longer has; return their names."""
    names = [model.name for model in plan.models]
    unplanned = [name for name in rendered_names(project) if name not in names]
    # With a selection of models, all others stay.
    retained = unplanned if project.chosen is not None else []
    dropped = [name for name in unplanned if name not in retained]
    # Reversed publishing order: ensembles before their steps.
    removed = [name for name in reversed(dropped) if is_rendered(project.repository / name)]
    for name in removed:
        # Rename first: a killed deletion must not leave half a model.
        os.rename(project.repository / name, staging / f"{name}.removed")
    record = {"repository": str(project.repository), "models": [*retained, *names]}
    write_atomically(render_record(project), json.dumps(record, indent=2))
    return tuple(removed)
