# SPDX-License-Identifier: Apache-2.0
"""TC35x: whether the steps of a task are of one model.

A step that reads texts or images, or names labels, has what the builder read in the checkpoint's
files beside it (task/task.json); what the engine has is in its tensors. Triton loads both, whatever
they say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tritonctl.checks.analysis.graph import Graph, Link, Step
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning
from tritonctl.checks.small_file import UnreadableError, read_small

_TASK_FILE = "task/task.json"
_LARGEST = 1 << 20
_IDS, _MASK, _PIXELS = "input_ids", "attention_mask", "pixel_values"
# The engine's outputs that have a value for each label.
_SCORES = ("scores", "token_scores")


class _Sides(NamedTuple):
    """A tensor between a step with a task file and the engine's side of it."""

    task: dict[str, Any]
    step: Step
    link: Link
    engine: str
    dims: tuple[int, ...]


@warning(
    "TC351 mask-not-read",
    summary="an encoder that gets padded token ids and not their attention mask",
    why="Texts of different lengths are padded to the longest of their batch. Without the mask the "
    "padding counts as text: answers depend on the texts that a request happens to share a run "
    "with.",
    shows="traffic",
)
def mask_not_read(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    for step in ensemble.steps:
        ids = next((link for link in step.inputs if link.name == _IDS), None)
        if ids is None or step.interface is None or not _is_padded(step, ids):
            continue
        if any(_MASK in link.name for link in step.inputs):
            continue
        for writer in ensemble.writers.get(ids.tensor, ()):
            tokenizer = ensemble.steps[writer.step].interface
            if tokenizer is not None and _MASK in tokenizer.outputs:
                has = _MASK in step.interface.inputs
                yield Hit(
                    f"{step.name} reads {_IDS} of {tokenizer.name} and not its {_MASK}: padding "
                    "counts as text",
                    f"map {_MASK} to it"
                    if has
                    else f"export the graph with an input {_MASK}, and map it",
                    config.name_span(*ids.path),
                )


def _is_padded(step: Step, ids: Link) -> bool:
    interface = step.interface
    batches = interface is None or interface.max_batch_size is None or interface.max_batch_size > 1
    dims = ids.side.dims if ids.side else None
    return batches and dims is not None and -1 in dims


@error(
    "TC352 labels-of-another-model",
    summary="a list of labels that is not as long as the engine's scores",
    why="A label is found by its number: with a list of another model every answer is named wrong, "
    "or fails.",
    shows="traffic",
)
def labels_of_another_model(
    config: ConfigMessage, ensemble: Graph, repository: Repository
) -> Iterator[Hit]:
    for sides in _read_by(ensemble, repository):
        labels, count = sides.task.get("labels"), sides.dims[-1] if sides.dims else -1
        if sides.link.name not in _SCORES or not isinstance(labels, list) or count in (-1, 0):
            continue
        if labels and len(labels) != count:
            yield Hit(
                f"{sides.step.name} has {len(labels)} labels ({_TASK_FILE}), and {sides.engine} "
                f"gives {count} scores",
                "build both from one checkpoint: its id2label has a label for each score",
                config.name_span(*sides.link.path),
            )


@error(
    "TC353 image-of-another-size",
    summary="an image step that makes images of another size than the engine reads",
    why="Triton loads both; then every request fails in the middle of the ensemble, with "
    "`unexpected shape`.",
    shows="traffic",
)
def image_of_another_size(
    config: ConfigMessage, ensemble: Graph, repository: Repository
) -> Iterator[Hit]:
    for sides in _written_by(ensemble, repository):
        image = sides.task.get("image")
        if sides.link.name != _PIXELS or not isinstance(image, dict) or len(sides.dims) < len("hw"):
            continue
        made = (image.get("height"), image.get("width"))
        wanted = sides.dims[-2:]
        if all(isinstance(size, int) for size in made) and any(
            need not in (-1, size) for need, size in zip(wanted, made, strict=True)
        ):
            yield Hit(
                f"{sides.step.name} makes images of {made[0]} x {made[1]} pixels ({_TASK_FILE}), "
                f"and {sides.engine} reads {wanted[0]} x {wanted[1]} (height x width)",
                "build both from one checkpoint: its preprocessor_config.json has the size",
                config.name_span(*sides.link.path),
            )


def _read_by(ensemble: Graph, repository: Repository) -> Iterator[_Sides]:
    """What steps with a task file read, and what writes it."""
    for step, task in _with_tasks(ensemble, repository):
        for link in step.inputs:
            yield from _sides(step, task, link, ensemble.writers.get(link.tensor, ()))


def _written_by(ensemble: Graph, repository: Repository) -> Iterator[_Sides]:
    """What steps with a task file write, and what reads it."""
    for step, task in _with_tasks(ensemble, repository):
        for link in step.outputs:
            yield from _sides(step, task, link, ensemble.readers.get(link.tensor, ()))


def _sides(
    step: Step, task: dict[str, Any], link: Link, others: Iterator[Link] | Any
) -> Iterator[_Sides]:
    for other in others:
        if other.side is not None and other.side.dims is not None and other.step != step.index:
            yield _Sides(task, step, link, other.side.model, other.side.dims)


def _with_tasks(ensemble: Graph, repository: Repository) -> Iterator[tuple[Step, dict[str, Any]]]:
    for step in ensemble.steps:
        model = repository.models.get(step.name)
        task = _task_of(model) if model else None
        if task is not None:
            yield step, task


def _task_of(model: Model) -> dict[str, Any] | None:
    """The task file of the served version; None where there is none that can be read."""
    return memoized(model, _TASK_FILE, lambda: _read_task(model))


def _read_task(model: Model) -> dict[str, Any] | None:
    if model.served_version is None:
        return None
    file = model.path / str(model.served_version) / _TASK_FILE
    try:
        record = json.loads(read_small(file, _LARGEST)) if file.is_file() else None
    except (UnreadableError, ValueError, RecursionError, OSError):
        return None
    return record if isinstance(record, dict) else None
