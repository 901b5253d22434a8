# SPDX-License-Identifier: Apache-2.0
"""Several images at once: Pillow decodes and resizes without the interpreter's lock."""

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
from tasklib.task_file import Task
from textlib.parameters import ModelParameters

Pixels = NDArray[np.float32] | ItemError


class PixelBudget:
    """Lets in as many images as have `most` pixels together; each has that many at most."""

    def __init__(self, most: int) -> None:
        self._left = self._most = most
        self._changed = threading.Condition()

    @contextmanager
    def held(self, pixels: int) -> Iterator[None]:
        """Wait for room, and hold it."""
        pixels = min(pixels, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= pixels)
            self._left -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._left += pixels
                self._changed.notify_all()


class ImageBatches:
    """The images of several requests, in threads."""

    def __init__(
        self, processor: ImageProcessor, *, max_pixels: int, threads: int | None = None
    ) -> None:
        """`max_pixels`: decoded at a time, all images together.

        `threads`: one per core of this process when absent.
        """
        self._processor = processor
        self._budget = PixelBudget(max_pixels)
        self._threads = ThreadPoolExecutor(
            threads or len(os.sched_getaffinity(0)), thread_name_prefix="images"
        )

    @classmethod
    def of(cls, task: Task, parameters: ModelParameters) -> "ImageBatches":
        """Those of a model's task and its parameter `max_pixels`. Raises ConfigurationError."""
        most = parameters.integer("max_pixels")
        return cls(ImageProcessor(image_settings(task), max_pixels=most), max_pixels=most)

    def of_requests(self, requests: Sequence[Mapping[str, NDArray[Any]]]) -> list[Pixels]:
        """The same of requests' tensors: `image` BYTES[n, 1]."""
        files = [[bytes(one) for one in arrays["image"].reshape(-1)] for arrays in requests]
        return self.pixels(files)

    def pixels(self, requests: Sequence[Sequence[bytes]]) -> list[Pixels]:
        """Process encoded images by request: FP32[images, 3, height, width] each.

        A request with a bad image gets an error that names the first such by its index from 0,
        where it has several images; the others are not touched by it.
        """
        arrays = [
            np.empty((len(images), *self._processor.shape), dtype=np.float32) for images in requests
        ]
        work = [
            (image, out)
            for images, array in zip(requests, arrays, strict=True)
            for image, out in zip(images, array, strict=True)
        ]
        # One image needs no other thread, and no way there and back.
        mapped = map if len(work) == 1 else self._threads.map
        failures = iter(list(mapped(self._failure, work)))
        return [
            _answer([next(failures) for _ in images], array)
            for images, array in zip(requests, arrays, strict=True)
        ]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _failure(self, work: tuple[bytes, Any]) -> ItemError | None:
        encoded, out = work
        try:
            image = self._processor.opened(encoded)
            with self._budget.held(_pixels(image)):
                self._processor.fill(image, out)
        except ItemError as error:
            return error
        return None


def _pixels(image: Image.Image) -> int:
    return image.width * image.height


def _answer(failures: Sequence[ItemError | None], array: NDArray[np.float32]) -> Pixels:
    for index, error in enumerate(failures):
        if error is not None:
            return error.at(index) if len(failures) > 1 else error
    return array
