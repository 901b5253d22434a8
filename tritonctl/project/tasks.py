# SPDX-License-Identifier: Apache-2.0
"""Tasks: the files of `ensembles/`, a project's own among them, and whose engine each takes."""

from __future__ import annotations

from pathlib import Path

from tritonctl.errors import ConfigurationError, choices
from tritonctl.host import bundled
from tritonctl.project.yaml import YamlSource, read_yaml

_FOLDER = "ensembles"
# Builders make one kind of engine for each of these, and need not be told.
_BY_TENSORS = ("text_generation", "tensors")


def task_names(project_root: Path | None = None) -> list[str]:
    """The tasks that there are: those of the project and those that ship, sorted."""
    return bundled.names(_FOLDER, ".yaml", project_root)


def task_source(task: str, project_root: Path | None = None) -> YamlSource:
    """The file of a task. Raises ConfigurationError for an unknown one, or one that is no YAML."""
    known = task_names(project_root)
    if task not in known:
        raise ConfigurationError(f"unknown task `{task}`", remedy=choices(task, known, "tasks:"))
    return read_yaml(bundled.find(f"{_FOLDER}/{task}.yaml", project_root))


def own_file(task: str, project_root: Path) -> Path | None:
    """The project's own file of a task that tritonctl has not, where it has one."""
    file = project_root / _FOLDER / f"{task}.yaml"
    return file if file.is_file() and task not in task_names() else None


def engine_task(task: str, project_root: Path | None = None) -> str:
    """The task whose engine a task's graph takes: `engine_task` of its file, or the task itself.

    A task without a file is itself: whoever needs the file says that there is none. Raises
    ConfigurationError where the file is no YAML.
    """
    if task not in task_names(project_root):
        return task
    wanted = task_source(task, project_root).data.get("engine_task")
    return wanted if isinstance(wanted, str) else task


def asked_task(task: str, project_root: Path | None = None) -> str | None:
    """The task that a builder is told for a model's, None where it need not be."""
    asked = engine_task(task, project_root)
    return None if asked in _BY_TENSORS else asked
