# SPDX-License-Identifier: Apache-2.0
"""Process several images in parallel: Pillow releases the interpreter lock."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasklib.image_processing import ImageProcessor
from tasklib.image_settings import image_settings
from tasklib.item_errors import ItemError
from tasklib.task_file import TaskDefinition
from textlib.triton.parameters import ModelParameters

Pixels = NDArray[np.float32] | ItemError


class PixelBudget:
    """Limits the pixels of all images in progress to `max_pixels`."""

    def __init__(self, max_pixels: int) -> None:
        self._remaining = self._max_pixels = max_pixels
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, pixels: int) -> Iterator[None]:
        """Wait until `pixels` are available, and hold them in the context."""
        pixels = min(pixels, self._max_pixels)
        with self._changed:
            self._changed.wait_for(lambda: self._remaining >= pixels)
            self._remaining -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._remaining += pixels
                self._changed.notify_all()


class ImageBatches:
    """Processes the images of several requests in threads."""

    def __init__(
        self, processor: ImageProcessor, *, max_pixels: int, threads: int | None = None
    ) -> None:
        """`max_pixels`: limit for all images in progress. `threads`: default one per core."""
        self._processor = processor
        self._budget = PixelBudget(max_pixels)
        self._threads = ThreadPoolExecutor(
            threads or len(os.sched_getaffinity(0)), thread_name_prefix="images"
        )

    @classmethod
    def from_task(cls, task: TaskDefinition, parameters: ModelParameters) -> "ImageBatches":
        """Create from a task and the parameter `max_pixels`. Raises ModelConfigurationError."""
        max_pixels = parameters.integer("max_pixels")
        return cls(
            ImageProcessor(image_settings(task), max_pixels=max_pixels), max_pixels=max_pixels
        )

    def pixels_of_requests(self, requests: Sequence[Mapping[str, NDArray[Any]]]) -> list[Pixels]:
        """Process the tensor `image` BYTES[n, 1] of each request, as `pixels` does."""
        files = [[bytes(encoded) for encoded in arrays["image"].reshape(-1)] for arrays in requests]
        return self.pixels(files)

    def pixels(self, requests: Sequence[Sequence[bytes]]) -> list[Pixels]:
        """Process encoded images by request; return FP32[images, 3, height, width] for each.

        A request with an invalid image gets an error instead; with several images the error names
        the index of the first invalid one.
        """
        arrays = [
            np.empty((len(images), *self._processor.shape), dtype=np.float32) for images in requests
        ]
        work = [
            (image, out)
            for images, array in zip(requests, arrays, strict=True)
            for image, out in zip(images, array, strict=True)
        ]
        # One image does not need a thread switch.
        mapped = map if len(work) == 1 else self._threads.map
        failures = iter(list(mapped(self._process, work)))
        return [
            _request_pixels([next(failures) for _ in images], array)
            for images, array in zip(requests, arrays, strict=True)
        ]

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown()

    def _process(self, work: tuple[bytes, Any]) -> ItemError | None:
        encoded, out = work
        try:
            image = self._processor.open(encoded)
            with self._budget.reserve(_pixel_count(image)):
                self._processor.fill(image, out)
        except ItemError as error:
            return error
        return None


def _pixel_count(image: Image.Image) -> int:
    return image.width * image.height


def _request_pixels(failures: Sequence[ItemError | None], array: NDArray[np.float32]) -> Pixels:
    for index, error in enumerate(failures):
        if error is not None:
            return error.with_index(index) if len(failures) > 1 else error
    return array
