# SPDX-License-Identifier: Apache-2.0
"""The encoded texts of a proof, the reference's answers and the figures of a graph.

Needs numpy and tokenizers, but no reference library.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.text_encoding import EncodedText

from buildlib.result_types import BoundedFigure
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, TextTask
from taskproof.answers import CaseAnswer, batching_figure, compare_answers
from taskproof.figures import HIGHER
from taskproof.text_cases import TextCase, text_cases
from taskproof.text_pipeline import TextGraph, TextPipeline

SCHEMA = "tritonctl.proof/1"
FILE = "cases.json"


@dataclass(frozen=True)
class TextProofData:
    """The cases, their encoded rows and the reference's answers."""

    pipeline: TextPipeline
    cases: Sequence[TextCase]
    rows: Sequence[EncodedText]
    expected: Sequence[CaseAnswer]


def encode_cases(pipeline: TextPipeline) -> tuple[list[TextCase], list[EncodedText]]:
    """Return the cases of the task and their rows, without cases that have no tokens."""
    cases = text_cases(pipeline.task)
    pairs = zip(cases, pipeline.encode(cases), strict=True)
    encoded = [(case, row) for case, row in pairs if row is not None]
    return [case for case, _ in encoded], [row for _, row in encoded]


def text_figures(
    data: TextProofData,
    graph: TextGraph,
    precision: str,
    bound_overrides: dict[str, float],
    *,
    allow_left_padding: bool,
) -> list[BoundedFigure]:
    """Return the figures of a graph's answers, alone and in padded batches.

    `allow_left_padding`: also pad the rows on the left.
    """
    task = data.pipeline.task
    actual = data.pipeline.answers(data.rows, data.cases, graph)
    figures = compare_answers(task, data.expected, actual, precision, bound_overrides)
    rows_with_values = [
        (row, answer.values)
        for row, answer in zip(data.rows, actual, strict=True)
        if answer.values is not None
    ]
    single = [values for _, values in rows_with_values]
    batches = []
    for pad_left in (False, True) if allow_left_padding else (False,):
        batched = data.pipeline.batched_values(
            [row for row, _ in rows_with_values], graph, pad_left=pad_left
        )
        batches.append(batching_figure(task, single, batched, precision, bound_overrides))
    return [*figures, min(batches, key=_quality)]


def _quality(figure: BoundedFigure) -> float:
    return figure.value if figure.better == HIGHER else -figure.value


def write_cases(folder: Path, data: TextProofData, figures: Sequence[BoundedFigure]) -> None:
    """Write inputs and the reference's answers. The smoke test sends them to the deployed model."""
    task = data.pipeline.task
    cases = [
        {"input": _input(task, case), "expected": _expected(task, row, answer)}
        for case, row, answer in zip(data.cases, data.rows, data.expected, strict=True)
    ]
    bounds = {figure.name: figure.bound for figure in figures}
    record = {"schema": SCHEMA, "task": task.name, "bounds": bounds, "cases": cases}
    (folder / FILE).write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _input(task: TextTask, case: TextCase) -> dict[str, str]:
    """Return the input by public tensor name."""
    first, second = ("query", "text_input") if task.name == RERANK else ("text_input", "text_pair")
    texts = {first: case.text, second: case.pair, "prompt_name": case.prompt}
    return {name: text for name, text in texts.items() if text is not None}


def _expected(task: TextTask, row: EncodedText, answer: CaseAnswer) -> dict[str, Any]:
    """Return the answer by public tensor name. A very long text has no values."""
    expected: dict[str, Any] = {
        "num_input_tokens": len(answer.ids),
        "truncated": row.truncated,
    }
    if answer.values is None:
        return expected
    if task.name == EMBEDDING:
        return expected | {"embedding": _fp32_digits(answer.values)}
    if task.name == RERANK:
        return expected | {"score": _fp32_digits(answer.values)}
    if task.name == CLASSIFICATION:
        order = np.argsort(-answer.values, kind="stable")
        labels = [task.labels[at] for at in order]
        return expected | {"label": labels, "score": _fp32_digits(answer.values[order])}
    names = ("label", "start", "end")
    return expected | {
        "entities": [dict(zip(names, entity, strict=True)) for entity in answer.entities]
    }


def _fp32_digits(values: Any) -> list[float]:
    """Round to the digits of fp32."""
    return [float(f"{value:.8g}") for value in values]
