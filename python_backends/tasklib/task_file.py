# SPDX-License-Identifier: Apache-2.0
"""task/task.json of an artefact: what the builder read in the checkpoint's files. No dependencies.

A key that is absent has the default below; an unknown one is an error, never ignored.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from textlib.errors import ConfigurationError

SCHEMA = "tritonctl.task/1"
FILE = "task.json"
RIGHT, LEFT = "right", "left"

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class TextSettings:
    """How a text becomes the graph's inputs.

    max_seq_len: tokens of a row at most, special tokens included. inputs: the graph's, of
    input_ids, attention_mask, token_type_ids. pair: every item has two texts. prompts: texts put in
    front, by name; include_prompt false: their tokens are not pooled. truncation_side: the end that
    is cut off.
    """

    max_seq_len: int
    pad_id: int
    inputs: Sequence[str]
    lower_case: bool = False
    pair: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    truncation_side: str = RIGHT


@dataclass(frozen=True)
class EmbeddingFacts:
    """The vectors: their dimension, and whether their length is 1."""

    dimension: int
    normalized: bool


@dataclass(frozen=True)
class Task:
    """What the checkpoint is for. `image`: the settings of its image processor, as they stand.

    activation: what the graph has already applied to its scores. reference: the library that the
    served answers were compared with.
    """

    task: str
    text: TextSettings | None = None
    image: Mapping[str, Any] | None = None
    labels: Sequence[str] = ()
    activation: str = "none"
    embedding: EmbeddingFacts | None = None
    reference: Mapping[str, str] = field(default_factory=dict)


def read_task(folder: Path) -> Task:
    """The task of an artefact's folder `task/`. Raises ConfigurationError."""
    file = folder / FILE
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _malformed(file, str(error)) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise _malformed(file, f"its schema is not {SCHEMA}")
    record = {key: value for key, value in record.items() if key != "schema"}
    for key, kind in (("text", TextSettings), ("embedding", EmbeddingFacts)):
        if record.get(key) is not None:
            record[key] = _typed(kind, record[key], file, f"{key}.")
    task = _typed(Task, record, file, "")
    _check(task, file)
    return task


def text_settings(task: Task) -> TextSettings:
    """The text part of a task that reads texts. Raises ConfigurationError for another one."""
    if task.text is None:
        raise ConfigurationError(f"the task {task.task} reads no text: {FILE} has no `text`.")
    return task.text


def _check(task: Task, file: Path) -> None:
    text = task.text
    if text is None:
        return
    if text.default_prompt is not None and text.default_prompt not in text.prompts:
        raise _malformed(file, f"text.default_prompt `{text.default_prompt}` is no prompt")
    if text.truncation_side not in (LEFT, RIGHT):
        raise _malformed(file, f"text.truncation_side is `{text.truncation_side}`")


def _typed(kind: type[_Record], values: Any, file: Path, where: str) -> _Record:
    if not isinstance(values, dict):
        raise _malformed(file, f"{where.rstrip('.')} is no object")
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - known)
    if unknown:
        raise _malformed(file, f"unknown key {where}{unknown[0]}")
    try:
        return kind(**values)
    except TypeError as error:  # a key without a default is missing
        raise _malformed(file, f"{where or 'the file'}: {error}") from error


def _malformed(file: Path, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"{file} cannot be read: {problem}. Another version wrote it, or it is damaged; run "
        "`tritonctl build --force` again."
    )
