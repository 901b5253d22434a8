# SPDX-License-Identifier: Apache-2.0
"""task/task.json of an artefact: facts that the builder read in the checkpoint. No dependencies.

An absent key has the default below; an unknown key is an error.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from textlib.errors import ModelConfigurationError

SCHEMA = "tritonctl.task/1"
FILE = "task.json"
TRUNCATE_RIGHT, TRUNCATE_LEFT = "right", "left"

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class TextSettings:
    """How a text becomes the graph's inputs."""

    max_seq_len: int  # maximum tokens of a row, special tokens included
    pad_id: int
    inputs: Sequence[str]  # the graph's, of input_ids, attention_mask, token_type_ids
    lower_case: bool = False
    pair: bool = False  # every item has two texts
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts to prepend, by name
    default_prompt: str | None = None
    include_prompt: bool = True  # pool the prompt's tokens too
    truncation_side: str = TRUNCATE_RIGHT


@dataclass(frozen=True)
class EmbeddingInfo:
    """The model's vectors."""

    dimension: int
    normalized: bool  # their length is 1


@dataclass(frozen=True)
class TaskDefinition:
    """The task of a checkpoint."""

    task: str
    text: TextSettings | None = None
    image: Mapping[str, Any] | None = None  # settings of the image processor
    labels: Sequence[str] = ()
    activation: str = "none"  # applied to the scores inside the graph
    embedding: EmbeddingInfo | None = None
    reference: Mapping[str, str] = field(default_factory=dict)  # library of the proof


def read_task(folder: Path) -> TaskDefinition:
    """Read the task of an artefact's folder `task/`. Raises ModelConfigurationError."""
    file = folder / FILE
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _malformed(file, str(error)) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise _malformed(file, f"its schema is not {SCHEMA}")
    record = {key: value for key, value in record.items() if key != "schema"}
    for key, kind in (("text", TextSettings), ("embedding", EmbeddingInfo)):
        if record.get(key) is not None:
            record[key] = _parse_record(kind, record[key], file, f"{key}.")
    task = _parse_record(TaskDefinition, record, file, "")
    _check(task, file)
    return task


def text_settings(task: TaskDefinition) -> TextSettings:
    """Return the text settings of a task; raises ModelConfigurationError if it has none."""
    if task.text is None:
        raise ModelConfigurationError(f"the task {task.task} reads no text: {FILE} has no `text`.")
    return task.text


def _check(task: TaskDefinition, file: Path) -> None:
    text = task.text
    if text is None:
        return
    if text.default_prompt is not None and text.default_prompt not in text.prompts:
        raise _malformed(file, f"text.prompts lacks text.default_prompt `{text.default_prompt}`")
    if text.truncation_side not in (TRUNCATE_LEFT, TRUNCATE_RIGHT):
        raise _malformed(file, f"text.truncation_side is `{text.truncation_side}`")


def _parse_record(kind: type[_Record], values: Any, file: Path, prefix: str) -> _Record:
    if not isinstance(values, dict):
        raise _malformed(file, f"{prefix.rstrip('.')} is not an object")
    field_names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    unknown_keys = sorted(values.keys() - field_names)
    if unknown_keys:
        raise _malformed(file, f"unknown key {prefix}{unknown_keys[0]}")
    try:
        return kind(**values)
    except TypeError as error:  # a key without a default is missing
        raise _malformed(file, f"{prefix or 'the file'}: {error}") from error


def _malformed(file: Path, problem: str) -> ModelConfigurationError:
    return ModelConfigurationError(
        f"{file} cannot be read: {problem}. Another version wrote it, or it is damaged; run "
        "`tritonctl build --force` again."
    )
