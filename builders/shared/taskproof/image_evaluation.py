# SPDX-License-Identifier: Apache-2.0
"""The user's own images with their labels, through the reference and the engine: accuracy.

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
from buildlib.program import say
from buildlib.request import Request
from taskcompile.image_task import IMAGE_CLASSIFICATION

_EXAMPLE = 'Write each line as {"image": "FILE", "label": "..."}, FILE as seen from this file.'
_MOST_PIXELS = 50_000_000


def evaluate(
    request: Request,
    task: str,
    labels: Sequence[str],
    settings: ImageSettings,
    reference: Callable[[bytes], int] | float,
    engine: Callable[[Any], Any],
) -> dict[str, Any] | None:
    """The `evaluation` of the proof; None without a set.

    `reference`: the label that the reference gives an image, or its accuracy where that is known.

    Raises:
        BuildError: the set cannot be read, or the engine is below the minimum.
    """
    asked = request.evaluation
    if asked is None:
        return None
    if task != IMAGE_CLASSIFICATION:
        raise BuildError(
            f"evaluation is set, and the task {task} has no measure for it",
            remedy="Remove evaluation; the proof compares with transformers all the same.",
        )
    processor = ImageProcessor(settings, max_pixels=_MOST_PIXELS)
    before = after = samples = 0
    for where, file, label in islice(_lines(asked.prompts), asked.max_prompts):
        if label not in labels:
            raise BuildError(
                f"{where}: has the label {label!r:.80}, which the model does not have",
                remedy=f"Use its labels: {', '.join(labels):.400}.",
            )
        try:
            pixels = processor.pixels(file)
        except ItemError as error:
            raise BuildError(f"{where}: {error}", remedy="Replace or remove the file.") from error
        right = labels.index(label)
        samples += 1
        if not isinstance(reference, float):
            before += reference(file) == right
        after += int(engine(pixels[None])[0].argmax()) == right
    if not samples:
        raise BuildError(f"{asked.prompts}: holds no lines", remedy=_EXAMPLE)
    accuracy = after / samples
    known = reference if isinstance(reference, float) else before / samples
    own = {
        "metric": "accuracy",
        "samples": samples,
        "reference": known,
        "engine": accuracy,
        "least": asked.min_score,
    }
    say(f"accuracy of {samples}: {accuracy:.4g}, of the checkpoint {known:.4g}")
    if asked.min_score is not None and accuracy < asked.min_score:
        raise BuildError(
            f"the {request.precision} engine has an accuracy of {accuracy:.4g} on "
            f"{asked.prompts} (the checkpoint {known:.4g}), and evaluation.min_score "
            f"asks for {asked.min_score:.4g}",
            remedy="Set engine.precision to a finer one, or lower evaluation.min_score.",
        )
    return own


def _lines(listing: Path) -> Iterator[tuple[str, bytes, str]]:
    """Where a line stands, its image's bytes, its label."""
    try:
        lines = listing.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{listing}: the evaluation set cannot be read: {error}", remedy=_EXAMPLE
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{listing}:{number}"
        try:
            entry = json.loads(line)
            file, label = entry["image"], entry["label"]
            if not isinstance(label, str):
                raise TypeError("label is no text")
            yield where, (listing.parent / file).read_bytes(), label
        except (ValueError, KeyError, TypeError) as error:
            raise BuildError(
                f"{where}: is no image with a label: {error}", remedy=_EXAMPLE
            ) from error
        except OSError as error:
            raise BuildError(f"{where}: {error}", remedy=_EXAMPLE) from error
