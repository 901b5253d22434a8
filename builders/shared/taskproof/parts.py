# SPDX-License-Identifier: Apache-2.0
"""What an exported task has beside its graph: the parts that go on into what is made of it.

Standard library only.
"""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib import artefact
from buildlib.problems import BuildError, read_json_object
from buildlib.request import Request
from taskcompile.task import FILE

# What the proof reads texts and images with.
_PROOF = ("numpy", "PIL", "tokenizers")
_AGAIN = "Make it again: tritonctl build --force."


@dataclass(frozen=True)
class TaskParts:
    """`source`: the artefact of the export. `text`: of task.json, None for a task of images."""

    source: Path
    text: dict[str, Any] | None
    labels: list[str]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Of the artefact, besides the engine."""
        tokenizer = () if self.text is None else (artefact.TOKENIZER,)
        return (*tokenizer, artefact.TASK, artefact.PROOF)

    @property
    def lengths(self) -> dict[str, Any]:
        """Of the limits: tokens of a text; null for images."""
        longest = None if self.text is None else self.text["max_seq_len"]
        return {"max_seq_len": longest, "max_input_len": longest}

    @property
    def facts(self) -> dict[str, Any]:
        """What serving needs to know besides the tensors."""
        return {"labels": self.labels} if self.labels else {}


def read_parts(request: Request, *, remedy: str) -> TaskParts:
    """The parts of a request's task. `remedy`: where the proof could not run, how it would.

    Raises:
        BuildError: the stage before has left none, or a library of the proof is not here: after
            an hour of compiling is too late.
    """
    if request.source is None:
        raise BuildError(
            f"the task {request.task} is compiled of what the stage export leaves, and the request "
            "names no source",
            remedy="Run the build through tritonctl, which runs that stage first.",
        )
    file = request.source / artefact.TASK / FILE
    record = read_json_object(file, remedy=_AGAIN)
    text = record.get("text")
    missing = [name for name in _PROOF if importlib.util.find_spec(name) is None]
    if missing:
        raise BuildError(
            f"the proof of a task needs {', '.join(missing)}, which this Python does not have",
            remedy=remedy,
        )
    if record.get("task") != request.task or not isinstance(text, dict | None):
        raise BuildError(f"{file} is of another task than {request.task}", remedy=_AGAIN)
    return TaskParts(request.source, text, [str(label) for label in record.get("labels", ())])


def copy_parts(parts: TaskParts) -> None:
    """Copy the tokenizer and task.json into the working directory."""
    for folder in (artefact.TOKENIZER, artefact.TASK):
        if (parts.source / folder).is_dir():
            shutil.copytree(parts.source / folder, folder, dirs_exist_ok=True)
