# SPDX-License-Identifier: Apache-2.0
"""The last step of a task, which turns the graph's outputs into public tensors.

Both a separate step and an engine that inlines it run this code.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasklib.entities import find_entities
from tasklib.item_errors import ItemError
from tasklib.labels import rank_labels
from tasklib.matryoshka import cut_embeddings
from tasklib.task_file import TaskDefinition
from textlib.errors import ModelConfigurationError, RequestError

Arrays = Mapping[str, NDArray[Any]]


class LastStep(Protocol):
    """A task's last step."""

    reads: str  # name of the graph's output that it reads

    def check(self, request: Arrays) -> None:
        """Raise RequestError for values that `answer` would reject, before the graph runs."""

    def answer(self, request: Arrays, output: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the public tensors of a request. Raises RequestError, EngineFailedError."""


class LabelsStep:
    """scores FP32[n, labels] and optional top_k to label BYTES[n, k] and score FP32[n, k]."""

    reads = "scores"

    def __init__(self, task: TaskDefinition) -> None:
        self._labels = _labels_of(task)

    def check(self, request: Arrays) -> None:
        """Check that top_k is 1 or more."""
        top_k = _shared_value(request, "top_k")
        if top_k is not None and top_k < 1:
            raise ItemError("top_k", f"is {top_k}, expected 1 or more.")

    def answer(self, request: Arrays, output: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return labels and scores, best first."""
        label, score = rank_labels(output, self._labels, _shared_value(request, "top_k"))
        return {"label": label, "score": score}


class MatryoshkaStep:
    """embedding FP32[n, d] and optional dimensions to embedding FP32[n, dimensions]."""

    reads = "embedding"

    def __init__(self, task: TaskDefinition) -> None:
        if task.embedding is None:
            raise ModelConfigurationError(
                f"the task {task.task} has no `embedding` in its task.json."
            )
        self._embedding = task.embedding

    def check(self, request: Arrays) -> None:
        """Check that the model has at least `dimensions` dimensions."""
        dimensions, max_dimensions = _shared_value(request, "dimensions"), self._embedding.dimension
        if dimensions is not None and not 1 <= dimensions <= max_dimensions:
            raise ItemError("dimensions", f"is {dimensions}, expected 1 to {max_dimensions}.")

    def answer(self, request: Arrays, output: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the cut vectors, rescaled to length 1 if the model's are."""
        dimensions = _shared_value(request, "dimensions")
        return {
            "embedding": cut_embeddings(output, dimensions, normalized=self._embedding.normalized)
        }


class EntitiesStep:
    """token_scores FP32[n, tokens, labels], offsets, text_input to entities BYTES[n, 1] (JSON)."""

    reads = "token_scores"

    def __init__(self, task: TaskDefinition) -> None:
        self._labels = _labels_of(task)

    def check(self, request: Arrays) -> None:
        """Accept every request: it has no settings."""

    def answer(self, request: Arrays, output: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return a JSON list for each text."""
        texts = [text.decode("utf-8") for text in request["text_input"].reshape(-1)]
        entities_by_text = [
            [item.as_dict() for item in find_entities(scores, offsets, text, self._labels)]
            for scores, offsets, text in zip(output, request["offsets"], texts, strict=True)
        ]
        answers = [
            [json.dumps(item, ensure_ascii=False).encode("utf-8")] for item in entities_by_text
        ]
        return {"entities": np.array(answers, dtype=object)}


LastStepClass = type[LabelsStep] | type[MatryoshkaStep] | type[EntitiesStep]

# By the step's folder in python_backends/.
LAST_STEPS: dict[str, LastStepClass] = {
    "labels": LabelsStep,
    "matryoshka": MatryoshkaStep,
    "entities": EntitiesStep,
}


def _labels_of(task: TaskDefinition) -> list[str]:
    if not task.labels:
        raise ModelConfigurationError(f"the task {task.task} has no `labels` in its task.json.")
    return list(task.labels)


def _shared_value(request: Arrays, name: str) -> int | None:
    """Return the value of a setting that all items of a request share."""
    array = request.get(name)
    if array is None or not array.size:
        return None
    values = set(array.reshape(-1).tolist())
    if len(values) > 1:
        raise RequestError(
            f"{name} has the values {sorted(values)[:5]}, expected one for all items of a request."
        )
    return int(values.pop())
