# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: encoded images to pixel values."""

from collections.abc import Mapping
from typing import Any

from tasklib.image_batches import ImageBatches, Pixels
from tasklib.task_file import read_task
from textlib.errors import TextPathError
from textlib.triton.edge import (
    read_arrays,
    reporting_load_errors,
    require_path,
    respond_to_each,
    tensor,
    version_folder,
)
from textlib.triton.step_metrics import StepMetrics


class TritonPythonModel:
    """image STRING[n, 1] to pixel_values FP32[n, 3, height, width]."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read 1/task/task.json."""
        with reporting_load_errors(args) as parameters:
            task = read_task(require_path(version_folder(args) / "task"))
            self._batches = ImageBatches.from_task(task, parameters)
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Process the images of all requests at once."""
        answers = iter(self._batches.pixels_of_requests([read_arrays(each) for each in requests]))
        return respond_to_each(
            requests, lambda _: _tensors(next(answers)), self._metrics.count_error
        )

    def finalize(self) -> None:
        """Stop the threads and remove the metrics."""
        self._metrics.close()
        self._batches.close()


def _tensors(pixels: Pixels) -> list[Any]:
    if isinstance(pixels, TextPathError):
        raise pixels
    return [tensor("pixel_values", pixels)]
