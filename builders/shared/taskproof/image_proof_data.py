# SPDX-License-Identifier: Apache-2.0
"""The preprocessed images of a proof, the reference's answers and the figures of a graph.

Needs numpy and Pillow, but no reference library.
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

from buildlib.result_types import BoundedFigure
from taskcompile.image_task import IMAGE_CLASSIFICATION
from taskproof.figures import bounded_figure
from taskproof.image_cases import ImageCase

SCHEMA = "tritonctl.proof/1"
FILE = "cases.json"
_MAX_PIXELS = 50_000_000
_SMALLEST = 1e-12

# Maps pixel values FP32[batch, 3, height, width] to scores or vectors FP32[batch, n].
ImageGraph = Callable[[Any], Any]


@dataclass(frozen=True)
class ReferenceOutput:
    """The pixel values and answers of the reference."""

    pixels: Any  # FP32[images, 3, height, width]
    answers: Any  # scores or vectors FP32[images, n]


@dataclass(frozen=True)
class ImageProofData:
    """The images as serving preprocesses them, and the reference's output."""

    task: str
    labels: Sequence[str]
    settings: ImageSettings
    cases: Sequence[ImageCase]
    pixels: Any
    expected: ReferenceOutput

    def figures(
        self,
        pixels: Any,
        answers: Any,
        precision: str,
        bound_overrides: dict[str, float] | None = None,
    ) -> list[BoundedFigure]:
        """Return the figures of pixels and answers against the reference's."""

        def make_figure(name: str, value: float) -> BoundedFigure:
            return bounded_figure(name, value, precision, bound_overrides)

        figures = [make_figure("pixels", _max_abs(pixels - self.expected.pixels))]
        want = self.expected.answers
        if self.task != IMAGE_CLASSIFICATION:
            lengths = np.linalg.norm(answers, axis=1) / np.linalg.norm(want, axis=1)
            figures.append(make_figure("cosine", _min_cosine(want, answers)))
            figures.append(make_figure("length", _max_abs(lengths - 1)))
            return figures
        figures.append(make_figure("score", _max_abs(answers - want)))
        if want.shape[1] > 1:
            tie = make_figure("score", 0.0).bound
            figures.append(make_figure("label", _label_share(want, answers, tie)))
            figures.append(make_figure("order", _order_share(want, answers, tie)))
        return figures


def preprocess_images(settings: ImageSettings, files: Sequence[bytes]) -> Any:
    """Return the pixel values of encoded images, computed by the step used in serving."""
    processor = ImageProcessor(settings, max_pixels=_MAX_PIXELS)
    return np.stack([processor.pixels(file) for file in files])


def run_one_by_one(graph: ImageGraph, pixels: Any) -> Any:
    """Run each image alone."""
    return np.concatenate([graph(pixels[at : at + 1]) for at in range(len(pixels))])


def graph_figures(
    data: ImageProofData, graph: ImageGraph, precision: str, bound_overrides: dict[str, float]
) -> list[BoundedFigure]:
    """Return the figures of a graph's answers, one by one and in a batch."""
    single, batched = run_one_by_one(graph, data.pixels), graph(data.pixels)
    if data.task == IMAGE_CLASSIFICATION:
        batch = bounded_figure(
            "batch score", _max_abs(single - batched), precision, bound_overrides
        )
    else:
        batch = bounded_figure(
            "batch cosine", _min_cosine(single, batched), precision, bound_overrides
        )
    return [*data.figures(data.pixels, single, precision, bound_overrides), batch]


def _max_abs(differences: Any) -> float:
    """Return the largest absolute value; NaN, which keeps no bound, if a value is NaN."""
    return float(np.abs(differences).max(initial=0.0))


def _min_cosine(expected: Any, actual: Any) -> float:
    """Return the smallest cosine between rows of FP32[images, n]."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    products = np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1)
    return float(((expected * actual).sum(1) / np.maximum(products, _SMALLEST)).min())


def _label_share(want: Any, have: Any, tie: float) -> float:
    """Return the share of images whose best label is the reference's, or ties with it."""
    chosen_scores = np.take_along_axis(want, have.argmax(1)[:, None], axis=1)[:, 0]
    return float((want.max(1) - chosen_scores <= tie).mean())


def _order_share(want: Any, have: Any, tie: float) -> float:
    """Return the share of pairs of labels in the reference's order. Ties do not count."""
    above = want[:, :, None] - want[:, None, :] > tie
    ordered = have[:, :, None] > have[:, None, :]
    return float(ordered[above].mean()) if above.any() else 1.0


def write_cases(folder: Path, data: ImageProofData, figures: Sequence[BoundedFigure]) -> None:
    """Write images and the reference's answers. The smoke test sends them to the deployed model."""
    cases = [
        {"input": {"image": _data_url(case.encoded)}, "expected": _expected(data, answer)}
        for case, answer in zip(data.cases, data.expected.answers, strict=True)
    ]
    bounds = {figure.name: figure.bound for figure in figures}
    record = {"schema": SCHEMA, "task": data.task, "bounds": bounds, "cases": cases}
    (folder / FILE).write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _data_url(encoded: bytes) -> str:
    """Return the file as a data URL, which the step used in serving accepts."""
    return "data:image/*;base64," + base64.b64encode(encoded).decode("ascii")


def _expected(data: ImageProofData, answer: Any) -> dict[str, Any]:
    """Return the answer by public tensor name."""
    if data.task != IMAGE_CLASSIFICATION:
        return {"embedding": _fp32_digits(answer)}
    order = np.argsort(-answer, kind="stable")
    return {"label": [data.labels[at] for at in order], "score": _fp32_digits(answer[order])}


def _fp32_digits(values: Any) -> list[float]:
    """Round to the digits of fp32."""
    return [float(f"{value:.8g}") for value in values]
