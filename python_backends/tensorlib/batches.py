# SPDX-License-Identifier: Apache-2.0
"""Requests of one execute() joined into runs of a graph, and its outputs given back. Numpy only.

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
    def shape(self) -> tuple[Any, ...]:
        """What must be equal to share a run."""
        return tuple((name, a.dtype, a.shape[1:]) for name, a in sorted(self.arrays.items()))


def answer_all(asked: Sequence[Asked], run: Run, most: int) -> list[Answer]:
    """Return each request's outputs, or why it has none. `most`: rows in one run."""
    answers: list[Answer] = [{}] * len(asked)
    for batch in batches(asked, most):
        for index, answer in zip(batch, _answered([asked[i] for i in batch], run), strict=True):
            answers[index] = answer
    return answers


def batches(asked: Sequence[Asked], most: int) -> list[list[int]]:
    """Return which requests share a run, as positions in `asked`, in order of arrival."""
    closed: list[list[int]] = []
    still_open: dict[tuple[Any, ...], tuple[list[int], int]] = {}
    for index, request in enumerate(asked):
        batch, rows = still_open.get(request.shape, ([], 0))
        if batch and rows + request.rows > most:
            batch, rows = [], 0
        if not batch:
            closed.append(batch)
        batch.append(index)
        still_open[request.shape] = batch, rows + request.rows
    return closed


def _answered(batch: Sequence[Asked], run: Run) -> list[Answer]:
    try:
        return list(_run(batch, run))
    except Exception as error:
        if len(batch) == 1:
            return [error]
    return [answer for request in batch for answer in _answered([request], run)]


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
