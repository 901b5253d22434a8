# SPDX-License-Identifier: Apache-2.0
"""Compares an engine's outputs with its source's. Needs numpy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from buildlib.result_types import ParityResult
from taskproof.feeds import Feed

_MASK = "attention_mask"
_SCORES = "logits"
_ROWS_AND_COLUMNS = 2
_STATES = 3
# Kernels of other batch sizes round differently. Share of the largest value.
_ROW_TOLERANCE = 1e-3
# With fewer texts, nearest neighbours are not comparable.
_MIN_NEIGHBOURS = 3


@dataclass(frozen=True)
class ParityComparison:
    """The outputs of source and engine for the same feeds: arrays by feed, then by output."""

    outputs: Sequence[str]
    feeds: Sequence[Feed]
    expected: Sequence[Sequence[Any]]
    actual: Sequence[Sequence[Any]]
    batched: bool = True  # the first dimension of every tensor is the batch


def check_batching(comparison: ParityComparison) -> None:
    """Check that each output has one row for each row of the input.

    Raises:
        BuildError: an output has not, so a batch could not be split into its requests' answers.
    """
    for feed, arrays in zip(comparison.feeds, comparison.actual, strict=True):
        rows = _rows(feed)
        for name, array in zip(comparison.outputs, arrays, strict=True):
            if array.ndim == 0 or len(array) != rows:
                raise BuildError(
                    f"the output {name} has the shape {list(array.shape)} for a batch of {rows}: "
                    "its first dimension is not the batch",
                    remedy="Export the graph so that every output has one row for each input row; "
                    "or set engine.max_batch_size to 0: it then runs once for each request.",
                )


def check_rows(comparison: ParityComparison, source: Callable[[Feed], Sequence[Any]]) -> None:
    """Check that a row's answer does not depend on the other rows of its batch.

    `source`: returns the source's outputs for a feed.

    Raises:
        BuildError: it does, so requests that share a run would change each other's answers.
    """
    for feed, arrays in zip(comparison.feeds, comparison.expected, strict=True):
        last = _rows(feed) - 1
        if not last:
            continue
        alone = source({name: array[last:] for name, array in feed.items()})
        for name, single, batch in zip(comparison.outputs, alone, arrays, strict=True):
            if not _is_same(single, batch[last:]):
                raise BuildError(
                    f"the output {name} of a row changes with the other rows of its batch: the "
                    "first dimension is not the batch",
                    remedy="Set engine.max_batch_size to 0: the graph then runs once for each "
                    "request. To batch requests, export it so that rows are independent.",
                )
        return


def _is_same(single: Any, row: Any) -> bool:
    if single.shape != row.shape:
        return False
    if single.dtype.kind != "f":
        return bool((single == row).all())
    peak = np.abs(row[np.isfinite(row)]).max(initial=0.0)
    return bool(np.allclose(single, row, rtol=0, atol=_ROW_TOLERANCE * peak, equal_nan=True))


def _rows(feed: Feed) -> int:
    return len(next(iter(feed.values())))


def max_error(comparison: ParityComparison) -> tuple[float, float]:
    """Return the largest difference and the source's largest value, without padding.

    Raises:
        BuildError: the engine answers infinity or NaN where the source answers numbers.
    """
    error = peak = 0.0
    for feed, expected_outputs, actual_arrays in zip(
        comparison.feeds, comparison.expected, comparison.actual, strict=True
    ):
        for name, expected, actual in zip(
            comparison.outputs, expected_outputs, actual_arrays, strict=True
        ):
            if expected.dtype == object:
                error = max(error, float((expected != actual).any()))
                continue
            expected_values, actual_values = (
                _without_padding(array, feed) for array in (expected, actual)
            )
            _refuse_not_a_number(name, expected_values, actual_values)
            finite = np.isfinite(expected_values)
            error = max(
                error, float(np.abs(expected_values - actual_values)[finite].max(initial=0.0))
            )
            peak = max(peak, float(np.abs(expected_values)[finite].max(initial=0.0)))
    return error, peak


def _without_padding(array: Any, feed: Feed) -> Any:
    """Return the values of an output without those of padding."""
    values = array.astype(np.float64)
    mask = feed.get(_MASK)
    if mask is None or values.ndim < _STATES or values.shape[:2] != mask.shape:
        return values
    return values[mask.astype(bool)]


def _refuse_not_a_number(name: str, expected: Any, actual: Any) -> None:
    lost_count = int((np.isfinite(expected) & ~np.isfinite(actual)).sum())
    if lost_count:
        raise BuildError(
            f"{lost_count} values of the output {name} are infinite or not a number, where the "
            "source has numbers: the precision's range is too small",
            remedy="Set engine.precision to fp32, or to int8.",
        )


def prediction_match(comparison: ParityComparison) -> float | None:
    """Return the share of rows with the same prediction, or None without predictions."""
    if not comparison.batched:
        return None
    if _SCORES in comparison.outputs:
        return _match_share(
            *(_labels(comparison, side) for side in (comparison.expected, comparison.actual))
        )
    vectors = [_vectors(comparison, side) for side in (comparison.expected, comparison.actual)]
    if vectors[0] is None or len(vectors[0]) < _MIN_NEIGHBOURS:
        return None
    return _match_share(*(_nearest_rows(array) for array in vectors))


def _match_share(expected: Any, actual: Any) -> float:
    return float((expected == actual).mean())


def _labels(comparison: ParityComparison, side: Sequence[Sequence[Any]]) -> Any:
    at = list(comparison.outputs).index(_SCORES)
    return np.concatenate([arrays[at].reshape(len(arrays[at]), -1).argmax(1) for arrays in side])


def _vectors(comparison: ParityComparison, side: Sequence[Sequence[Any]]) -> Any:
    """Return one vector per row: the first output, or its mean over the tokens."""
    rows = []
    for feed, arrays in zip(comparison.feeds, side, strict=True):
        array, mask = arrays[0], feed.get(_MASK)
        if mask is None or array.dtype == object:
            return None
        if array.ndim == _STATES:
            weights = mask[..., None].astype(np.float64)
            array = (array * weights).sum(1) / weights.sum(1)
        if array.ndim != _ROWS_AND_COLUMNS:
            return None
        rows.append(array)
    return np.concatenate(rows)


def _nearest_rows(vectors: Any) -> Any:
    """Return the index of each row's nearest other row by cosine."""
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = directions @ directions.T
    np.fill_diagonal(similarity, -np.inf)
    return similarity.argmax(1)


def parity_result(comparison: ParityComparison, error: float) -> ParityResult:
    """Return the `parity` object."""
    return ParityResult(
        samples=sum(_rows(feed) if comparison.batched else 1 for feed in comparison.feeds),
        max_abs_error=error,
        prediction_match=prediction_match(comparison),
    )
