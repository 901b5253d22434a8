# SPDX-License-Identifier: Apache-2.0
"""Join requests into one run of a graph, and split its outputs again. Numpy only.

Requests join along the first dimension if all other dimensions agree. Texts of different lengths
join if the builder has measured the effect of padding (builders/shared/taskproof/padding.py). A
failed run is repeated request by request, so that only the faulty request gets the error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MASK = "attention_mask"
_BATCH_AND_LENGTH = 2

Arrays = Mapping[str, Any]
# Takes arrays by input name and output names; returns these outputs in their order.
RunGraph = Callable[[Arrays, Sequence[str]], Sequence[Any]]
Answer = dict[str, Any] | Exception
# Name, type and dimensions (without the first one) of every input.
BatchKey = tuple[tuple[str, Any, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Padding:
    """How texts of different lengths share a run; by default they do not."""

    inputs: Mapping[str, int] = field(default_factory=dict)  # pad value by input [rows, length]
    outputs: Sequence[str] = ()  # outputs with a value for each token
    run_tokens: float = 0.0  # tokens of padding that cost as much as a run


@dataclass(frozen=True)
class GraphRequest:
    """One request for a graph."""

    arrays: Arrays  # by input name, batch dimension first
    outputs: tuple[str, ...]  # names of the requested outputs

    @property
    def rows(self) -> int:
        """The size of its batch dimension."""
        return len(next(iter(self.arrays.values())))

    def length(self, padding: Padding) -> int:
        """Return the tokens of each row; 0 if the inputs have no common length."""
        lengths = {self.arrays[name].shape[1:] for name in padding.inputs if name in self.arrays}
        return lengths.pop()[0] if len(lengths) == 1 else 0

    def batch_key(self, padding: Padding) -> BatchKey:
        """Return the key that requests of one run have in common."""
        padded = padding.inputs if self.length(padding) else ()
        return tuple(
            (name, a.dtype, () if name in padded else a.shape[1:])
            for name, a in sorted(self.arrays.items())
        )

    def split_texts(self, padding: Padding) -> list["GraphRequest"]:
        """Split into rows without padding, if the mask gives each row's length; else [self]."""
        mask = self.arrays.get(MASK)
        if MASK not in padding.inputs or mask is None or mask.ndim != _BATCH_AND_LENGTH:
            return [self]
        lengths = mask.astype(bool).sum(axis=1)
        filled = np.arange(mask.shape[1]) < lengths[:, None]
        if not self.length(padding) or (mask.astype(bool) != filled).any() or not lengths.all():
            return [self]
        return [self._row(index, int(length), padding) for index, length in enumerate(lengths)]

    def _row(self, index: int, length: int, padding: Padding) -> "GraphRequest":
        rows = {name: array[index : index + 1] for name, array in self.arrays.items()}
        cut = {name: rows[name][:, :length] for name in padding.inputs if name in rows}
        return GraphRequest(rows | cut, self.outputs)

    def copy(self) -> "GraphRequest":
        """Return a copy with its own memory."""
        return GraphRequest(
            {name: array.copy() for name, array in self.arrays.items()}, self.outputs
        )


class RowError(Exception):
    """The text at `index` of a request failed."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(f"item {index}: {error}")
        self.item = f"item {index}"
        self.error = error


def run_batch(batch: Sequence[GraphRequest], run: RunGraph, padding: Padding) -> list[Answer]:
    """Run requests of one key together; return the outputs or the error of each."""
    try:
        return list(_run(batch, run, padding))
    except Exception as error:
        if len(batch) == 1:
            return [error]
    return [answer for request in batch for answer in run_batch([request], run, padding)]


def join_answers(request: GraphRequest, answers: Sequence[Answer], padding: Padding) -> Answer:
    """Join the outputs of a request's texts, or return the first text's error.

    Outputs with a value for each token are padded with zeros to the request's length.
    """
    parts = []
    for index, answer in enumerate(answers):
        if isinstance(answer, Exception):
            return RowError(index, answer) if len(answers) > 1 else answer
        parts.append(answer)
    if len(parts) == 1 and parts[0].keys().isdisjoint(padding.outputs):
        return parts[0]
    length = request.length(padding)
    return {
        name: np.concatenate(
            [
                _pad_with_zeros(part[name], length) if name in padding.outputs else part[name]
                for part in parts
            ]
        )
        for name in request.outputs
    }


def _pad_with_zeros(array: Any, length: int) -> Any:
    missing = length - array.shape[1]
    widths = [(0, missing if axis == 1 else 0) for axis in range(array.ndim)]
    return np.pad(array, widths) if missing else array


def _run(batch: Sequence[GraphRequest], run: RunGraph, padding: Padding) -> list[dict[str, Any]]:
    output_names = tuple(dict.fromkeys(name for request in batch for name in request.outputs))
    outputs = dict(zip(output_names, run(_join_arrays(batch, padding), output_names), strict=True))
    total = sum(request.rows for request in batch)
    for name, array in outputs.items():
        if len(array) != total:
            raise ValueError(f"output {name} has {len(array)} rows for a batch of {total}")
    return _split(outputs, batch, padding)


def _join_arrays(batch: Sequence[GraphRequest], padding: Padding) -> Arrays:
    if len(batch) == 1:
        return batch[0].arrays
    max_length = max(request.length(padding) for request in batch)
    joined = {}
    for name in batch[0].arrays:
        arrays = [request.arrays[name] for request in batch]
        if max_length and name in padding.inputs:
            arrays = [_pad_right(array, max_length, padding.inputs[name]) for array in arrays]
        joined[name] = np.concatenate(arrays)
    return joined


def _pad_right(array: Any, length: int, value: int) -> Any:
    """Pad the rows on the right."""
    if array.shape[1] == length:
        return array
    return np.pad(array, ((0, 0), (0, length - array.shape[1])), constant_values=value)


def _split(
    outputs: Arrays, batch: Sequence[GraphRequest], padding: Padding
) -> list[dict[str, Any]]:
    answers, start = [], 0
    for request in batch:
        end, length = start + request.rows, request.length(padding)
        answers.append(
            {
                name: outputs[name][start:end, :length]
                if length and name in padding.outputs
                else outputs[name][start:end]
                for name in request.outputs
            }
        )
        start = end
    return answers
