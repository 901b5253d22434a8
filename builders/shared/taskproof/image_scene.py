# SPDX-License-Identifier: Apache-2.0
"""The images of a proof as they are served, and what a graph makes of them.

Needs numpy and Pillow, and no reference library: its answers are given.
"""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tasklib.image_processing import ImageProcessor
from tasklib.image_settings import ImageSettings

from taskcompile.image_task import IMAGE_CLASSIFICATION
from taskproof.figures import Figure, figure
from taskproof.image_cases import ImageCase

SCHEMA = "tritonctl.proof/1"
FILE = "cases.json"
_MOST_PIXELS = 50_000_000
_SMALLEST = 1e-12

# The graph: pixel values FP32[batch, 3, height, width] to scores or vectors FP32[batch, n].
Graph = Callable[[Any], Any]


@dataclass(frozen=True)
class Reference:
    """Pixel values FP32[images, 3, height, width], and scores or vectors FP32[images, n]."""

    pixels: Any
    answers: Any


@dataclass(frozen=True)
class Scene:
    """The images as they are served, and what the reference makes of them."""

    task: str
    labels: Sequence[str]
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
        if self.task != IMAGE_CLASSIFICATION:
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


def served_pixels(settings: ImageSettings, files: Sequence[bytes]) -> Any:
    """Pixel values of encoded images, as the served step makes them."""
    processor = ImageProcessor(settings, max_pixels=_MOST_PIXELS)
    return np.stack([processor.pixels(file) for file in files])


def one_by_one(graph: Graph, pixels: Any) -> Any:
    """Each image in a run of its own."""
    return np.concatenate([graph(pixels[at : at + 1]) for at in range(len(pixels))])


def graph_figures(
    scene: Scene, graph: Graph, precision: str, moved: dict[str, float]
) -> list[Figure]:
    """How far a graph's answers are from the reference's, one by one and all at once."""
    alone, together = one_by_one(graph, scene.pixels), graph(scene.pixels)
    if scene.task == IMAGE_CLASSIFICATION:
        batch = figure("batch score", _largest(alone - together), precision, moved)
    else:
        batch = figure("batch cosine", _cosine(alone, together), precision, moved)
    return [*scene.figures(scene.pixels, alone, precision, moved), batch]


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


def write_cases(folder: Path, scene: Scene, figures: Sequence[Figure]) -> None:
    """Images and the reference's answers, for whoever asks the served model the same."""
    cases = [
        {"input": {"image": _data_url(case.encoded)}, "expected": _expected(scene, answer)}
        for case, answer in zip(scene.cases, scene.expected.answers, strict=True)
    ]
    bounds = {one.name: one.bound for one in figures}
    record = {"schema": SCHEMA, "task": scene.task, "bounds": bounds, "cases": cases}
    (folder / FILE).write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _data_url(encoded: bytes) -> str:
    """The file as text, which the served step takes as well."""
    return "data:image/*;base64," + base64.b64encode(encoded).decode("ascii")


def _expected(scene: Scene, answer: Any) -> dict[str, Any]:
    """By the names of the public tensors."""
    if scene.task != IMAGE_CLASSIFICATION:
        return {"embedding": _short(answer)}
    order = np.argsort(-answer, kind="stable")
    return {"label": [scene.labels[at] for at in order], "score": _short(answer[order])}


def _short(values: Any) -> list[float]:
    """As many digits as an fp32 has."""
    return [float(f"{value:.8g}") for value in values]
