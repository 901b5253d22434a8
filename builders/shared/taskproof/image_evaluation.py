# SPDX-License-Identifier: Apache-2.0
"""The accuracy of reference and engine on the project's labelled images.

Needs numpy and Pillow.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tasklib.image_processing import ImageProcessor
from tasklib.image_settings import ImageSettings
from tasklib.item_errors import ItemError

from buildlib.problems import BuildError
from buildlib.program import print_line
from buildlib.request_types import BuilderRequest
from taskcompile.image_task import IMAGE_CLASSIFICATION

_EXAMPLE = 'Write each line as {"image": "FILE", "label": "..."}, FILE relative to this file.'
_MAX_PIXELS = 50_000_000


def evaluate(
    request: BuilderRequest,
    task: str,
    labels: Sequence[str],
    settings: ImageSettings,
    reference: Callable[[bytes], int] | float,
    engine: Callable[[Any], Any],
) -> dict[str, Any] | None:
    """Return the `evaluation` of the proof, or None without a set.

    `reference`: returns the index of the reference's label for an image, or its known accuracy.

    Raises:
        BuildError: the set is unreadable, or the engine is below the minimum.
    """
    evaluation = request.evaluation
    if evaluation is None:
        return None
    if task != IMAGE_CLASSIFICATION:
        raise BuildError(
            f"evaluation is set, and the task {task} has no measure for it",
            remedy="Remove evaluation; the proof compares with transformers all the same.",
        )
    processor = ImageProcessor(settings, max_pixels=_MAX_PIXELS)
    reference_hits = engine_hits = samples = 0
    for location, file, label in islice(_read_lines(evaluation.prompts), evaluation.max_prompts):
        expected = _label_index(labels, label, location)
        try:
            pixels = processor.pixels(file)
        except ItemError as error:
            raise BuildError(
                f"{location}: {error}", remedy="Replace or remove the file."
            ) from error
        samples += 1
        if not isinstance(reference, float):
            reference_hits += reference(file) == expected
        engine_hits += int(engine(pixels[None])[0].argmax()) == expected
    if not samples:
        raise BuildError(f"{evaluation.prompts}: holds no lines", remedy=_EXAMPLE)
    accuracy = engine_hits / samples
    reference_accuracy = reference if isinstance(reference, float) else reference_hits / samples
    result = {
        "metric": "accuracy",
        "samples": samples,
        "reference": reference_accuracy,
        "engine": accuracy,
        "least": evaluation.min_score,
    }
    print_line(f"accuracy of {samples}: {accuracy:.4g}, of the checkpoint {reference_accuracy:.4g}")
    if evaluation.min_score is not None and accuracy < evaluation.min_score:
        raise BuildError(
            f"the {request.precision} engine has an accuracy of {accuracy:.4g} on "
            f"{evaluation.prompts} (the checkpoint {reference_accuracy:.4g}), and "
            f"evaluation.min_score asks for {evaluation.min_score:.4g}",
            remedy="Set engine.precision to a finer one, or lower evaluation.min_score.",
        )
    return result


def _label_index(labels: Sequence[str], label: str, location: str) -> int:
    if label not in labels:
        raise BuildError(
            f"{location}: has the label {label!r:.80}, which the model does not have",
            remedy=f"Use its labels: {', '.join(labels):.400}.",
        )
    return labels.index(label)


def _read_lines(listing: Path) -> Iterator[tuple[str, bytes, str]]:
    """Yield the location, the encoded image and the label of each line."""
    try:
        lines = listing.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{listing}: the evaluation set cannot be read: {error}", remedy=_EXAMPLE
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        location = f"{listing}:{number}"
        try:
            entry = json.loads(line)
            file, label = entry["image"], entry["label"]
            if not isinstance(label, str):
                raise TypeError("label is not text")
            yield location, (listing.parent / file).read_bytes(), label
        except (ValueError, KeyError, TypeError) as error:
            raise BuildError(
                f"{location}: is not an image with a label: {error}", remedy=_EXAMPLE
            ) from error
        except OSError as error:
            raise BuildError(f"{location}: {error}", remedy=_EXAMPLE) from error
