# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: texts to an encoder's inputs."""

from collections.abc import Mapping
from typing import Any

from tasklib.task_file import read_task
from tasklib.text_requests import TextRequests
from textlib.errors import RequestError
from textlib.triton.edge import (
    limit_tokenizer_threads,
    read_arrays,
    reporting_load_errors,
    require_path,
    respond_to_each,
    tensor,
    version_folder,
)
from textlib.triton.step_metrics import StepMetrics


class TritonPythonModel:
    """Public texts to the graph's inputs (tasklib.text_requests has the shapes)."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/task and 1/tokenizer."""
        limit_tokenizer_threads()
        folder = version_folder(args)
        with reporting_load_errors(args) as parameters:
            self._texts = TextRequests(
                require_path(folder / "tokenizer"),
                read_task(require_path(folder / "task")),
                multiple=parameters.integer("pad_to_multiple_of"),
            )
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Encode the texts of all requests in one call."""
        encoded = iter(self._texts.encode([read_arrays(request) for request in requests]))

        def answer(request: Any) -> list[Any]:
            tensors = next(encoded)
            if isinstance(tensors, RequestError):
                raise tensors
            return [tensor(name, tensors[name]) for name in request.requested_output_names()]

        return respond_to_each(requests, answer, self._metrics.count_error)

    def finalize(self) -> None:
        """Remove the metrics."""
        self._metrics.close()
