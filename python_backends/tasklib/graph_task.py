# SPDX-License-Identifier: Apache-2.0
"""An engine that does the work of a task's other steps: the last one, or with it the first's.

Parameters of the model say which: `inline_<backend>` is true for each step that was folded into it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tasklib.labels import require_finite
from tasklib.last_steps import LAST_STEPS, LastStep
from tasklib.task_file import Task
from textlib.errors import EngineFailedError, RequestError
from textlib.parameters import ModelParameters

if TYPE_CHECKING:
    from tasklib.image_batches import ImageBatches
    from tasklib.text_requests import TextRequests

TOKENIZER, IMAGES = "encoder_tokenizer", "image_processor"
_PIXELS = "pixel_values"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class GraphWork:
    """What the graph is fed for one request, and how its outputs become the answer."""

    feed: Arrays
    answer: Callable[[Arrays], dict[str, NDArray[Any]]]


class GraphTask:
    """Around a graph with these inputs and outputs."""

    def __init__(
        self,
        task: Task,
        tokenizer_folder: Path,
        parameters: ModelParameters,
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        """Raises ConfigurationError."""
        self._inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._texts: TextRequests | None = None
        if parameters.boolean(f"inline_{TOKENIZER}", default=False):
            self._texts = _text_requests(tokenizer_folder, task)
        self._images: ImageBatches | None = None
        if parameters.boolean(f"inline_{IMAGES}", default=False):
            self._images = _image_batches(task, parameters)
        self._last: LastStep | None = None
        for name, kind in LAST_STEPS.items():
            if parameters.boolean(f"inline_{name}", default=False):
                self._last = kind(task)

    def works(self, requests: Sequence[Arrays]) -> list[GraphWork | RequestError]:
        """What is to be done for each request; texts and images of all of them go together."""
        prepared: Sequence[Arrays | RequestError] = requests
        if self._texts is not None:
            prepared = self._texts.encode(requests)
        elif self._images is not None:
            prepared = [
                one if isinstance(one, RequestError) else {_PIXELS: one}
                for one in self._images.of_requests(requests)
            ]
        return [
            one if isinstance(one, RequestError) else self._work(request, one)
            for request, one in zip(requests, prepared, strict=True)
        ]

    def _work(self, request: Arrays, prepared: Arrays) -> GraphWork | RequestError:
        missing = [name for name in self._inputs if name not in prepared]
        if missing:
            return RequestError(f"{missing[0]} is missing: the graph reads it.")
        feed = {name: prepared[name] for name in self._inputs}
        seen = {**request, **prepared}
        if self._last is not None:
            try:
                self._last.check(seen)
            except RequestError as error:
                return error
        # Copies: Triton takes its tensors back before the graph has run.
        kept = {name: array.copy() for name, array in seen.items() if name not in feed}
        return GraphWork(feed, lambda outputs: self._answer(kept, outputs))

    def _answer(self, seen: Arrays, outputs: Arrays) -> dict[str, NDArray[Any]]:
        for name, array in outputs.items():
            if array.dtype.kind == "f":
                require_finite(name, array)
        if self._last is None:
            return {**seen, **outputs}
        if self._last.reads not in outputs:
            raise EngineFailedError(f"the graph has no output {self._last.reads}.")
        return {**seen, **outputs, **self._last.answer(seen, outputs[self._last.reads])}


def _text_requests(tokenizer_folder: Path, task: Task) -> "TextRequests":
    # The package `tokenizers` is installed only where a model has this step.
    from tasklib.text_requests import TextRequests

    return TextRequests(tokenizer_folder, task)


def _image_batches(task: Task, parameters: ModelParameters) -> "ImageBatches":
    # Nor is Pillow.
    from tasklib.image_batches import ImageBatches

    return ImageBatches.of(task, parameters)
