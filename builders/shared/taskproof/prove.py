# SPDX-License-Identifier: Apache-2.0
"""The proof of a text task: the reference library against the served steps. Needs numpy.

First the conventions, in fp32 and with the bounds of fp32: the graph as it was exported answers as
the library does, and mistakes made on purpose are seen. Then what the precision has cost, with its
own bounds.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.text_encoding import EncodedText

from buildlib.problems import BuildError
from buildlib.program import say
from buildlib.request import Request
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, Task
from taskproof.answers import Answer, alone_and_together, compared
from taskproof.cases import Case, cases_of
from taskproof.controls import Scene, controls
from taskproof.evaluation import evaluate
from taskproof.figures import FP32, HIGHER, Figure, report, require
from taskproof.reference import Reference, version_of
from taskproof.served import Run, Served, served

SCHEMA = "tritonctl.proof/1"
FILE = "cases.json"
_REPORT = "The conventions differ, whatever the precision: report it with build.log."
_SHOWN = 60  # characters of a text in a message


@dataclass(frozen=True)
class Subject:
    """What is proven. `precision`: a column of figures.py.

    `plain`: the exported graph in fp32; `engine`: what is served; `changed`: the graph of another
    task on the same weights. `either_side`: a row's padding may stand in front of it. `bounds`: the
    user's own.
    """

    request: Request
    task: Task
    precision: str
    plain: Run
    engine: Run
    changed: Callable[[Task], Run]
    either_side: bool
    bounds: dict[str, float]


@dataclass(frozen=True)
class _Inputs:
    """What both sides answer, and what the reference does."""

    steps: Served
    cases: Sequence[Case]
    rows: Sequence[EncodedText]
    expected: Sequence[Answer]


def prove(subject: Subject, folder: Path, *, remedy: str) -> dict[str, Any]:
    """The `proof` of the build result; its cases are written into `folder`.

    Raises:
        BuildError: the engine does not answer as the reference does, or a mistake is not seen.
    """
    task, checkpoint = subject.task, subject.request.checkpoint
    reference = Reference(task, subject.request)
    name = f"{task.library} {version_of(task)}"
    inputs = _inputs(task, served(task, checkpoint), reference)
    _require_numbers(inputs, checkpoint, name)
    _require_tokens(inputs, checkpoint, name)
    figures = _figures(subject, inputs, subject.plain, FP32, {})
    require(figures, FP32, name, remedy=_REPORT)
    scene = Scene(
        task=task,
        folder=checkpoint,
        steps=inputs.steps,
        cases=inputs.cases,
        rows=inputs.rows,
        expected=inputs.expected,
        plain=subject.plain,
        changed=subject.changed,
    )
    seen = controls(scene)
    figures = _figures(subject, inputs, subject.engine, subject.precision, subject.bounds)
    say(f"{', '.join(f'{one.name} {one.value:.6g}' for one in figures)}; as {name}")
    require(figures, subject.precision, name, remedy=remedy)
    own = evaluate(subject.request, task, inputs.steps, reference, subject.engine)
    _write_cases(folder / FILE, task, inputs, figures)
    return report(task.name, name, len(inputs.cases), figures, seen, own)


def _inputs(task: Task, steps: Served, reference: Reference) -> _Inputs:
    wanted = cases_of(task)
    rows = steps.rows(wanted)
    kept = [(case, row) for case, row in zip(wanted, rows, strict=True) if row is not None]
    cases = [case for case, _ in kept]
    return _Inputs(steps, cases, [row for _, row in kept], reference.answers(cases))


def _require_numbers(inputs: _Inputs, checkpoint: Path, name: str) -> None:
    """Raise BuildError for a checkpoint that answers infinity or what is no number."""
    for case, answer in zip(inputs.cases, inputs.expected, strict=True):
        if answer.values is not None and not np.isfinite(answer.values).all():
            raise BuildError(
                f"{checkpoint}: {name} itself answers {case.text[:_SHOWN]!r} with no number",
                remedy="Its weights are damaged: download or save them again.",
            )


def _require_tokens(inputs: _Inputs, checkpoint: Path, name: str) -> None:
    """Raise BuildError for the first text that the served tokenizer reads otherwise."""
    for case, row, want in zip(inputs.cases, inputs.rows, inputs.expected, strict=True):
        ids = tuple(row.ids.tolist())
        if ids == want.ids:
            continue
        pairs = enumerate(zip(ids, want.ids, strict=False))
        at = next(
            (at for at, (left, right) in pairs if left != right), min(len(ids), len(want.ids))
        )
        raise BuildError(
            f"{checkpoint / 'tokenizer.json'}: reads {case.text[:_SHOWN]!r} as {len(ids)} tokens, "
            f"and {name} as {len(want.ids)}; they part at token {at}",
            remedy="Save the tokenizer again as that library reads it: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        )


def _figures(
    subject: Subject, inputs: _Inputs, run: Run, precision: str, moved: dict[str, float]
) -> list[Figure]:
    got = inputs.steps.answers(inputs.rows, inputs.cases, run)
    figures = compared(subject.task, inputs.expected, got, precision, moved)
    mixed = [
        (row, a.values) for row, a in zip(inputs.rows, got, strict=True) if a.values is not None
    ]
    alone = [values for _, values in mixed]
    batches = []
    for left in (False, True) if subject.either_side else (False,):
        together = inputs.steps.together([row for row, _ in mixed], run, left=left)
        batches.append(alone_and_together(subject.task, alone, together, precision, moved))
    return [*figures, min(batches, key=_goodness)]


def _goodness(one: Figure) -> float:
    return one.value if one.better == HIGHER else -one.value


def _write_cases(file: Path, task: Task, inputs: _Inputs, figures: Sequence[Figure]) -> None:
    """Inputs and the reference's answers, for whoever asks the served model the same."""
    cases = [
        {"input": _input(task, case), "expected": _expected(task, row, answer)}
        for case, row, answer in zip(inputs.cases, inputs.rows, inputs.expected, strict=True)
    ]
    bounds = {one.name: one.bound for one in figures}
    record = {"schema": SCHEMA, "task": task.name, "bounds": bounds, "cases": cases}
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


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
