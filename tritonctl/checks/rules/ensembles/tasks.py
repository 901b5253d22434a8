# SPDX-License-Identifier: Apache-2.0
"""TC35x: steps of a task that belong to different models.

A step that reads texts or images, or names labels, has a file with the builder's data from the
checkpoint (task/task.json). The engine's tensors hold its side. Triton loads both without
comparing them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tritonctl.checks.analysis.graph import EnsembleGraph, GraphStep, Link
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning
from tritonctl.checks.small_file import UnreadableError, is_file, read_small

_TASK_FILE = "task/task.json"
_MAX_BYTES = 1 << 20
_IDS, _MASK, _PIXELS = "input_ids", "attention_mask", "pixel_values"
# The engine's outputs that have a value for each label.
_SCORES = ("scores", "token_scores")


class _TaskEdge(NamedTuple):
    """A tensor between a step with a task file and the engine."""

    task: dict[str, Any]
    step: GraphStep
    link: Link
    engine: str
    dims: tuple[int, ...]


@warning(
    "TC351 mask-not-read",
    summary="an encoder that gets padded token ids and not their attention mask",
    reason="Texts are padded to the longest of their batch. Without the mask the padding counts as "
    "text: a response depends on the other texts in its batch.",
    shows="traffic",
)
def mask_not_read(config: ConfigMessage, ensemble: EnsembleGraph) -> Iterator[Hit]:
    for step in ensemble.steps:
        ids = next((link for link in step.inputs if link.name == _IDS), None)
        if ids is None or step.interface is None or not _is_padded(step, ids):
            continue
        if any(_MASK in link.name for link in step.inputs):
            continue
        for writer in ensemble.writers.get(ids.tensor, ()):
            tokenizer = ensemble.steps[writer.step].interface
            if tokenizer is not None and _MASK in tokenizer.outputs:
                has_mask_input = _MASK in step.interface.inputs
                yield Hit(
                    f"{step.name} reads {_IDS} of {tokenizer.name} and not its {_MASK}: padding "
                    "counts as text",
                    f"map {_MASK} to it"
                    if has_mask_input
                    else f"export the graph with an input {_MASK}, and map it",
                    config.name_span(*ids.path),
                )


def _is_padded(step: GraphStep, ids: Link) -> bool:
    interface = step.interface
    runs_batches = (
        interface is None or interface.max_batch_size is None or interface.max_batch_size > 1
    )
    dims = ids.spec.dims if ids.spec else None
    return runs_batches and dims is not None and -1 in dims


@error(
    "TC352 labels-of-another-model",
    summary="a list of labels that is not as long as the engine's scores",
    reason="A label is looked up by its number. With another model's list every response has wrong "
    "labels, or fails.",
    shows="traffic",
)
def labels_of_another_model(
    config: ConfigMessage, ensemble: EnsembleGraph, repository: Repository
) -> Iterator[Hit]:
    for edge in _edges_into_tasks(ensemble, repository):
        labels, count = edge.task.get("labels"), edge.dims[-1] if edge.dims else -1
        if edge.link.name not in _SCORES or not isinstance(labels, list) or count in (-1, 0):
            continue
        if labels and len(labels) != count:
            yield Hit(
                f"{edge.step.name} has {len(labels)} labels ({_TASK_FILE}), and {edge.engine} "
                f"gives {count} scores",
                "build both from one checkpoint: its id2label has a label for each score",
                config.name_span(*edge.link.path),
            )


@error(
    "TC353 image-of-another-size",
    summary="an image step whose image size differs from the engine's",
    reason="Triton loads both, and every request fails in the middle of the ensemble with "
    "`unexpected shape`.",
    shows="traffic",
)
def image_of_another_size(
    config: ConfigMessage, ensemble: EnsembleGraph, repository: Repository
) -> Iterator[Hit]:
    for edge in _edges_out_of_tasks(ensemble, repository):
        image = edge.task.get("image")
        if edge.link.name != _PIXELS or not isinstance(image, dict) or len(edge.dims) < len("hw"):
            continue
        image_size = (image.get("height"), image.get("width"))
        engine_size = edge.dims[-2:]
        if all(isinstance(size, int) for size in image_size) and any(
            expected not in (-1, size)
            for expected, size in zip(engine_size, image_size, strict=True)
        ):
            yield Hit(
                f"{edge.step.name} writes images of {image_size[0]} x {image_size[1]} pixels "
                f"({_TASK_FILE}), "
                f"and {edge.engine} reads {engine_size[0]} x {engine_size[1]} (height x width)",
                "build both from one checkpoint: its preprocessor_config.json has the size",
                config.name_span(*edge.link.path),
            )


def _edges_into_tasks(ensemble: EnsembleGraph, repository: Repository) -> Iterator[_TaskEdge]:
    """Yield the tensors that steps with a task file read, with their writers."""
    for step, task in _steps_with_tasks(ensemble, repository):
        for link in step.inputs:
            yield from _task_edges(step, task, link, ensemble.writers.get(link.tensor, ()))


def _edges_out_of_tasks(ensemble: EnsembleGraph, repository: Repository) -> Iterator[_TaskEdge]:
    """Yield the tensors that steps with a task file write, with their readers."""
    for step, task in _steps_with_tasks(ensemble, repository):
        for link in step.outputs:
            yield from _task_edges(step, task, link, ensemble.readers.get(link.tensor, ()))


def _task_edges(
    step: GraphStep, task: dict[str, Any], link: Link, peer_links: Iterator[Link] | Any
) -> Iterator[_TaskEdge]:
    for peer in peer_links:
        if peer.spec is not None and peer.spec.dims is not None and peer.step != step.index:
            yield _TaskEdge(task, step, link, peer.spec.model, peer.spec.dims)


def _steps_with_tasks(
    ensemble: EnsembleGraph, repository: Repository
) -> Iterator[tuple[GraphStep, dict[str, Any]]]:
    for step in ensemble.steps:
        model = repository.models.get(step.name)
        task = _task_file(model) if model else None
        if task is not None:
            yield step, task


def _task_file(model: Model) -> dict[str, Any] | None:
    """Return the task file of the served version; None if it is missing or unreadable."""
    return memoized(model, _TASK_FILE, lambda: _read_task(model))


def _read_task(model: Model) -> dict[str, Any] | None:
    if model.served_version is None:
        return None
    file = model.path / str(model.served_version) / _TASK_FILE
    try:
        record = json.loads(read_small(file, _MAX_BYTES)) if is_file(file) else None
    except (UnreadableError, ValueError, RecursionError, OSError):
        return None
    return record if isinstance(record, dict) else None
