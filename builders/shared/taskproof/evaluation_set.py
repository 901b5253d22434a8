# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the evaluation set of a project. Standard library only."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from buildlib.problems import BuildError
from buildlib.request_types import RequestedEvaluation
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, TextTask

_PAIRS = '{"query": "...", "text": "the text that answers it"}'
_LABELLED = '{"text_input": "...", "label": "..."}'


@dataclass(frozen=True)
class EvaluationSet:
    """The lines of an evaluation set."""

    inputs: list[str]  # queries, or texts to classify
    targets: list[str]  # the texts that answer the queries, or the labels


def read_evaluation_set(request: RequestedEvaluation, task: TextTask) -> EvaluationSet:
    """Return the first `max_prompts` lines of the set.

    Raises:
        BuildError: the task has no measure, a line is malformed, or the model lacks a label.
    """
    if task.name not in (EMBEDDING, RERANK, CLASSIFICATION):
        raise BuildError(
            f"evaluation is set, and the task {task.name} has no measure for it",
            remedy="Remove evaluation; the proof compares with the reference library all the same.",
        )
    labelled = task.name == CLASSIFICATION
    keys = ("text_input", "label") if labelled else ("query", "text")
    lines = [
        _parse_line(f"{request.prompts}:{number}", line, keys, _LABELLED if labelled else _PAIRS)
        for number, line in islice(_numbered_lines(request.prompts), request.max_prompts)
    ]
    if not lines:
        raise BuildError(f"{request.prompts}: holds no lines", remedy="Write one object a line.")
    evaluation_set = EvaluationSet([first for first, _ in lines], [second for _, second in lines])
    unknown_labels = sorted(set(evaluation_set.targets) - set(task.labels)) if labelled else []
    if unknown_labels:
        raise BuildError(
            f"{request.prompts}: has the label {unknown_labels[0]!r}, which the model does not "
            "have",
            remedy=f"Use its labels: {', '.join(task.labels):.400}.",
        )
    return evaluation_set


def _numbered_lines(file: Path) -> list[tuple[int, str]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{file}: the evaluation set cannot be read: {error}",
            remedy="Set evaluation.prompts to a UTF-8 file with one JSON object a line.",
        ) from error
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _parse_line(location: str, line: str, keys: tuple[str, str], example: str) -> tuple[str, str]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise BuildError(
            f"{location}: is not valid JSON: {error.msg}", remedy=f"Write the line as {example}."
        ) from error
    values = [entry.get(key) if isinstance(entry, dict) else None for key in keys]
    if not all(isinstance(value, str) and value for value in values):
        raise BuildError(
            f"{location}: needs {keys[0]} and {keys[1]}", remedy=f"Write the line as {example}."
        )
    return str(values[0]), str(values[1])
