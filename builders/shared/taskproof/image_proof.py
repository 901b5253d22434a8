# SPDX-License-Identifier: Apache-2.0
"""The proof of a task of images: transformers on Pillow against the served steps.

As for texts, first the conventions, in fp32 and with the bounds of fp32, and that mistakes made on
purpose are seen; then what the precision has cost. Needs numpy and Pillow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.image_settings import ImageSettings

from buildlib.program import say
from buildlib.request import Request
from taskcompile.image_task import IMAGE_CLASSIFICATION, ImageTask
from taskproof.figures import FP32, Control, caught, report, require
from taskproof.image_cases import image_cases
from taskproof.image_evaluation import evaluate
from taskproof.image_reference import ImageReference
from taskproof.image_scene import (
    Graph,
    Scene,
    graph_figures,
    one_by_one,
    served_pixels,
    write_cases,
)
from taskproof.kept import keep_vectors

_REPORT = "The conventions differ, whatever the precision: report it with build.log."
_BILINEAR, _BICUBIC = 2, 3
_SMALLEST = 1e-12


@dataclass(frozen=True)
class ImageSubject:
    """What is proven. `precision`: a column of figures.py.

    `plain`: the exported graph in fp32; `engine`: what is served; `model`: the checkpoint in
    transformers; `bounds`: the user's own.
    """

    request: Request
    task: ImageTask
    precision: str
    plain: Graph
    engine: Graph
    model: Any
    bounds: dict[str, float]


def prove_images(
    subject: ImageSubject, folder: Path, *, remedy: str, keep: bool = False
) -> dict[str, Any]:
    """The `proof` of the build result; its cases are written into `folder`.

    `keep`: the reference's answers, too, for the proof of what is compiled of the engine.

    Raises:
        BuildError: the engine does not answer as the reference does, or a mistake is not seen.
    """
    task = subject.task
    reference = ImageReference(task, subject.model)
    cases, settings = image_cases(), ImageSettings(**task.image)
    files = [case.encoded for case in cases]
    scene = Scene(
        task=task.name,
        labels=task.labels,
        settings=settings,
        cases=cases,
        pixels=served_pixels(settings, files),
        expected=reference.ask(files),
    )
    figures = graph_figures(scene, subject.plain, FP32, {})
    require(figures, FP32, reference.name, remedy=_REPORT)
    seen = list(_controls(scene, task, subject.plain))
    figures = graph_figures(scene, subject.engine, subject.precision, subject.bounds)
    said = ", ".join(f"{one.name} {one.value:.6g}" for one in figures)
    say(f"{said}; as {reference.name}")
    require(figures, subject.precision, reference.name, remedy=remedy)
    own = evaluate(
        subject.request, task.name, task.labels, settings, _chosen_by(reference), subject.engine
    )
    write_cases(folder, scene, figures)
    made = report(task.name, reference.name, len(cases), figures, seen, own)
    if keep:
        keep_vectors(folder, scene.expected.answers, made)
    return made


def _chosen_by(reference: ImageReference) -> Callable[[bytes], int]:
    """The label that the reference gives an image, by its number."""
    return lambda file: int(reference.ask([file]).answers[0].argmax())


def _controls(scene: Scene, task: ImageTask, graph: Graph) -> Iterator[Control]:
    """Every mistake, each seen. Raises BuildError for one that is not."""
    right = one_by_one(graph, scene.pixels)
    made = [
        (name, scene.figures(wrong, one_by_one(graph, wrong), FP32))
        for name, wrong in _wrong_pixels(scene)
    ]
    made += [
        (name, scene.figures(scene.pixels, wrong, FP32))
        for name, wrong in _wrong_answers(task, right)
    ]
    for name, figures in made:
        control = caught(name, figures)
        say(f"seen: {name} ({control.figure} {control.value:.6g})")
        yield control


def _wrong_pixels(scene: Scene) -> Iterator[tuple[str, Any]]:
    settings = scene.settings
    files = [case.encoded for case in scene.cases]

    def changed(**changes: Any) -> Any:
        return served_pixels(replace(settings, **changes), files)

    yield "blue for red", scene.pixels[:, ::-1]
    yield "mean and deviation left out", changed(do_normalize=not settings.do_normalize)
    yield "values of 0 to 255", changed(do_rescale=not settings.do_rescale)
    if settings.do_resize:
        other = _BILINEAR if settings.resample == _BICUBIC else _BICUBIC
        yield "another filter", changed(resample=other)
    yield "one pixel to the side", np.roll(scene.pixels, 1, axis=3)
    yield "EXIF not read", served_pixels(settings, [case.ignoring_exif for case in scene.cases])


def _wrong_answers(task: ImageTask, right: Any) -> Iterator[tuple[str, Any]]:
    yield "the answer to another image", np.roll(right, 1, axis=0)
    if task.name == IMAGE_CLASSIFICATION:
        yield "the activation left out", np.log(np.maximum(right, _SMALLEST))
        if right.shape[1] > 1:
            yield "labels in reverse order", right[:, ::-1]
    elif task.normalize:
        yield "Normalize dropped", right * 2
    else:
        yield "Normalize added", right / np.linalg.norm(right, axis=1, keepdims=True)
