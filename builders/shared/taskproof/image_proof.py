# SPDX-License-Identifier: Apache-2.0
"""The proof of a task of images: transformers on Pillow against the served steps.

As for texts, first the conventions, in fp32 and with the bounds of fp32, and that mistakes made on
purpose are seen; then what the precision has cost. Needs numpy and Pillow.
"""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.image_processing import ImageProcessor
from tasklib.image_settings import ImageSettings

from buildlib.program import say
from buildlib.request import Request
from taskcompile.image_task import IMAGE_CLASSIFICATION, ImageTask
from taskproof.figures import FP32, Control, Figure, caught, figure, report, require
from taskproof.image_cases import ImageCase, image_cases
from taskproof.image_evaluation import evaluate
from taskproof.image_reference import ImageReference, Reference

SCHEMA = "tritonctl.proof/1"
FILE = "cases.json"
_REPORT = "The conventions differ, whatever the precision: report it with build.log."
_MOST_PIXELS = 50_000_000
_BILINEAR, _BICUBIC = 2, 3
_SMALLEST = 1e-12

# The graph: pixel values FP32[batch, 3, height, width] to scores or vectors FP32[batch, n].
Graph = Callable[[Any], Any]


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


@dataclass(frozen=True)
class _Scene:
    """The images as they are served, and what the reference makes of them."""

    task: ImageTask
    settings: ImageSettings
    cases: Sequence[ImageCase]
    pixels: Any
    expected: Reference

    def figures(
        self, pixels: Any, answers: Any, precision: str, moved: dict[str, float] | None = None
    ) -> list[Figure]:
        """How far pixels and answers are from the reference's."""

        def bounded(name: str, value: float) -> Figure:
            return figure(name, value, precision, moved)

        made = [bounded("pixels", _largest(pixels - self.expected.pixels))]
        want = self.expected.answers
        if self.task.name != IMAGE_CLASSIFICATION:
            lengths = np.linalg.norm(answers, axis=1) / np.linalg.norm(want, axis=1)
            made.append(bounded("cosine", _cosine(want, answers)))
            made.append(bounded("length", _largest(lengths - 1)))
            return made
        made.append(bounded("score", _largest(answers - want)))
        if want.shape[1] > 1:
            tie = bounded("score", 0.0).bound
            made.append(bounded("label", _same_label(want, answers, tie)))
            made.append(bounded("order", _same_order(want, answers, tie)))
        return made


def prove_images(subject: ImageSubject, folder: Path, *, remedy: str) -> dict[str, Any]:
    """The `proof` of the build result; its cases are written into `folder`.

    Raises:
        BuildError: the engine does not answer as the reference does, or a mistake is not seen.
    """
    task = subject.task
    reference = ImageReference(task, subject.model)
    cases, settings = image_cases(), ImageSettings(**task.image)
    files = [case.encoded for case in cases]
    scene = _Scene(task, settings, cases, served_pixels(settings, files), reference.ask(files))
    figures = _figures(scene, subject.plain, FP32, {})
    require(figures, FP32, reference.name, remedy=_REPORT)
    seen = list(_controls(scene, subject.plain))
    figures = _figures(scene, subject.engine, subject.precision, subject.bounds)
    said = ", ".join(f"{one.name} {one.value:.6g}" for one in figures)
    say(f"{said}; as {reference.name}")
    require(figures, subject.precision, reference.name, remedy=remedy)
    own = evaluate(subject.request, task, settings, reference, subject.engine)
    _write_cases(folder / FILE, scene, figures)
    return report(task.name, reference.name, len(cases), figures, seen, own)


def served_pixels(settings: ImageSettings, files: Sequence[bytes]) -> Any:
    """Pixel values of encoded images, as the served step makes them."""
    processor = ImageProcessor(settings, max_pixels=_MOST_PIXELS)
    return np.stack([processor.pixels(file) for file in files])


def one_by_one(graph: Graph, pixels: Any) -> Any:
    """Each image in a run of its own."""
    return np.concatenate([graph(pixels[at : at + 1]) for at in range(len(pixels))])


def _figures(scene: _Scene, graph: Graph, precision: str, moved: dict[str, float]) -> list[Figure]:
    alone, together = one_by_one(graph, scene.pixels), graph(scene.pixels)
    if scene.task.name == IMAGE_CLASSIFICATION:
        batch = figure("batch score", _largest(alone - together), precision, moved)
    else:
        batch = figure("batch cosine", _cosine(alone, together), precision, moved)
    return [*scene.figures(scene.pixels, alone, precision, moved), batch]


def _controls(scene: _Scene, graph: Graph) -> Iterator[Control]:
    """Every mistake, each seen. Raises BuildError for one that is not."""
    right = one_by_one(graph, scene.pixels)
    made = [
        (name, scene.figures(wrong, one_by_one(graph, wrong), FP32))
        for name, wrong in _wrong_pixels(scene)
    ]
    made += [
        (name, scene.figures(scene.pixels, wrong, FP32))
        for name, wrong in _wrong_answers(scene.task, right)
    ]
    for name, figures in made:
        control = caught(name, figures)
        say(f"seen: {name} ({control.figure} {control.value:.6g})")
        yield control


def _wrong_pixels(scene: _Scene) -> Iterator[tuple[str, Any]]:
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


def _largest(differences: Any) -> float:
    """NaN where one is, which keeps no bound."""
    return float(np.abs(differences).max(initial=0.0))


def _cosine(left: Any, right: Any) -> float:
    """The smallest between rows of FP32[images, n]."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    products = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(1) / np.maximum(products, _SMALLEST)).min())


def _same_label(want: Any, have: Any, tie: float) -> float:
    """The share of images whose best label is the reference's, or as good as it within `tie`."""
    taken = np.take_along_axis(want, have.argmax(1)[:, None], axis=1)[:, 0]
    return float((want.max(1) - taken <= tie).mean())


def _same_order(want: Any, have: Any, tie: float) -> float:
    """The share of pairs of labels in the reference's order, of those further apart than `tie`."""
    above = want[:, :, None] - want[:, None, :] > tie
    kept = have[:, :, None] > have[:, None, :]
    return float(kept[above].mean()) if above.any() else 1.0


def _write_cases(file: Path, scene: _Scene, figures: Sequence[Figure]) -> None:
    """Images and the reference's answers, for whoever asks the served model the same."""
    cases = [
        {"input": {"image": _data_url(case.encoded)}, "expected": _expected(scene.task, answer)}
        for case, answer in zip(scene.cases, scene.expected.answers, strict=True)
    ]
    bounds = {one.name: one.bound for one in figures}
    record = {"schema": SCHEMA, "task": scene.task.name, "bounds": bounds, "cases": cases}
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _data_url(encoded: bytes) -> str:
    """The file as text, which the served step takes as well."""
    return "data:image/*;base64," + base64.b64encode(encoded).decode("ascii")


def _expected(task: ImageTask, answer: Any) -> dict[str, Any]:
    """By the names of the public tensors."""
    if task.name != IMAGE_CLASSIFICATION:
        return {"embedding": _short(answer)}
    order = np.argsort(-answer, kind="stable")
    return {"label": [task.labels[at] for at in order], "score": _short(answer[order])}


def _short(values: Any) -> list[float]:
    """As many digits as an fp32 has."""
    return [float(f"{value:.8g}") for value in values]
