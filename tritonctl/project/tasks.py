# SPDX-License-Identifier: Apache-2.0
"""Tasks: files of `ensembles/`, shipped or a project's, and the engine that each uses."""

from __future__ import annotations

from pathlib import Path

from tritonctl.errors import ConfigurationError, choices
from tritonctl.host import bundled
from tritonctl.project.yaml import YamlSource, read_yaml

_FOLDER = "ensembles"
# The engine's tensors identify these tasks, so builders do not receive them.
_BY_TENSORS = ("text_generation", "tensors")


def task_names(project_root: Path | None = None) -> list[str]:
    """Return the sorted names of the project's and the shipped tasks."""
    return bundled.names(_FOLDER, ".yaml", project_root)


def task_source(task: str, project_root: Path | None = None) -> YamlSource:
    """Read the file of a task. Raises ConfigurationError for an unknown task or invalid YAML."""
    available = task_names(project_root)
    if task not in available:
        raise ConfigurationError(
            f"unknown task `{task}`", remedy=choices(task, available, "tasks:")
        )
    return read_yaml(bundled.find(f"{_FOLDER}/{task}.yaml", project_root))


def custom_task_file(task: str, project_root: Path) -> Path | None:
    """Return the project's file of a custom task; None for a shipped task or without a file."""
    file = project_root / _FOLDER / f"{task}.yaml"
    return file if file.is_file() and task not in task_names() else None


def engine_task(task: str, project_root: Path | None = None) -> str:
    """Return the task whose engine a task uses: `engine_task` of its file, or the task itself.

    A task without a file is returned as it is. Raises ConfigurationError for invalid YAML.
    """
    if task not in task_names(project_root):
        return task
    declared_task = task_source(task, project_root).data.get("engine_task")
    return declared_task if isinstance(declared_task, str) else task


def task_for_builder(task: str, project_root: Path | None = None) -> str | None:
    """Return the task to pass to a builder; None if the engine's tensors identify it."""
    task_of_engine = engine_task(task, project_root)
    return None if task_of_engine in _BY_TENSORS else task_of_engine
