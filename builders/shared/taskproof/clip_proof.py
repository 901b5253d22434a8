# SPDX-License-Identifier: Apache-2.0
"""The proof of CLIP's tower of texts: transformers against the served steps.

As for other texts, but for what CLIP is: it reads from left to right and takes the state at a
text's end, so what stands behind it, padding or not, changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from buildlib.program import say
from taskcompile.task import Task
from taskproof.answers import Answer, compared, read_alike
from taskproof.cases import Case
from taskproof.figures import FP32, Figure, caught, report, require
from taskproof.inputs import Inputs, figures_of, read_cases, write_cases
from taskproof.kept import keep_answers
from taskproof.served import Run, served

_REPORT = "The conventions differ, whatever the precision: report it with build.log."
_SMALLEST = 1e-12


@dataclass(frozen=True)
class ClipSubject:
    """What is proven. `precision`: a column of figures.py.

    `plain`: the exported graph in fp32; `engine`: what is served; `model`: the checkpoint in
    transformers; `bounds`: the user's own.
    """

    folder: Path
    task: Task
    precision: str
    plain: Run
    engine: Run
    model: Any
    bounds: dict[str, float]


def prove_clip(
    subject: ClipSubject, folder: Path, *, remedy: str, keep: bool = False
) -> dict[str, Any]:
    """The `proof` of the build result; its cases are written into `folder`.

    `keep`: the reference's answers, too, for the proof of what is compiled of the engine.

    Raises:
        BuildError: the engine does not answer as the reference does, or a mistake is not seen.
    """
    task, steps = subject.task, served(subject.task, subject.folder)
    name = f"transformers {transformers.__version__}"
    cases, rows = read_cases(steps)
    expected = _reference(subject, cases)
    inputs = Inputs(steps, cases, rows, expected)
    figures = figures_of(inputs, subject.plain, FP32, {}, either_side=False)
    require(figures, FP32, name, remedy=_REPORT)
    got = steps.answers(rows, cases, subject.plain)
    seen = []
    for mistake, broken in _mistakes(subject, cases, expected, got):
        seen.append(caught(mistake, broken))
        say(f"seen: {mistake} ({seen[-1].figure} {seen[-1].value:.6g})")
    figures = figures_of(
        inputs, subject.engine, subject.precision, subject.bounds, either_side=False
    )
    say(f"{', '.join(f'{one.name} {one.value:.6g}' for one in figures)}; as {name}")
    require(figures, subject.precision, name, remedy=remedy)
    write_cases(folder, inputs, figures)
    made = report(task.name, name, len(cases), figures, seen, None)
    if keep:
        keep_answers(folder, expected, made, either_side=False)
    return made


def _reference(subject: ClipSubject, cases: Sequence[Case]) -> list[Answer]:
    """Each text by itself: the tokenizer of transformers, then its model."""
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        subject.folder, local_files_only=True, model_max_length=subject.task.text.max_seq_len
    )
    answers = []
    for case in cases:
        tokens = tokenizer(case.text, truncation=True, return_tensors="pt")
        given = {name: tokens[name] for name in subject.task.text.inputs}
        with torch.inference_mode():
            vector = subject.model(**given).text_embeds[0].numpy()
        if subject.task.normalized:
            vector = vector / max(float(np.linalg.norm(vector)), _SMALLEST)
        answers.append(Answer(tuple(tokens["input_ids"][0].tolist()), None, vector))
    return answers


def _mistakes(
    subject: ClipSubject, cases: Sequence[Case], expected: Sequence[Answer], got: Sequence[Answer]
) -> Iterator[tuple[str, list[Figure]]]:
    task = subject.task

    def judged(values: Sequence[Any]) -> list[Figure]:
        changed = [Answer(one.ids, one.types, v) for one, v in zip(got, values, strict=True)]
        return compared(task, expected, changed, FP32)

    early = served(task, subject.folder, max_seq_len=task.text.max_seq_len - 1)
    shorter = [
        Answer((), None, None) if row is None else Answer(tuple(row.ids.tolist()), None, None)
        for row in early.rows(cases)
    ]
    yield "texts cut one token too early", [read_alike(expected, shorter)]
    values = [one.values for one in got]
    yield "the state of the first token", judged(_first_states(subject, expected))
    yield "the answer to another text", judged([*values[1:], values[0]])
    if task.normalized:
        yield "Normalize dropped", judged([2 * one for one in values])
    else:
        yield "Normalize added", judged([one / np.linalg.norm(one) for one in values])


def _first_states(subject: ClipSubject, expected: Sequence[Answer]) -> list[Any]:
    """What pooling at the beginning gives, as most encoders do it."""
    made = []
    for answer in expected:
        with torch.inference_mode():
            states = subject.model(input_ids=torch.tensor([answer.ids])).last_hidden_state
            vector = subject.model.text_projection(states[:, 0])[0].numpy()
        made.append(vector / np.linalg.norm(vector) if subject.task.normalized else vector)
    return made
