# SPDX-License-Identifier: Apache-2.0
"""What a graph is fed for Triton's requests: their own tensors, or what a task makes of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tasklib.graph_task import GraphTask
from tensorlib.batches import Arrays, Asked
from textlib.errors import RequestError

_LENGTHS_OF = "input_ids"

# The graph's outputs by name to the request's.
Finish = Callable[[Arrays], Mapping[str, Any]]
Read = tuple[Asked, Finish]


class Requests(Protocol):
    """Reads requests for one graph."""

    def read(self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]) -> list[Read | RequestError]:
        """What the graph is fed for each request, or what is wrong with it.

        requests: each one's arrays, and the outputs that it wants.
        """


class TensorRequests:
    """Requests for a graph as it is: its own tensors in and out."""

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def read(self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]) -> list[Read | RequestError]:
        """Each request's arrays and the outputs that it wants, or what is wrong with it."""
        return [self._read(*request) for request in requests]

    def _read(self, arrays: Arrays, wanted: tuple[str, ...]) -> Read | RequestError:
        problem = too_long(arrays, self._longest)
        return problem or (Asked({name: _as_given(a) for name, a in arrays.items()}, wanted), dict)


class TaskRequests:
    """Requests for a task: what is folded into this engine happens around the graph."""

    def __init__(self, task: GraphTask, longest: int) -> None:
        self._task = task
        self._longest = longest

    def read(self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]) -> list[Read | RequestError]:
        """What the graph is fed for each request, or what is wrong with it."""
        works = self._task.works([arrays for arrays, _ in requests])
        return [
            work
            if isinstance(work, RequestError)
            else too_long(work.feed, self._longest)
            or (Asked(work.feed, self._task.outputs), work.answer)
            for work in works
        ]


def too_long(arrays: Arrays, longest: int) -> RequestError | None:
    """What a library that runs graphs could not say clearly."""
    ids = arrays.get(_LENGTHS_OF)
    if longest and ids is not None and ids.shape[1] > longest:
        return RequestError(
            f"{_LENGTHS_OF} has {ids.shape[1]} tokens per row; this model takes up to {longest}."
        )
    return None


def _as_given(array: Any) -> Any:
    """Triton's texts are bytes, a graph's are str."""
    if array.dtype.kind not in "OS":
        return array
    texts = [bytes(item).decode("utf-8", errors="replace") for item in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)
