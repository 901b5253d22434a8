# SPDX-License-Identifier: Apache-2.0
"""How far an engine's outputs are from its source's. Needs numpy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from taskproof.feeds import Feed

_MASK = "attention_mask"
_SCORES = "logits"
_ROWS_AND_COLUMNS = 2
_STATES = 3
# So few texts have no neighbours worth comparing.
_FEWEST_NEIGHBOURS = 3


@dataclass(frozen=True)
class Outcome:
    """The `parity` object of the build result.

    `samples`: how many texts or samples were compared. `prediction_match`: the share of them with
    the same best label (`logits`) or the same nearest other text (an encoder's vectors).
    """

    samples: int
    max_abs_error: float
    prediction_match: float | None


@dataclass(frozen=True)
class Comparison:
    """The same feeds through source and engine: arrays by feed, then by output."""

    outputs: Sequence[str]
    feeds: Sequence[Feed]
    expected: Sequence[Sequence[Any]]
    got: Sequence[Sequence[Any]]


def check_batching(comparison: Comparison) -> None:
    """Check that each output has one row for each row of the input.

    Raises:
        BuildError: one has not: the answers of a batch could not be given back to its requests.
    """
    for feed, arrays in zip(comparison.feeds, comparison.got, strict=True):
        rows = _rows(feed)
        for name, array in zip(comparison.outputs, arrays, strict=True):
            if array.ndim == 0 or len(array) != rows:
                raise BuildError(
                    f"the output {name} has the shape {list(array.shape)} for a batch of {rows}: "
                    "its first dimension is not the batch",
                    remedy="Export the graph so that every output has one row for each input row.",
                )


def _rows(feed: Feed) -> int:
    return len(next(iter(feed.values())))


def largest_error(comparison: Comparison) -> tuple[float, float]:
    """Return the largest difference and the source's largest value, padding left out.

    Raises:
        BuildError: the engine answers what is not a number where its source answers numbers.
    """
    error = peak = 0.0
    for feed, wanted, had in zip(
        comparison.feeds, comparison.expected, comparison.got, strict=True
    ):
        for name, want, have in zip(comparison.outputs, wanted, had, strict=True):
            if want.dtype == object:
                error = max(error, float((want != have).any()))
                continue
            left, right = (_without_padding(array, feed) for array in (want, have))
            _refuse_not_a_number(name, left, right)
            finite = np.isfinite(left)
            error = max(error, float(np.abs(left - right)[finite].max(initial=0.0)))
            peak = max(peak, float(np.abs(left)[finite].max(initial=0.0)))
    return error, peak


def _without_padding(array: Any, feed: Feed) -> Any:
    """The values that mean something: what an encoder says about padding does not."""
    values = array.astype(np.float64)
    mask = feed.get(_MASK)
    if mask is None or values.ndim < _STATES or values.shape[:2] != mask.shape:
        return values
    return values[mask.astype(bool)]


def _refuse_not_a_number(name: str, want: Any, have: Any) -> None:
    lost = int((np.isfinite(want) & ~np.isfinite(have)).sum())
    if lost:
        raise BuildError(
            f"{lost} values of the output {name} are infinite or not a number, where the source "
            "has numbers: the precision's range does not suffice",
            remedy="Set engine.precision to fp32, or to int8.",
        )


def prediction_match(comparison: Comparison) -> float | None:
    """Return the share of rows whose prediction is the same; None where nothing is predicted."""
    if _SCORES in comparison.outputs:
        return _same(*(_labels(comparison, side) for side in (comparison.expected, comparison.got)))
    vectors = [_vectors(comparison, side) for side in (comparison.expected, comparison.got)]
    if vectors[0] is None or len(vectors[0]) < _FEWEST_NEIGHBOURS:
        return None
    return _same(*(_nearest(array) for array in vectors))


def _same(want: Any, have: Any) -> float:
    return float((want == have).mean())


def _labels(comparison: Comparison, side: Sequence[Sequence[Any]]) -> Any:
    at = list(comparison.outputs).index(_SCORES)
    return np.concatenate([arrays[at].reshape(len(arrays[at]), -1).argmax(1) for arrays in side])


def _vectors(comparison: Comparison, side: Sequence[Sequence[Any]]) -> Any:
    """One vector per row: the first output as it is, or its mean over what is no padding."""
    rows = []
    for feed, arrays in zip(comparison.feeds, side, strict=True):
        first, mask = arrays[0], feed.get(_MASK)
        if mask is None or first.dtype == object:
            return None
        if first.ndim == _STATES:
            weights = mask[..., None].astype(np.float64)
            first = (first * weights).sum(1) / weights.sum(1)
        if first.ndim != _ROWS_AND_COLUMNS:
            return None
        rows.append(first)
    return np.concatenate(rows)


def _nearest(vectors: Any) -> Any:
    """The row of each row's nearest other row, by cosine."""
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = directions @ directions.T
    np.fill_diagonal(similarity, -np.inf)
    return similarity.argmax(1)


def outcome(comparison: Comparison, error: float) -> Outcome:
    """Return the figures."""
    return Outcome(
        samples=sum(_rows(feed) for feed in comparison.feeds),
        max_abs_error=error,
        prediction_match=prediction_match(comparison),
    )
