# SPDX-License-Identifier: Apache-2.0
"""The proof of a text task: the reference library against the steps used in serving.

First the conventions in fp32 with the bounds of fp32: the exported graph answers like the library,
and the proof detects deliberate mistakes. Then the loss of the precision, with its own bounds.
Needs numpy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from buildlib.program import print_line
from buildlib.request_types import BuilderRequest
from taskcompile.task import RERANK, TYPE_IDS, TextTask
from taskproof.answers import CaseAnswer
from taskproof.controls import ControlContext, run_controls
from taskproof.figures import FP32, proof_report, require_figures, saturation_remedy
from taskproof.stored_answers import store_answers
from taskproof.text_evaluation import evaluate
from taskproof.text_pipeline import TextGraph, text_pipeline
from taskproof.text_proof_data import TextProofData, encode_cases, text_figures, write_cases
from taskproof.text_reference import TextReference, reference_version

_REPORT = "The conventions differ, whatever the precision: report it with build.log."
_MAX_QUOTED = 60  # characters of a text in a message


@dataclass(frozen=True)
class TextSubject:
    """The engine to prove, and its reference."""

    request: BuilderRequest
    task: TextTask
    precision: str  # a column of figures.py
    fp32_graph: TextGraph  # as exported
    engine: TextGraph
    graph_for_task: Callable[[TextTask], TextGraph]  # another task on the same weights
    allows_left_padding: bool
    bound_overrides: dict[str, float]  # from the project


def prove_text(
    subject: TextSubject, folder: Path, *, remedy: str, store_answers_too: bool = False
) -> dict[str, Any]:
    """Prove the engine, write the cases into `folder` and return the result's `proof`.

    `store_answers_too`: also store the reference's answers, for the proof of a compiled engine.

    Raises:
        BuildError: the engine does not answer like the reference, or the proof misses a mistake.
    """
    task, checkpoint = subject.task, subject.request.checkpoint
    reference = TextReference(task, subject.request)
    name = f"{task.library} {reference_version(task)}"
    pipeline = text_pipeline(task, checkpoint)
    cases, rows = encode_cases(pipeline)
    data = TextProofData(pipeline, cases, rows, reference.answers(cases))
    _require_finite_values(data, checkpoint, name)
    _require_tokens(data, checkpoint, name)
    figures = text_figures(
        data, subject.fp32_graph, FP32, {}, allow_left_padding=subject.allows_left_padding
    )
    require_figures(figures, FP32, name, remedy=_REPORT)
    context = ControlContext(
        task=task,
        folder=checkpoint,
        pipeline=data.pipeline,
        cases=data.cases,
        rows=data.rows,
        expected=data.expected,
        fp32_graph=subject.fp32_graph,
        graph_for_task=subject.graph_for_task,
    )
    try:
        controls = run_controls(context)
    except BuildError as error:
        raise _explain_saturation(error, task, data) from error
    figures = text_figures(
        data,
        subject.engine,
        subject.precision,
        subject.bound_overrides,
        allow_left_padding=subject.allows_left_padding,
    )
    print_line(f"{', '.join(f'{figure.name} {figure.value:.6g}' for figure in figures)}; as {name}")
    require_figures(figures, subject.precision, name, remedy=remedy)
    evaluation = evaluate(subject.request, task, data.pipeline, reference.values, subject.engine)
    write_cases(folder, data, figures)
    proof = proof_report(task.name, name, len(data.cases), figures, controls, evaluation)
    if store_answers_too:
        store_answers(folder, data.expected, proof, allow_left_padding=subject.allows_left_padding)
    return proof


def _explain_saturation(error: BuildError, task: TextTask, data: TextProofData) -> BuildError:
    """Return the error with a remedy for scores that are all exactly 0 or 1, else unchanged."""
    values = [answer.values for answer in data.expected if answer.values is not None]
    scores = [float(score) for answer in values for score in np.ravel(answer)]
    remedy = saturation_remedy(task.activation, scores, is_ranking=task.name == RERANK)
    return BuildError(error.problem, remedy=remedy) if remedy else error


def _require_finite_values(data: TextProofData, checkpoint: Path, name: str) -> None:
    """Raise BuildError for a checkpoint that answers infinity or NaN."""
    for case, answer in zip(data.cases, data.expected, strict=True):
        if answer.values is not None and not np.isfinite(answer.values).all():
            raise BuildError(
                f"{checkpoint}: {name} itself answers {case.text[:_MAX_QUOTED]!r} with no number",
                remedy="Its weights are damaged: download or save them again.",
            )


def _require_tokens(data: TextProofData, checkpoint: Path, name: str) -> None:
    """Raise BuildError for the first text that the serving tokenizer encodes differently."""
    for case, row, want in zip(data.cases, data.rows, data.expected, strict=True):
        ids = tuple(row.ids.tolist())
        if ids == want.ids:
            _require_types(case.text, row, want, checkpoint, name)
            continue
        pairs = enumerate(zip(ids, want.ids, strict=False))
        at = next(
            (at for at, (served_id, reference_id) in pairs if served_id != reference_id),
            min(len(ids), len(want.ids)),
        )
        raise BuildError(
            f"{checkpoint / 'tokenizer.json'}: reads {case.text[:_MAX_QUOTED]!r} as {len(ids)} "
            f"tokens, and {name} as {len(want.ids)}; they differ from token {at} on",
            remedy="Save the tokenizer again as that library reads it: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        )


def _require_types(text: str, row: Any, want: CaseAnswer, checkpoint: Path, name: str) -> None:
    """Raise BuildError for a text whose tokens have other types in the library."""
    if row.type_ids is None or want.types is None:
        return
    types = row.type_ids.tolist()
    pairs = enumerate(zip(types, want.types, strict=True))
    at = next((at for at, (row_type, reference) in pairs if row_type != reference), None)
    if at is None:
        return
    raise BuildError(
        f"{checkpoint / 'tokenizer.json'}: gives token {at} of {text[:_MAX_QUOTED]!r} the type "
        f"{types[at]}, and {name} {want.types[at]}",
        remedy="Write into tokenizer_config.json what the model was trained with: "
        f'"model_input_names": ["input_ids", "{TYPE_IDS}", "attention_mask"], or the same '
        f"without {TYPE_IDS} if it was trained without them.",
    )
