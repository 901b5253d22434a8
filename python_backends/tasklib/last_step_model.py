# SPDX-License-Identifier: Apache-2.0
"""A Triton Python model that runs a task's last step."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tasklib.last_steps import LastStepClass
from tasklib.task_file import read_task
from textlib.triton.edge import (
    read_arrays,
    reporting_load_errors,
    require_path,
    respond_to_each,
    tensor,
    version_folder,
)
from textlib.triton.step_metrics import StepMetrics


class LastStepModel:
    """Base class; a step's model.py sets `step` to a class of tasklib.last_steps."""

    step: ClassVar[LastStepClass]

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read 1/task."""
        with reporting_load_errors(args):
            self._step = self.step(read_task(require_path(version_folder(args) / "task")))
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request separately."""
        return respond_to_each(requests, self._answer, self._metrics.count_error)

    def finalize(self) -> None:
        """Remove the metrics."""
        self._metrics.close()

    def _answer(self, request: Any) -> list[Any]:
        arrays = read_arrays(request)
        self._step.check(arrays)
        tensors = self._step.answer(arrays, arrays[self._step.reads])
        return [tensor(name, tensors[name]) for name in request.requested_output_names()]
