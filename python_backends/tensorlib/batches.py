# SPDX-License-Identifier: Apache-2.0
"""Requests joined into one run of a graph, and its outputs given back. Numpy only.

Requests join along the first dimension where all their other dimensions agree; texts of different
lengths join where the builder has measured what padding does (builders/onnxruntime/padding.py). A
run that fails is repeated request by request, so that only the one to blame gets the error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MASK = "attention_mask"
_BATCH_AND_LENGTH = 2

Arrays = Mapping[str, Any]
# Feeds arrays by input, returns the outputs of these names in their order.
Run = Callable[[Arrays, Sequence[str]], Sequence[Any]]
Answer = dict[str, Any] | Exception
# Names, types and dimensions behind the first one.
Shape = tuple[tuple[str, Any, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Padding:
    """How texts of different lengths share a run; by default they do not.

    `inputs`: the pad value by input, [rows, length] each. `outputs`: those with a value for each
    token. `run_tokens`: tokens of padding that cost as much as a run does.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    run_tokens: float = 0.0


@dataclass(frozen=True)
class Asked:
    """One request: arrays by input, batch dimension first, and the outputs it wants."""

    arrays: Arrays
    outputs: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The size of its batch dimension."""
        return len(next(iter(self.arrays.values())))

    def length(self, padding: Padding) -> int:
        """Tokens of each row; 0 where it has no one length."""
        lengths = {self.arrays[name].shape[1:] for name in padding.inputs if name in self.arrays}
        return lengths.pop()[0] if len(lengths) == 1 else 0

    def shape(self, padding: Padding) -> Shape:
        """What must be equal to share a run."""
        padded = padding.inputs if self.length(padding) else ()
        return tuple(
            (name, a.dtype, () if name in padded else a.shape[1:])
            for name, a in sorted(self.arrays.items())
        )

    def texts(self, padding: Padding) -> list["Asked"]:
        """Its rows, each of its own length, if the mask says how long each is; else itself."""
        mask = self.arrays.get(MASK)
        if MASK not in padding.inputs or mask is None or mask.ndim != _BATCH_AND_LENGTH:
            return [self]
        lengths = mask.astype(bool).sum(axis=1)
        filled = np.arange(mask.shape[1]) < lengths[:, None]
        if not self.length(padding) or (mask.astype(bool) != filled).any() or not lengths.all():
            return [self]
        return [self._row(index, int(length), padding) for index, length in enumerate(lengths)]

    def _row(self, index: int, length: int, padding: Padding) -> "Asked":
        rows = {name: array[index : index + 1] for name, array in self.arrays.items()}
        cut = {name: rows[name][:, :length] for name in padding.inputs if name in rows}
        return Asked(rows | cut, self.outputs)

    def copied(self) -> "Asked":
        """The same in memory of its own."""
        return Asked({name: array.copy() for name, array in self.arrays.items()}, self.outputs)


class RowError(Exception):
    """One text of a request failed, at this index."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(f"item {index}: {error}")
        self.item = f"item {index}"
        self.error = error


def answered(batch: Sequence[Asked], run: Run, padding: Padding) -> list[Answer]:
    """Run requests of one shape together: each one's outputs, or why it has none."""
    try:
        return list(_run(batch, run, padding))
    except Exception as error:
        if len(batch) == 1:
            return [error]
    return [answer for request in batch for answer in answered([request], run, padding)]


def joined(request: Asked, answers: Sequence[Answer], padding: Padding) -> Answer:
    """A request's outputs from those of its texts; the error of the first that has none.

    Outputs with a value for each token are filled up with zeros to the request's own length.
    """
    given = []
    for index, answer in enumerate(answers):
        if isinstance(answer, Exception):
            return RowError(index, answer) if len(answers) > 1 else answer
        given.append(answer)
    if len(given) == 1 and given[0].keys().isdisjoint(padding.outputs):
        return given[0]
    length = request.length(padding)
    return {
        name: np.concatenate(
            [_filled(one[name], length) if name in padding.outputs else one[name] for one in given]
        )
        for name in request.outputs
    }


def _filled(array: Any, length: int) -> Any:
    missing = length - array.shape[1]
    widths = [(0, missing if axis == 1 else 0) for axis in range(array.ndim)]
    return np.pad(array, widths) if missing else array


def _run(batch: Sequence[Asked], run: Run, padding: Padding) -> list[dict[str, Any]]:
    wanted = tuple(dict.fromkeys(name for request in batch for name in request.outputs))
    outputs = dict(zip(wanted, run(_joined(batch, padding), wanted), strict=True))
    total = sum(request.rows for request in batch)
    for name, array in outputs.items():
        if len(array) != total:
            raise ValueError(f"output {name} has {len(array)} rows for a batch of {total}")
    return _split(outputs, batch, padding)


def _joined(batch: Sequence[Asked], padding: Padding) -> Arrays:
    if len(batch) == 1:
        return batch[0].arrays
    longest = max(request.length(padding) for request in batch)
    joined = {}
    for name in batch[0].arrays:
        arrays = [request.arrays[name] for request in batch]
        if longest and name in padding.inputs:
            arrays = [_padded(array, longest, padding.inputs[name]) for array in arrays]
        joined[name] = np.concatenate(arrays)
    return joined


def _padded(array: Any, length: int, value: int) -> Any:
    """Filled up on the right."""
    if array.shape[1] == length:
        return array
    return np.pad(array, ((0, 0), (0, length - array.shape[1])), constant_values=value)


def _split(outputs: Arrays, batch: Sequence[Asked], padding: Padding) -> list[dict[str, Any]]:
    given, start = [], 0
    for request in batch:
        end, length = start + request.rows, request.length(padding)
        given.append(
            {
                name: outputs[name][start:end, :length]
                if length and name in padding.outputs
                else outputs[name][start:end]
                for name in request.outputs
            }
        )
        start = end
    return given
