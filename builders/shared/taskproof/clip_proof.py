# SPDX-License-Identifier: Apache-2.0
"""The proof of CLIP's text tower: transformers against the steps used in serving.

CLIP reads from left to right and takes the state at the end of a text, so tokens behind the end,
padding included, change nothing. The rest is as for other texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from buildlib.program import print_line
from buildlib.result_types import BoundedFigure
from taskcompile.task import TextTask
from taskproof.answers import CaseAnswer, compare_answers, tokens_figure
from taskproof.figures import FP32, detect_mistake, proof_report, require_figures
from taskproof.stored_answers import store_answers
from taskproof.text_cases import TextCase
from taskproof.text_pipeline import TextGraph, text_pipeline
from taskproof.text_proof_data import TextProofData, encode_cases, text_figures, write_cases

_REPORT = "The conventions differ, whatever the precision: report it with build.log."
_SMALLEST = 1e-12


@dataclass(frozen=True)
class ClipSubject:
    """The engine to prove, and its reference."""

    folder: Path  # of the checkpoint
    task: TextTask
    precision: str  # a column of figures.py
    fp32_graph: TextGraph  # as exported
    engine: TextGraph
    model: Any  # the checkpoint in transformers
    bound_overrides: dict[str, float]  # from the project


def prove_clip(
    subject: ClipSubject, folder: Path, *, remedy: str, store_answers_too: bool = False
) -> dict[str, Any]:
    """Prove the engine, write the cases into `folder` and return the result's `proof`.

    `store_answers_too`: also store the reference's answers, for the proof of a compiled engine.

    Raises:
        BuildError: the engine does not answer like the reference, or the proof misses a mistake.
    """
    task, pipeline = subject.task, text_pipeline(subject.task, subject.folder)
    name = f"transformers {transformers.__version__}"
    cases, rows = encode_cases(pipeline)
    expected = _reference_answers(subject, cases)
    data = TextProofData(pipeline, cases, rows, expected)
    figures = text_figures(data, subject.fp32_graph, FP32, {}, allow_left_padding=False)
    require_figures(figures, FP32, name, remedy=_REPORT)
    actual = pipeline.answers(rows, cases, subject.fp32_graph)
    controls = []
    for mistake, broken in _negative_controls(subject, cases, expected, actual):
        controls.append(detect_mistake(mistake, broken))
        print_line(f"seen: {mistake} ({controls[-1].figure} {controls[-1].value:.6g})")
    figures = text_figures(
        data, subject.engine, subject.precision, subject.bound_overrides, allow_left_padding=False
    )
    print_line(f"{', '.join(f'{figure.name} {figure.value:.6g}' for figure in figures)}; as {name}")
    require_figures(figures, subject.precision, name, remedy=remedy)
    write_cases(folder, data, figures)
    proof = proof_report(task.name, name, len(cases), figures, controls, None)
    if store_answers_too:
        store_answers(folder, expected, proof, allow_left_padding=False)
    return proof


def _reference_answers(subject: ClipSubject, cases: Sequence[TextCase]) -> list[CaseAnswer]:
    """Run each text alone through transformers' tokenizer and model."""
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        subject.folder, local_files_only=True, model_max_length=subject.task.text.max_seq_len
    )
    answers = []
    for case in cases:
        tokens = tokenizer(case.text, truncation=True, return_tensors="pt")
        inputs = {name: tokens[name] for name in subject.task.text.inputs}
        with torch.inference_mode():
            vector = subject.model(**inputs).text_embeds[0].numpy()
        if subject.task.normalized:
            vector = vector / max(float(np.linalg.norm(vector)), _SMALLEST)
        answers.append(CaseAnswer(tuple(tokens["input_ids"][0].tolist()), None, vector))
    return answers


def _negative_controls(
    subject: ClipSubject,
    cases: Sequence[TextCase],
    expected: Sequence[CaseAnswer],
    actual: Sequence[CaseAnswer],
) -> Iterator[tuple[str, list[BoundedFigure]]]:
    task = subject.task

    def figures_for(values: Sequence[Any]) -> list[BoundedFigure]:
        changed = [
            CaseAnswer(answer.ids, answer.types, v)
            for answer, v in zip(actual, values, strict=True)
        ]
        return compare_answers(task, expected, changed, FP32)

    early = text_pipeline(task, subject.folder, max_seq_len=task.text.max_seq_len - 1)
    truncated = [
        CaseAnswer((), None, None)
        if row is None
        else CaseAnswer(tuple(row.ids.tolist()), None, None)
        for row in early.encode(cases)
    ]
    yield "texts cut one token too early", [tokens_figure(expected, truncated)]
    values = [entry.values for entry in actual]
    yield "the state of the first token", figures_for(_first_states(subject, expected))
    yield "the answer to another text", figures_for([*values[1:], values[0]])
    if task.normalized:
        yield "Normalize dropped", figures_for([2 * entry for entry in values])
    else:
        yield "Normalize added", figures_for([entry / np.linalg.norm(entry) for entry in values])


def _first_states(subject: ClipSubject, expected: Sequence[CaseAnswer]) -> list[Any]:
    """Return the vectors of the first token, which most encoders use."""
    vectors = []
    for answer in expected:
        with torch.inference_mode():
            states = subject.model(input_ids=torch.tensor([answer.ids])).last_hidden_state
            vector = subject.model.text_projection(states[:, 0])[0].numpy()
        vectors.append(vector / np.linalg.norm(vector) if subject.task.normalized else vector)
    return vectors
