# SPDX-License-Identifier: Apache-2.0
"""The inputs of a proof of texts, read by the served steps, and what a graph makes of them.

Needs numpy and tokenizers, and no reference library: its answers are given.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.text_encoding import EncodedText

from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, Task
from taskproof.answers import Answer, alone_and_together, compared
from taskproof.cases import Case, cases_of
from taskproof.figures import HIGHER, Figure
from taskproof.served import Run, Served

SCHEMA = "tritonctl.proof/1"
FILE = "cases.json"


@dataclass(frozen=True)
class Inputs:
    """The cases, their rows, and what the reference answers to each."""

    steps: Served
    cases: Sequence[Case]
    rows: Sequence[EncodedText]
    expected: Sequence[Answer]


def read_cases(steps: Served) -> tuple[list[Case], list[EncodedText]]:
    """The cases of the task and their rows, without those that the tokenizer makes no token of."""
    wanted = cases_of(steps.task)
    made = zip(wanted, steps.rows(wanted), strict=True)
    kept = [(case, row) for case, row in made if row is not None]
    return [case for case, _ in kept], [row for _, row in kept]


def figures_of(
    inputs: Inputs,
    run: Run,
    precision: str,
    moved: dict[str, float],
    *,
    either_side: bool,
) -> list[Figure]:
    """How far a graph's answers are from the reference's, alone and in padded batches.

    `either_side`: a row's padding may stand in front of it, too.
    """
    task = inputs.steps.task
    got = inputs.steps.answers(inputs.rows, inputs.cases, run)
    figures = compared(task, inputs.expected, got, precision, moved)
    mixed = [
        (row, a.values) for row, a in zip(inputs.rows, got, strict=True) if a.values is not None
    ]
    alone = [values for _, values in mixed]
    batches = []
    for left in (False, True) if either_side else (False,):
        together = inputs.steps.together([row for row, _ in mixed], run, left=left)
        batches.append(alone_and_together(task, alone, together, precision, moved))
    return [*figures, min(batches, key=_goodness)]


def _goodness(one: Figure) -> float:
    return one.value if one.better == HIGHER else -one.value


def write_cases(folder: Path, inputs: Inputs, figures: Sequence[Figure]) -> None:
    """Inputs and the reference's answers, for whoever asks the served model the same."""
    task = inputs.steps.task
    cases = [
        {"input": _input(task, case), "expected": _expected(task, row, answer)}
        for case, row, answer in zip(inputs.cases, inputs.rows, inputs.expected, strict=True)
    ]
    bounds = {one.name: one.bound for one in figures}
    record = {"schema": SCHEMA, "task": task.name, "bounds": bounds, "cases": cases}
    (folder / FILE).write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _input(task: Task, case: Case) -> dict[str, str]:
    """By the names of the public tensors."""
    first, second = ("query", "text_input") if task.name == RERANK else ("text_input", "text_pair")
    given = {first: case.text, second: case.pair, "prompt_name": case.prompt}
    return {name: text for name, text in given.items() if text is not None}


def _expected(task: Task, row: EncodedText, answer: Answer) -> dict[str, Any]:
    """By the names of the public tensors; the values are absent for a very long text."""
    made: dict[str, Any] = {
        "num_input_tokens": len(answer.ids),
        "truncated": row.truncated,
    }
    if answer.values is None:
        return made
    if task.name == EMBEDDING:
        return made | {"embedding": _short(answer.values)}
    if task.name == RERANK:
        return made | {"score": _short(answer.values)}
    if task.name == CLASSIFICATION:
        order = np.argsort(-answer.values, kind="stable")
        labels = [task.labels[at] for at in order]
        return made | {"label": labels, "score": _short(answer.values[order])}
    names = ("label", "start", "end")
    return made | {"entities": [dict(zip(names, one, strict=True)) for one in answer.entities]}


def _short(values: Any) -> list[float]:
    """As many digits as an fp32 has."""
    return [float(f"{value:.8g}") for value in values]
