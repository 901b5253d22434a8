# SPDX-License-Identifier: Apache-2.0
"""Compares the engine's answers to the cases with the reference's. Needs numpy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildlib.result_types import BoundedFigure
from taskcompile.task import EMBEDDING, RERANK, TAGGING, TextTask
from taskproof.figures import FP32, bounded_figure

_SMALLEST = 1e-12


@dataclass(frozen=True)
class CaseAnswer:
    """The answer to one case."""

    ids: tuple[int, ...]  # of the tokens
    types: tuple[int, ...] | None  # of the tokens, if the graph reads them
    # FP32[dimension], FP32[labels], FP32[1] or FP32[tokens, labels]; None: too many tokens.
    values: Any
    entities: tuple[tuple[str, int, int], ...] = ()  # label, start, end


FigureFactory = Callable[[str, float], BoundedFigure]


def compare_answers(
    task: TextTask,
    expected: Sequence[CaseAnswer],
    actual: Sequence[CaseAnswer],
    precision: str,
    bound_overrides: dict[str, float] | None = None,
) -> list[BoundedFigure]:
    """Return the figures of the answers. Both lists are in the order of the cases."""

    def make_figure(name: str, value: float) -> BoundedFigure:
        return bounded_figure(name, value, precision, bound_overrides)

    pairs = list(zip(expected, actual, strict=True))
    figures = [tokens_figure(expected, actual)]
    # The figure above shows a different number of tokens.
    comparable = [
        (want.values, have.values)
        for want, have in pairs
        if want.values is not None and have.values is not None
        if want.values.shape == have.values.shape
    ]
    if task.name == EMBEDDING:
        figures += _vector_figures(comparable, make_figure)
    else:
        figures += _score_figures(task, comparable, make_figure)
    if task.name == TAGGING:
        same = [want.entities == have.entities for want, have in pairs if want.values is not None]
        figures.append(make_figure("entities", float(np.mean(same))))
    return figures


def tokens_figure(expected: Sequence[CaseAnswer], actual: Sequence[CaseAnswer]) -> BoundedFigure:
    """Return the share of cases with the reference's tokens. No precision changes tokens."""
    same = [w.ids == g.ids and w.types == g.types for w, g in zip(expected, actual, strict=True)]
    return bounded_figure("tokens", float(np.mean(same)), FP32)


def _vector_figures(
    pairs: Sequence[tuple[Any, Any]], make_figure: FigureFactory
) -> Iterator[BoundedFigure]:
    lengths = [np.linalg.norm(np.array(pair, dtype=np.float64), axis=1) for pair in pairs]
    yield make_figure("cosine", min(cosine(*pair) for pair in pairs))
    yield make_figure("length", max(abs(have / max(want, _SMALLEST) - 1) for want, have in lengths))


def cosine(expected: Any, actual: Any) -> float:
    """Return the cosine of two vectors FP32[n], or 0 if one is all zeros or not finite."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    product = np.linalg.norm(expected) * np.linalg.norm(actual)
    if not np.isfinite(product) or product < _SMALLEST:
        return 0.0
    return float(expected @ actual / product)


def _score_figures(
    task: TextTask, pairs: Sequence[tuple[Any, Any]], make_figure: FigureFactory
) -> Iterator[BoundedFigure]:
    yield make_figure("score", max_score_difference(pairs))
    tie = score_scale(pairs) * make_figure("score", 0.0).bound
    if task.name == RERANK:
        yield make_figure("order", _order_share(pairs, tie))
    elif len(task.labels) > 1:
        yield make_figure("label", _label_share(pairs, tie))


def score_scale(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return 1 for probabilities, and the largest absolute logit if that is more."""
    return max(1.0, *(float(np.abs(want).max(initial=0.0)) for want, _ in pairs))


def max_score_difference(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return the largest score difference as a share of the scale; infinite if not finite."""
    differences = [np.abs(want - have) for want, have in pairs]
    if not all(np.isfinite(difference).all() for difference in differences):
        return float("inf")
    return max(float(difference.max(initial=0.0)) for difference in differences) / score_scale(
        pairs
    )


def _label_share(pairs: Sequence[tuple[Any, Any]], tie: float) -> float:
    """Return the share of rows whose best label is the reference's, or ties with it."""
    same: list[Any] = []
    for want, have in pairs:
        rows = want.reshape(-1, want.shape[-1])
        chosen = have.reshape(rows.shape).argmax(1)
        chosen_scores = np.take_along_axis(rows, chosen[:, None], axis=1)[:, 0]
        same.append(rows.max(1) - chosen_scores <= tie)
    return float(np.concatenate(same).mean())


def _order_share(pairs: Sequence[tuple[Any, Any]], tie: float) -> float:
    """Return the share of pairs of cases in the reference's order. Ties do not count."""
    want = np.array([score.item() for score, _ in pairs])
    have = np.array([score.item() for _, score in pairs])
    above = want[:, None] - want[None, :] > tie
    ordered = have[:, None] > have[None, :]
    return float(ordered[above].mean()) if above.any() else 1.0


def batching_figure(
    task: TextTask,
    single: Sequence[Any],
    batched: Sequence[Any],
    precision: str,
    bound_overrides: dict[str, float] | None = None,
) -> BoundedFigure:
    """Return the distance between answers in padded batches and answers to single inputs."""
    pairs = list(zip(single, batched, strict=True))
    if task.name == EMBEDDING:
        return bounded_figure(
            "batch cosine", min(cosine(*pair) for pair in pairs), precision, bound_overrides
        )
    return bounded_figure("batch score", max_score_difference(pairs), precision, bound_overrides)
