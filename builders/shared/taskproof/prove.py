# SPDX-License-Identifier: Apache-2.0
"""The proof of a text task: the reference library against the served steps. Needs numpy.

First the conventions, in fp32 and with the bounds of fp32: the graph as it was exported answers as
the library does, and mistakes made on purpose are seen. Then what the precision has cost, with its
own bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from buildlib.program import say
from buildlib.request import Request
from taskcompile.task import Task
from taskproof.controls import Scene, controls
from taskproof.evaluation import evaluate
from taskproof.figures import FP32, report, require
from taskproof.inputs import Inputs, figures_of, read_cases, write_cases
from taskproof.kept import keep_answers
from taskproof.reference import Reference, version_of
from taskproof.served import Run, served

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


def prove(subject: Subject, folder: Path, *, remedy: str, keep: bool = False) -> dict[str, Any]:
    """The `proof` of the build result; its cases are written into `folder`.

    `keep`: the reference's answers, too, for the proof of what is compiled of the engine.

    Raises:
        BuildError: the engine does not answer as the reference does, or a mistake is not seen.
    """
    task, checkpoint = subject.task, subject.request.checkpoint
    reference = Reference(task, subject.request)
    name = f"{task.library} {version_of(task)}"
    steps = served(task, checkpoint)
    cases, rows = read_cases(steps)
    inputs = Inputs(steps, cases, rows, reference.answers(cases))
    _require_numbers(inputs, checkpoint, name)
    _require_tokens(inputs, checkpoint, name)
    figures = figures_of(inputs, subject.plain, FP32, {}, either_side=subject.either_side)
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
    figures = figures_of(
        inputs,
        subject.engine,
        subject.precision,
        subject.bounds,
        either_side=subject.either_side,
    )
    say(f"{', '.join(f'{one.name} {one.value:.6g}' for one in figures)}; as {name}")
    require(figures, subject.precision, name, remedy=remedy)
    own = evaluate(subject.request, task, inputs.steps, reference.values, subject.engine)
    write_cases(folder, inputs, figures)
    made = report(task.name, name, len(inputs.cases), figures, seen, own)
    if keep:
        keep_answers(folder, inputs.expected, made, either_side=subject.either_side)
    return made


def _require_numbers(inputs: Inputs, checkpoint: Path, name: str) -> None:
    """Raise BuildError for a checkpoint that answers infinity or what is no number."""
    for case, answer in zip(inputs.cases, inputs.expected, strict=True):
        if answer.values is not None and not np.isfinite(answer.values).all():
            raise BuildError(
                f"{checkpoint}: {name} itself answers {case.text[:_SHOWN]!r} with no number",
                remedy="Its weights are damaged: download or save them again.",
            )


def _require_tokens(inputs: Inputs, checkpoint: Path, name: str) -> None:
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
