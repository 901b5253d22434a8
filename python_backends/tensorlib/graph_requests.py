# SPDX-License-Identifier: Apache-2.0
"""Turn Triton's requests into requests for a graph: as they are, or through a task's steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tasklib.graph_task import GraphTask
from tensorlib.batches import Arrays, GraphRequest, RunGraph
from textlib.errors import RequestError

_LENGTH_INPUT = "input_ids"

# Turns the graph's outputs into the request's outputs, both by name.
Finish = Callable[[Arrays], Mapping[str, Any]]
ReadRequest = tuple[GraphRequest, Finish]


class RequestReader(Protocol):
    """Reads requests for one graph."""

    def read(
        self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]
    ) -> list[ReadRequest | RequestError]:
        """Return the graph request for each request, or its error.

        requests: arrays and requested outputs of each.
        """


class TensorRequests:
    """Reads requests with the graph's own tensors."""

    def __init__(self, max_sequence: int) -> None:
        self._max_sequence = max_sequence

    def read(
        self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]
    ) -> list[ReadRequest | RequestError]:
        """Return the graph request for each request, or its error."""
        return [self._read(*request) for request in requests]

    def _read(self, arrays: Arrays, output_names: tuple[str, ...]) -> ReadRequest | RequestError:
        problem = length_error(arrays, self._max_sequence)
        return problem or (
            GraphRequest({name: _as_graph_array(a) for name, a in arrays.items()}, output_names),
            dict,
        )


class UnbatchedRequests:
    """Reads requests for a graph without a batch dimension: each becomes a batch of one.

    So the queue needs no other rules. `run_unbatched` removes the added dimension.
    """

    def __init__(self, max_sequence: int) -> None:
        self._requests = TensorRequests(max_sequence)

    def read(
        self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]
    ) -> list[ReadRequest | RequestError]:
        """Return the graph request for each request, or its error."""
        return [
            each if isinstance(each, RequestError) else (_as_batch(each[0]), _only_row)
            for each in self._requests.read(requests)
        ]


def _as_batch(request: GraphRequest) -> GraphRequest:
    return GraphRequest({name: a[None] for name, a in request.arrays.items()}, request.outputs)


def _only_row(outputs: Arrays) -> dict[str, Any]:
    return {name: array[0] for name, array in outputs.items()}


def run_unbatched(run: RunGraph, arrays: Arrays, outputs: Sequence[str]) -> list[Any]:
    """Run a graph without a batch dimension on a batch of one; scalar outputs get the shape [1]."""
    results = run({name: array[0] for name, array in arrays.items()}, outputs)
    return [np.atleast_1d(result)[None] for result in results]


class TaskRequests:
    """Reads requests of a task whose steps this engine inlines."""

    def __init__(self, task: GraphTask, max_sequence: int) -> None:
        self._task = task
        self._max_sequence = max_sequence

    def read(
        self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]
    ) -> list[ReadRequest | RequestError]:
        """Return the graph request for each request, or its error."""
        works = self._task.prepare_all([arrays for arrays, _ in requests])
        return [
            work
            if isinstance(work, RequestError)
            else length_error(work.feed, self._max_sequence)
            or (GraphRequest(work.feed, self._task.outputs), work.answer)
            for work in works
        ]


def length_error(arrays: Arrays, max_sequence: int) -> RequestError | None:
    """Return an error for rows that are too long, because libraries report it unclearly."""
    ids = arrays.get(_LENGTH_INPUT)
    if max_sequence and ids is not None and ids.shape[-1] > max_sequence:
        return RequestError(
            f"{_LENGTH_INPUT} has {ids.shape[-1]} tokens per row; this model takes up to "
            f"{max_sequence}."
        )
    return None


def _as_graph_array(array: Any) -> Any:
    """Convert texts: Triton's are bytes, a graph's are str."""
    if array.dtype.kind not in "OS":
        return array
    texts = [bytes(item).decode("utf-8", errors="replace") for item in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)
