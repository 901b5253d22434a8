# SPDX-License-Identifier: Apache-2.0
"""The steps of a task that an engine inlines: the last one, or the first and the last.

The model's parameter `inline_<backend>` is true for each inlined step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tasklib.labels import require_finite
from tasklib.last_steps import LAST_STEPS, LastStep
from tasklib.task_file import TaskDefinition
from textlib.errors import EngineFailedError, RequestError
from textlib.triton.parameters import ModelParameters

if TYPE_CHECKING:
    from tasklib.image_batches import ImageBatches
    from tasklib.text_requests import TextRequests

TOKENIZER, IMAGES = "encoder_tokenizer", "image_processor"
_PIXELS = "pixel_values"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class GraphWork:
    """The work of the graph for one request."""

    feed: Arrays  # the graph's inputs by name
    answer: Callable[[Arrays], dict[str, NDArray[Any]]]  # the graph's outputs to the answer's


class GraphTask:
    """The inlined steps of a task around a graph."""

    def __init__(
        self,
        task: TaskDefinition,
        tokenizer_folder: Path,
        parameters: ModelParameters,
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        """`inputs`, `outputs`: names of the graph's tensors. Raises ModelConfigurationError."""
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

    def prepare_all(self, requests: Sequence[Arrays]) -> list[GraphWork | RequestError]:
        """Return the work for each request; processes all texts or images together."""
        prepared: Sequence[Arrays | RequestError] = requests
        if self._texts is not None:
            prepared = self._texts.encode(requests)
        elif self._images is not None:
            prepared = [
                item if isinstance(item, RequestError) else {_PIXELS: item}
                for item in self._images.pixels_of_requests(requests)
            ]
        return [
            item if isinstance(item, RequestError) else self._prepare(request, item)
            for request, item in zip(requests, prepared, strict=True)
        ]

    def _prepare(self, request: Arrays, prepared: Arrays) -> GraphWork | RequestError:
        missing = [name for name in self._inputs if name not in prepared]
        if missing:
            return RequestError(f"{missing[0]} is missing: the graph reads it.")
        feed = {name: prepared[name] for name in self._inputs}
        tensors = {**request, **prepared}
        if self._last is not None:
            try:
                self._last.check(tensors)
            except RequestError as error:
                return error
        # Copies: Triton releases its tensors before the graph has run.
        retained = {name: array.copy() for name, array in tensors.items() if name not in feed}
        return GraphWork(feed, lambda outputs: self._answer(retained, outputs))

    def _answer(self, tensors: Arrays, outputs: Arrays) -> dict[str, NDArray[Any]]:
        for name, array in outputs.items():
            if array.dtype.kind == "f":
                require_finite(name, array)
        if self._last is None:
            return {**tensors, **outputs}
        if self._last.reads not in outputs:
            raise EngineFailedError(f"the graph has no output {self._last.reads}.")
        return {**tensors, **outputs, **self._last.answer(tensors, outputs[self._last.reads])}


def _text_requests(tokenizer_folder: Path, task: TaskDefinition) -> "TextRequests":
    # The package `tokenizers` is installed only for models with this step.
    from tasklib.text_requests import TextRequests

    return TextRequests(tokenizer_folder, task)


def _image_batches(task: TaskDefinition, parameters: ModelParameters) -> "ImageBatches":
    # Pillow is installed only for models with this step.
    from tasklib.image_batches import ImageBatches

    return ImageBatches.from_task(task, parameters)
