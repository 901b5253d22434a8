# SPDX-License-Identifier: Apache-2.0
"""The proof of an image task: transformers on Pillow against the steps used in serving.

First, as for texts, the conventions in fp32 with the bounds of fp32, and the controls. Then the
loss of the precision. Needs numpy and Pillow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.image_settings import ImageSettings

from buildlib.program import print_line
from buildlib.request_types import BuilderRequest
from buildlib.result_types import ProofControl
from taskcompile.image_task import IMAGE_CLASSIFICATION, ImageTask
from taskproof.figures import FP32, detect_mistake, proof_report, require_figures
from taskproof.image_cases import image_cases
from taskproof.image_evaluation import evaluate
from taskproof.image_proof_data import (
    ImageGraph,
    ImageProofData,
    graph_figures,
    preprocess_images,
    run_one_by_one,
    write_cases,
)
from taskproof.image_reference import ImageReference
from taskproof.stored_answers import store_vectors

_REPORT = "The conventions differ, whatever the precision: report it with build.log."
_BILINEAR, _BICUBIC = 2, 3
_SMALLEST = 1e-12


@dataclass(frozen=True)
class ImageSubject:
    """The engine to prove, and its reference."""

    request: BuilderRequest
    task: ImageTask
    precision: str  # a column of figures.py
    fp32_graph: ImageGraph  # as exported
    engine: ImageGraph
    model: Any  # the checkpoint in transformers
    bound_overrides: dict[str, float]  # from the project


def prove_images(
    subject: ImageSubject, folder: Path, *, remedy: str, store_answers_too: bool = False
) -> dict[str, Any]:
    """Prove the engine, write the cases into `folder` and return the result's `proof`.

    `store_answers_too`: also store the reference's answers, for the proof of a compiled engine.

    Raises:
        BuildError: the engine does not answer like the reference, or the proof misses a mistake.
    """
    task = subject.task
    reference = ImageReference(task, subject.model)
    cases, settings = image_cases(), ImageSettings(**task.image)
    files = [case.encoded for case in cases]
    data = ImageProofData(
        task=task.name,
        labels=task.labels,
        settings=settings,
        cases=cases,
        pixels=preprocess_images(settings, files),
        expected=reference.run(files),
    )
    figures = graph_figures(data, subject.fp32_graph, FP32, {})
    require_figures(figures, FP32, reference.name, remedy=_REPORT)
    controls = list(_run_controls(data, task, subject.fp32_graph))
    figures = graph_figures(data, subject.engine, subject.precision, subject.bound_overrides)
    summary = ", ".join(f"{figure.name} {figure.value:.6g}" for figure in figures)
    print_line(f"{summary}; as {reference.name}")
    require_figures(figures, subject.precision, reference.name, remedy=remedy)
    evaluation = evaluate(
        subject.request, task.name, task.labels, settings, _labeller(reference), subject.engine
    )
    write_cases(folder, data, figures)
    proof = proof_report(task.name, reference.name, len(cases), figures, controls, evaluation)
    if store_answers_too:
        store_vectors(folder, data.expected.answers, proof)
    return proof


def _labeller(reference: ImageReference) -> Callable[[bytes], int]:
    """Return a function that gives the index of the reference's label for an image."""
    return lambda file: int(reference.run([file]).answers[0].argmax())


def _run_controls(
    data: ImageProofData, task: ImageTask, graph: ImageGraph
) -> Iterator[ProofControl]:
    """Make every mistake and yield its broken figure. Raises BuildError if the proof misses one."""
    answers = run_one_by_one(graph, data.pixels)
    mistakes = [
        (name, data.figures(wrong, run_one_by_one(graph, wrong), FP32))
        for name, wrong in _wrong_pixels(data)
    ]
    mistakes += [
        (name, data.figures(data.pixels, wrong, FP32))
        for name, wrong in _wrong_answers(task, answers)
    ]
    for name, figures in mistakes:
        control = detect_mistake(name, figures)
        print_line(f"seen: {name} ({control.figure} {control.value:.6g})")
        yield control


def _wrong_pixels(data: ImageProofData) -> Iterator[tuple[str, Any]]:
    settings = data.settings
    files = [case.encoded for case in data.cases]

    def pixels_with(**changes: Any) -> Any:
        return preprocess_images(replace(settings, **changes), files)

    yield "blue for red", data.pixels[:, ::-1]
    yield "mean and deviation left out", pixels_with(do_normalize=not settings.do_normalize)
    yield "values of 0 to 255", pixels_with(do_rescale=not settings.do_rescale)
    if settings.do_resize:
        wrong_filter = _BILINEAR if settings.resample == _BICUBIC else _BICUBIC
        yield "another filter", pixels_with(resample=wrong_filter)
    yield "one pixel to the side", np.roll(data.pixels, 1, axis=3)
    yield "EXIF not read", preprocess_images(settings, [case.ignoring_exif for case in data.cases])


def _wrong_answers(task: ImageTask, answers: Any) -> Iterator[tuple[str, Any]]:
    yield "the answer to another image", np.roll(answers, 1, axis=0)
    if task.name == IMAGE_CLASSIFICATION:
        yield "the activation left out", np.log(np.maximum(answers, _SMALLEST))
        if answers.shape[1] > 1:
            yield "labels in reverse order", answers[:, ::-1]
    elif task.normalize:
        yield "Normalize dropped", answers * 2
    else:
        yield "Normalize added", answers / np.linalg.norm(answers, axis=1, keepdims=True)
