# SPDX-License-Identifier: Apache-2.0
"""What a plan of a task has beside it: the parts that its export left. Standard library only."""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib import artefact
from buildlib.problems import BuildError, read_json_object
from buildlib.request import Limits, Request
from network import Network
from profiles import token_profiles
from taskcompile.task import FILE
from taskproof.figures import INT8_STATIC

# What reads texts and images there: requirements.txt.
_PROOF = ("numpy", "PIL", "tokenizers")
_AGAIN = "Make it again: tritonctl build --force."
# Tokens of the run that a profile is fastest at, where engine.max_num_tokens does not say it.
_TOKENS = 4096
_BETTER = {
    "fp32": "Report it, with build.log.",
    "fp16": "Set engine.precision to fp32.",
    "int8": "Set engine.precision to fp16, or give more and better engine.calibration.data.",
}


@dataclass(frozen=True)
class TaskParts:
    """`source`: the artefact of the export. `text`: of task.json, None for a task of images."""

    source: Path
    text: dict[str, Any] | None
    labels: list[str]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Of the artefact, besides the plan."""
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

    @staticmethod
    def column(precision: str) -> str:
        """Of the bounds: int8 here is always calibrated."""
        return INT8_STATIC if precision == "int8" else precision

    @staticmethod
    def remedy(precision: str) -> str:
        """What to do about a plan that is too far from its reference."""
        return f"{_BETTER[precision]} Or move a bound with engine.options.bounds."


def read_parts(request: Request) -> TaskParts | None:
    """The parts of a task; None for a graph of its own tensors.

    Raises:
        BuildError: the stage before has left none.
    """
    if request.task is None:
        return None
    if request.source is None:
        raise BuildError(
            f"the task {request.task} is compiled of what the stage export leaves, and the request "
            "names no source",
            remedy="Run the build through tritonctl, which runs that stage first.",
        )
    file = request.source / artefact.TASK / FILE
    record = read_json_object(file, remedy=_AGAIN)
    text = record.get("text")
    _check_libraries()
    if record.get("task") != request.task or not isinstance(text, dict | None):
        raise BuildError(f"{file} is of another task than {request.task}", remedy=_AGAIN)
    return TaskParts(request.source, text, [str(label) for label in record.get("labels", ())])


def _check_libraries() -> None:
    """Raise BuildError where the proof could not run: after an hour of compiling is too late."""
    missing = [name for name in _PROOF if importlib.util.find_spec(name) is None]
    if missing:
        raise BuildError(
            f"the proof of a task needs {', '.join(missing)}, which this Python does not have",
            remedy="Build with runner venv, or in an image of the target's with "
            "`pip install -r builders/tensorrt/requirements.txt` (engine.target.image).",
        )


def profiles_of(network: Network, parts: TaskParts | None, limits: Limits) -> list[dict[str, Any]]:
    """Profiles where the project gives none: of texts by their tokens, of images by the batch."""
    if parts is None or parts.text is None:
        return []
    names = [tensor.name for tensor in network.inputs]
    tokens = limits.max_num_tokens or _TOKENS
    return token_profiles(names, limits.max_batch_size, parts.text["max_seq_len"], tokens)


def copy_parts(parts: TaskParts) -> None:
    """Copy the tokenizer and task.json into the working directory."""
    for folder in (artefact.TOKENIZER, artefact.TASK):
        if (parts.source / folder).is_dir():
            shutil.copytree(parts.source / folder, folder, dirs_exist_ok=True)
