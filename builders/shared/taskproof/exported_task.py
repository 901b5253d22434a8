# SPDX-License-Identifier: Apache-2.0
"""The parts of an exported task that a compiled engine takes over. Standard library only."""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasklib.task_file import FILE

from buildlib import artefact
from buildlib.problems import BuildError, read_json_object
from buildlib.request_types import BuilderRequest

# The modules that the proof reads texts and images with.
_PROOF_MODULES = ("numpy", "PIL", "tokenizers")
_REBUILD = "Export again: tritonctl build --force."


@dataclass(frozen=True)
class ExportedTask:
    """An exported task without its graph."""

    source: Path  # the artefact of the export
    text: dict[str, Any] | None  # of task.json; None for an image task
    labels: list[str]

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that the artefact has in addition to the engine."""
        tokenizer = () if self.text is None else (artefact.TOKENIZER,)
        return (*tokenizer, artefact.TASK, artefact.PROOF)

    @property
    def lengths(self) -> dict[str, Any]:
        """The lengths of the result's `limits`: tokens of a text, or null for images."""
        max_tokens = None if self.text is None else self.text["max_seq_len"]
        return {"max_seq_len": max_tokens, "max_input_len": max_tokens}

    @property
    def facts(self) -> dict[str, Any]:
        """The task's entries of the result's `runtime`."""
        return {"labels": self.labels} if self.labels else {}


def read_exported_task(request: BuilderRequest, *, remedy: str) -> ExportedTask:
    """Return the exported task of a request. `remedy`: for an environment that lacks a module.

    Raises:
        BuildError: the export stage has left no task, or a module of the proof is missing. After
            an hour of compiling is too late.
    """
    if request.source is None:
        raise BuildError(
            f"the task {request.task} is compiled from the result of the stage export, and the "
            "request names no source",
            remedy="Run the build through tritonctl, which runs that stage first.",
        )
    file = request.source / artefact.TASK / FILE
    record = read_json_object(file, remedy=_REBUILD)
    text = record.get("text")
    missing = [name for name in _PROOF_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise BuildError(
            f"the proof of a task needs {', '.join(missing)}, which this Python does not have",
            remedy=remedy,
        )
    if record.get("task") != request.task or not isinstance(text, dict | None):
        raise BuildError(f"{file} is of another task than {request.task}", remedy=_REBUILD)
    return ExportedTask(request.source, text, [str(label) for label in record.get("labels", ())])


def copy_task_folders(exported: ExportedTask) -> None:
    """Copy the tokenizer and task.json into the working directory."""
    for folder in (artefact.TOKENIZER, artefact.TASK):
        if (exported.source / folder).is_dir():
            shutil.copytree(exported.source / folder, folder, dirs_exist_ok=True)
