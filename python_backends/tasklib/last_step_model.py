# SPDX-License-Identifier: Apache-2.0
"""A Triton Python model that is a task's last step."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tasklib.last_steps import Kind
from tasklib.task_file import read_task
from textlib.step_metrics import StepMetrics
from textlib.triton_edge import answer_each, existing, loading, read_arrays, tensor, version_folder


class LastStepModel:
    """`model.py` of a step names its class of tasklib.last_steps."""

    step: ClassVar[Kind]

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read 1/task."""
        with loading(args):
            self._step = self.step(read_task(existing(version_folder(args) / "task")))
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Each request on its own."""
        return answer_each(requests, self._answer, self._metrics.failed)

    def finalize(self) -> None:
        """End the metrics."""
        self._metrics.close()

    def _answer(self, request: Any) -> list[Any]:
        arrays = read_arrays(request)
        self._step.check(arrays)
        tensors = self._step.answer(arrays, arrays[self._step.reads])
        return [tensor(name, tensors[name]) for name in request.requested_output_names()]
