# SPDX-License-Identifier: Apache-2.0
"""The user's own set (`evaluation` of the request): read and checked. Standard library only."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from buildlib.problems import BuildError
from buildlib.request import EvaluationRequest
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, Task

_PAIRS = '{"query": "...", "text": "the text that answers it"}'
_LABELLED = '{"text_input": "...", "label": "..."}'


@dataclass(frozen=True)
class OwnSet:
    """Its lines: queries and the texts that answer them, or texts and their labels."""

    first: list[str]
    second: list[str]


def read_set(asked: EvaluationRequest, task: Task) -> OwnSet:
    """The lines of the set, the first `max_prompts` of them.

    Raises:
        BuildError: the task has no measure, a line is malformed, or a label is not the model's.
    """
    if task.name not in (EMBEDDING, RERANK, CLASSIFICATION):
        raise BuildError(
            f"evaluation is set, and the task {task.name} has no measure for it",
            remedy="Remove evaluation; the proof compares with the reference library all the same.",
        )
    labelled = task.name == CLASSIFICATION
    keys = ("text_input", "label") if labelled else ("query", "text")
    lines = [
        _line(f"{asked.prompts}:{number}", line, keys, _LABELLED if labelled else _PAIRS)
        for number, line in islice(_numbered(asked.prompts), asked.max_prompts)
    ]
    if not lines:
        raise BuildError(f"{asked.prompts}: holds no lines", remedy="Write one object a line.")
    own = OwnSet([first for first, _ in lines], [second for _, second in lines])
    unknown = sorted(set(own.second) - set(task.labels)) if labelled else []
    if unknown:
        raise BuildError(
            f"{asked.prompts}: has the label {unknown[0]!r}, which the model does not have",
            remedy=f"Use its labels: {', '.join(task.labels):.400}.",
        )
    return own


def _numbered(file: Path) -> list[tuple[int, str]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{file}: the evaluation set cannot be read: {error}",
            remedy="Set evaluation.prompts to a UTF-8 file with one JSON object a line.",
        ) from error
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _line(where: str, line: str, keys: tuple[str, str], example: str) -> tuple[str, str]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise BuildError(
            f"{where}: is not valid JSON: {error.msg}", remedy=f"Write the line as {example}."
        ) from error
    values = [entry.get(key) if isinstance(entry, dict) else None for key in keys]
    if not all(isinstance(value, str) and value for value in values):
        raise BuildError(
            f"{where}: needs {keys[0]} and {keys[1]}", remedy=f"Write the line as {example}."
        )
    return str(values[0]), str(values[1])
