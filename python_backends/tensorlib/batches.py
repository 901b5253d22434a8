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

    def copied(self) -> "Asked":
        """The same in memory of its own."""
        return Asked({name: array.copy() for name, array in self.arrays.items()}, self.outputs)


def answered(batch: Sequence[Asked], run: Run, padding: Padding) -> list[Answer]:
    """Run requests of one shape together: each one's outputs, or why it has none."""
    try:
        return list(_run(batch, run, padding))
    except Exception as error:
        if len(batch) == 1:
            return [error]
    return [answer for request in batch for answer in answered([request], run, padding)]


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
