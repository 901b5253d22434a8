# SPDX-License-Identifier: Apache-2.0
"""What both sides answer to a case, and how far apart they are. Needs numpy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskcompile.task import EMBEDDING, RERANK, TAGGING, Task
from taskproof.figures import FP32, Figure, figure

_SMALLEST = 1e-12


@dataclass(frozen=True)
class Answer:
    """One case's answer. `ids`: token ids, and `types` where the graph reads them.

    values: FP32[dimension], FP32[labels], FP32[1] or FP32[tokens, labels]; None where the text has
    more tokens than are compared. entities: (label, start, end) of each.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    values: Any
    entities: tuple[tuple[str, int, int], ...] = ()


Bound = Callable[[str, float], Figure]


def compared(
    task: Task,
    expected: Sequence[Answer],
    got: Sequence[Answer],
    precision: str,
    moved: dict[str, float] | None = None,
) -> list[Figure]:
    """The figures of answers against the reference's, in the order of the cases."""

    def bounded(name: str, value: float) -> Figure:
        return figure(name, value, precision, moved)

    pairs = list(zip(expected, got, strict=True))
    figures = [read_alike(expected, got)]
    # Another number of tokens is seen by the figure above.
    alike = [
        (want.values, have.values)
        for want, have in pairs
        if want.values is not None and have.values is not None
        if want.values.shape == have.values.shape
    ]
    if task.name == EMBEDDING:
        figures += _vectors(alike, bounded)
    else:
        figures += _scores(task, alike, bounded)
    if task.name == TAGGING:
        same = [want.entities == have.entities for want, have in pairs if want.values is not None]
        figures.append(bounded("entities", float(np.mean(same))))
    return figures


def read_alike(expected: Sequence[Answer], got: Sequence[Answer]) -> Figure:
    """The share of cases with the reference's tokens; no precision changes them."""
    same = [w.ids == g.ids and w.types == g.types for w, g in zip(expected, got, strict=True)]
    return figure("tokens", float(np.mean(same)), FP32)


def _vectors(pairs: Sequence[tuple[Any, Any]], bounded: Bound) -> Iterator[Figure]:
    lengths = [np.linalg.norm(np.array(pair, dtype=np.float64), axis=1) for pair in pairs]
    yield bounded("cosine", min(cosine(*pair) for pair in pairs))
    yield bounded("length", max(abs(have / max(want, _SMALLEST) - 1) for want, have in lengths))


def cosine(left: Any, right: Any) -> float:
    """Of two vectors FP32[n]; 0 where one is all zeros or not finite."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    product = np.linalg.norm(left) * np.linalg.norm(right)
    if not np.isfinite(product) or product < _SMALLEST:
        return 0.0
    return float(left @ right / product)


def _scores(task: Task, pairs: Sequence[tuple[Any, Any]], bounded: Bound) -> Iterator[Figure]:
    yield bounded("score", largest_difference(pairs))
    tie = scale_of(pairs) * bounded("score", 0.0).bound
    if task.name == RERANK:
        yield bounded("order", _same_order(pairs, tie))
    elif len(task.labels) > 1:
        yield bounded("label", _same_label(pairs, tie))


def scale_of(pairs: Sequence[tuple[Any, Any]]) -> float:
    """1 for probabilities; of logits the largest, if that is more."""
    return max(1.0, *(float(np.abs(want).max(initial=0.0)) for want, _ in pairs))


def largest_difference(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Between scores, as a share of the scale. Infinite where a score is no number."""
    differences = [np.abs(want - have) for want, have in pairs]
    if not all(np.isfinite(one).all() for one in differences):
        return float("inf")
    return max(float(one.max(initial=0.0)) for one in differences) / scale_of(pairs)


def _same_label(pairs: Sequence[tuple[Any, Any]], tie: float) -> float:
    """The share of rows whose best label is the reference's, or as good as it within `tie`."""
    same: list[Any] = []
    for want, have in pairs:
        rows = want.reshape(-1, want.shape[-1])
        chosen = have.reshape(rows.shape).argmax(1)
        taken = np.take_along_axis(rows, chosen[:, None], axis=1)[:, 0]
        same.append(rows.max(1) - taken <= tie)
    return float(np.concatenate(same).mean())


def _same_order(pairs: Sequence[tuple[Any, Any]], tie: float) -> float:
    """The share of pairs of cases that have the reference's order, or no order within `tie`."""
    want = np.array([one.item() for one, _ in pairs])
    have = np.array([one.item() for _, one in pairs])
    above = want[:, None] - want[None, :] > tie
    kept = have[:, None] > have[None, :]
    return float(kept[above].mean()) if above.any() else 1.0


def alone_and_together(
    task: Task,
    alone: Sequence[Any],
    together: Sequence[Any],
    precision: str,
    moved: dict[str, float] | None = None,
) -> Figure:
    """How far an input's answer in a padded batch is from the one that it gets alone."""
    pairs = list(zip(alone, together, strict=True))
    if task.name == EMBEDDING:
        return figure("batch cosine", min(cosine(*pair) for pair in pairs), precision, moved)
    return figure("batch score", largest_difference(pairs), precision, moved)
