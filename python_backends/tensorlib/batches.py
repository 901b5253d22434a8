# SPDX-License-Identifier: Apache-2.0
"""Requests joined into one run of a graph, and its outputs given back. Numpy only.

Requests join along the first dimension where all their other dimensions agree. A run that fails is
repeated request by request, so that only the one to blame gets the error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
# Feeds arrays by input, returns the outputs of these names in their order.
Run = Callable[[Arrays, Sequence[str]], Sequence[Any]]
Answer = dict[str, Any] | Exception
# Names, types and dimensions behind the first one.
Shape = tuple[tuple[str, Any, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Asked:
    """One request: arrays by input, batch dimension first, and the outputs it wants."""

    arrays: Arrays
    outputs: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The size of its batch dimension."""
        return len(next(iter(self.arrays.values())))

    @property
    def shape(self) -> Shape:
        """What must be equal to share a run."""
        return tuple((name, a.dtype, a.shape[1:]) for name, a in sorted(self.arrays.items()))

    def copied(self) -> "Asked":
        """The same in memory of its own."""
        return Asked({name: array.copy() for name, array in self.arrays.items()}, self.outputs)


def answered(batch: Sequence[Asked], run: Run) -> list[Answer]:
    """Run requests of one shape together: each one's outputs, or why it has none."""
    try:
        return list(_run(batch, run))
    except Exception as error:
        if len(batch) == 1:
            return [error]
    return [answer for request in batch for answer in answered([request], run)]


def _run(batch: Sequence[Asked], run: Run) -> list[dict[str, Any]]:
    wanted = tuple(dict.fromkeys(name for request in batch for name in request.outputs))
    outputs = dict(zip(wanted, run(_joined(batch), wanted), strict=True))
    total = sum(request.rows for request in batch)
    for name, array in outputs.items():
        if len(array) != total:
            raise ValueError(f"output {name} has {len(array)} rows for a batch of {total}")
    return _split(outputs, batch)


def _joined(batch: Sequence[Asked]) -> Arrays:
    if len(batch) == 1:
        return batch[0].arrays
    names = batch[0].arrays
    return {name: np.concatenate([request.arrays[name] for request in batch]) for name in names}


def _split(outputs: Arrays, batch: Sequence[Asked]) -> list[dict[str, Any]]:
    given, start = [], 0
    for request in batch:
        end = start + request.rows
        given.append({name: outputs[name][start:end] for name in request.outputs})
        start = end
    return given
