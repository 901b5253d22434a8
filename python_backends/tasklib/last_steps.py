# SPDX-License-Identifier: Apache-2.0
"""The last step of a task, which turns the graph's outputs into public tensors.

A step of its own, or the work of the engine that inlines it: both run what is here.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasklib.entities import entities
from tasklib.item_errors import ItemError
from tasklib.labels import ranked
from tasklib.matryoshka import cut
from tasklib.task_file import Task
from textlib.errors import ConfigurationError, RequestError

Arrays = Mapping[str, NDArray[Any]]


class LastStep(Protocol):
    """`reads`: the graph's output, behind it whatever the request brings."""

    reads: str

    def check(self, request: Arrays) -> None:
        """Raises RequestError for values that `answer` would refuse, before the graph runs."""

    def answer(self, request: Arrays, output: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Public tensors of one request of n items. Raises RequestError, EngineFailedError."""


class Labels:
    """scores FP32[n, labels] and optional top_k to label BYTES[n, k] and score FP32[n, k]."""

    reads = "scores"

    def __init__(self, task: Task) -> None:
        self._labels = _labels_of(task)

    def check(self, request: Arrays) -> None:
        """top_k is 1 or more."""
        top_k = _only(request, "top_k")
        if top_k is not None and top_k < 1:
            raise ItemError("top_k", f"is {top_k}, expected 1 or more.")

    def answer(self, request: Arrays, output: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Best first."""
        label, score = ranked(output, self._labels, _only(request, "top_k"))
        return {"label": label, "score": score}


class Matryoshka:
    """embedding FP32[n, d] and optional dimensions to embedding FP32[n, dimensions]."""

    reads = "embedding"

    def __init__(self, task: Task) -> None:
        if task.embedding is None:
            raise ConfigurationError(f"the task {task.task} has no `embedding` in its task.json.")
        self._facts = task.embedding

    def check(self, request: Arrays) -> None:
        """As many dimensions as the model has, or fewer."""
        dimensions, most = _only(request, "dimensions"), self._facts.dimension
        if dimensions is not None and not 1 <= dimensions <= most:
            raise ItemError("dimensions", f"is {dimensions}, expected 1 to {most}.")

    def answer(self, request: Arrays, output: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Cut, and of length 1 again where the model's are."""
        dimensions = _only(request, "dimensions")
        return {"embedding": cut(output, dimensions, normalized=self._facts.normalized)}


class Entities:
    """token_scores FP32[n, tokens, labels], offsets, text_input to entities BYTES[n, 1] (JSON)."""

    reads = "token_scores"

    def __init__(self, task: Task) -> None:
        self._labels = _labels_of(task)

    def check(self, request: Arrays) -> None:
        """Nothing that a client sends can be wrong."""

    def answer(self, request: Arrays, output: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """A JSON list for each text."""
        texts = [text.decode("utf-8") for text in request["text_input"].reshape(-1)]
        found = [
            [one.as_dict() for one in entities(scores, offsets, text, self._labels)]
            for scores, offsets, text in zip(output, request["offsets"], texts, strict=True)
        ]
        answers = [[json.dumps(one, ensure_ascii=False).encode("utf-8")] for one in found]
        return {"entities": np.array(answers, dtype=object)}


Kind = type[Labels] | type[Matryoshka] | type[Entities]

# By the folder of python_backends/ that is the step.
LAST_STEPS: dict[str, Kind] = {
    "labels": Labels,
    "matryoshka": Matryoshka,
    "entities": Entities,
}


def _labels_of(task: Task) -> list[str]:
    if not task.labels:
        raise ConfigurationError(f"the task {task.task} has no `labels` in its task.json.")
    return list(task.labels)


def _only(request: Arrays, name: str) -> int | None:
    """A setting that all items of a request have in common."""
    array = request.get(name)
    if array is None or not array.size:
        return None
    values = set(array.reshape(-1).tolist())
    if len(values) > 1:
        raise RequestError(
            f"{name} has the values {sorted(values)[:5]}, expected one for all items of a request."
        )
    return int(values.pop())
