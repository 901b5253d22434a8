# SPDX-License-Identifier: Apache-2.0
"""The proof of an engine compiled from an exported task: the same cases, the stored answers.

The export stage has proven that the graph answers like the reference library and that the proof
detects mistakes. Needs numpy, tokenizers and Pillow, but no reference library.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasklib import task_file
from tasklib.image_settings import ImageSettings

from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import print_line
from buildlib.request_types import BuilderRequest
from buildlib.result_types import BoundedFigure
from taskcompile.image_task import IMAGE_TASKS, INPUT
from taskcompile.task import TextTask
from taskproof import image_evaluation
from taskproof.figures import require_figures
from taskproof.image_cases import image_cases
from taskproof.image_proof_data import (
    ImageProofData,
    ReferenceOutput,
    graph_figures,
    preprocess_images,
)
from taskproof.image_proof_data import write_cases as write_image_cases
from taskproof.stored_answers import load_answers, load_report, load_vectors
from taskproof.text_evaluation import evaluate
from taskproof.text_pipeline import TextGraph, text_pipeline
from taskproof.text_proof_data import TextProofData, encode_cases, text_figures, write_cases

_DROPPED = ("entities", "either_side")


@dataclass(frozen=True)
class CompiledSubject:
    """The compiled engine to prove."""

    request: BuilderRequest
    source: Path  # the artefact of the export
    precision: str  # a column of figures.py
    engine: TextGraph
    bound_overrides: dict[str, float]  # from the project


def prove_compiled(subject: CompiledSubject, folder: Path, *, remedy: str) -> dict[str, Any]:
    """Prove the engine, write the cases into `folder` and return the result's `proof`.

    Raises:
        BuildError: the engine does not answer like the reference.
    """
    record = task_file.read_task(subject.source / artefact.TASK)
    export_report = load_report(subject.source / artefact.PROOF)
    if record.task in IMAGE_TASKS:
        figures, evaluation = _prove_images(subject, record, export_report, folder, remedy)
    else:
        figures, evaluation = _prove_texts(subject, record, export_report, folder, remedy)
    retained = {key: value for key, value in export_report.items() if key not in _DROPPED}
    return retained | {"figures": [vars(figure) for figure in figures], "evaluation": evaluation}


def _prove_texts(
    subject: CompiledSubject,
    record: task_file.TaskDefinition,
    export_report: dict[str, Any],
    folder: Path,
    remedy: str,
) -> tuple[list[BoundedFigure], dict[str, Any] | None]:
    task = to_text_task(record)
    pipeline = text_pipeline(task, subject.source / artefact.TOKENIZER)
    cases, rows = encode_cases(pipeline)
    data = TextProofData(pipeline, cases, rows, load_answers(subject.source / artefact.PROOF))
    figures = text_figures(
        data,
        subject.engine,
        subject.precision,
        subject.bound_overrides,
        allow_left_padding=bool(export_report["either_side"]),
    )
    _require_bounds(figures, subject, export_report, remedy)
    evaluation = evaluate(
        subject.request, task, pipeline, _reference_score(export_report), subject.engine
    )
    write_cases(folder, data, figures)
    return figures, evaluation


def _prove_images(
    subject: CompiledSubject,
    record: task_file.TaskDefinition,
    export_report: dict[str, Any],
    folder: Path,
    remedy: str,
) -> tuple[list[BoundedFigure], dict[str, Any] | None]:
    settings = ImageSettings(**(record.image or {}))
    cases = image_cases()
    pixels = preprocess_images(settings, [case.encoded for case in cases])
    answers = load_vectors(subject.source / artefact.PROOF)
    data = ImageProofData(
        task=record.task,
        labels=record.labels,
        settings=settings,
        cases=cases,
        pixels=pixels,
        expected=ReferenceOutput(pixels, answers),  # the export stage has compared the pixels
    )

    def graph(pixels: Any) -> Any:
        return subject.engine({INPUT: pixels})

    figures = graph_figures(data, graph, subject.precision, subject.bound_overrides)
    _require_bounds(figures, subject, export_report, remedy)
    evaluation = image_evaluation.evaluate(
        subject.request,
        record.task,
        record.labels,
        settings,
        _reference_score(export_report),
        graph,
    )
    write_image_cases(folder, data, figures)
    return figures, evaluation


def _require_bounds(
    figures: list[BoundedFigure],
    subject: CompiledSubject,
    export_report: dict[str, Any],
    remedy: str,
) -> None:
    summary = ", ".join(f"{figure.name} {figure.value:.6g}" for figure in figures)
    print_line(f"{summary}; as {export_report['reference']}")
    require_figures(figures, subject.precision, str(export_report["reference"]), remedy=remedy)


def _reference_score(export_report: dict[str, Any]) -> float:
    """Return the reference's score on the evaluation set, or 0 without a set."""
    evaluation = export_report["evaluation"]
    return float(evaluation["reference"]) if evaluation else 0.0


def to_text_task(record: task_file.TaskDefinition) -> TextTask:
    """Return the task of a task.json, without the steps that made its graph."""
    text = task_file.text_settings(record)
    if "library" not in record.reference or "class" not in record.reference:
        raise BuildError(
            f"{task_file.FILE} of the exported task does not name its reference",
            remedy="Export again: tritonctl build --force.",
        )
    return TextTask(
        name=record.task,
        text=text,
        library=record.reference["library"],
        reference=record.reference["class"],
        labels=tuple(record.labels),
        activation=record.activation,
    )
