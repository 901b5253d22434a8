# SPDX-License-Identifier: Apache-2.0
"""A Triton model around a graph, whichever library runs it.

A backend's model.py gives the library: `class TritonPythonModel(GraphModel)` with `open`.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasklib.graph_task import GraphTask
from tasklib.task_file import FILE as TASK_FILE
from tasklib.task_file import Task, read_task
from tensorlib.batches import Answer, Arrays, Padding, RowError
from tensorlib.graph_requests import Finish, Requests, TaskRequests, TensorRequests
from tensorlib.lanes import parallel_runs
from tensorlib.packing import default_tokens
from tensorlib.run_queue import TRITON_DECIDES, RunQueue, Waiting
from textlib.errors import EngineFailedError, RequestError, TextPathError
from textlib.parameters import ModelParameters
from textlib.step_metrics import StepMetrics
from textlib.triton_edge import (
    answer_with,
    limit_tokenizer_threads,
    loading,
    read_arrays,
    response_to,
    tensor,
    version_folder,
)


class ValuesRefusedError(Exception):
    """A library does not take the values of a request, such as an id of no token."""


class Session(Protocol):
    """A loaded graph."""

    @property
    def library(self) -> str:
        """Who runs it, for messages."""

    @property
    def inputs(self) -> Sequence[str]:
        """Their names."""

    @property
    def outputs(self) -> Sequence[str]:
        """Their names."""

    def run(self, arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        """The outputs of these names in their order; several threads at a time may ask.

        Raises ValuesRefusedError.
        """


class GraphModel:
    """The tensors are the graph's own, or those of a task that is folded into it."""

    def open(self, folder: Path, args: Mapping[str, str], parameters: ModelParameters) -> Session:
        """Load the graph in `folder`, the artefact's engine/. Raises ConfigurationError."""
        raise NotImplementedError

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/engine, and 1/task where there is one."""
        limit_tokenizer_threads()
        config = json.loads(args["model_config"])
        self._outputs = [output["name"] for output in config["output"]]
        folder = version_folder(args)
        with loading(args) as parameters:
            longest = parameters.integer("longest_sequence", minimum=0)
            bound = parameters.integer("max_queue_size", minimum=TRITON_DECIDES)
            padding = Padding(**parameters.record("padding"))
            tokens = parameters.integer("max_num_tokens", minimum=0)
            runs = parameters.integer("parallel_runs")
            self._session = self.open(folder / "engine", args, parameters)
            self._requests: Requests = TensorRequests(longest)
            if (folder / "task" / TASK_FILE).exists():
                task = read_task(folder / "task")
                self._requests = TaskRequests(self._work(task, folder, parameters), longest)
                # Images have no tokens, and all of them one shape: they stay together.
                tokens = (tokens or default_tokens(padding.run_tokens)) if task.text else 0
        most = int(config["max_batch_size"])
        lanes = parallel_runs(runs, config, args["model_instance_kind"])
        run = self._session.run
        self._queue = RunQueue(run, most, bound, padding, most_tokens=tokens, lanes=lanes)
        self._queue.start()
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> None:
        """Answer by each request's sender, now or later (tensorlib.run_queue)."""
        waiting = []
        asked = [(read_arrays(request), self._wanted(request)) for request in requests]
        reads = self._requests.read(asked)
        for request, (_, wanted), read in zip(requests, asked, reads, strict=True):
            sender = request.get_response_sender()
            if isinstance(read, RequestError):
                self._answer(sender, wanted, dict, read)
                continue
            work, finish = read
            answer = partial(self._answer, sender, wanted, finish)
            waiting.append(Waiting(work, answer, sender.is_cancelled))
        self._queue.handle(waiting)

    def finalize(self) -> None:
        """Triton unloads a model only when nobody waits for it."""
        self._queue.close()
        self._metrics.close()

    def _work(self, task: Task, folder: Path, parameters: ModelParameters) -> GraphTask:
        tokenizer, session = folder / "tokenizer", self._session
        return GraphTask(task, tokenizer, parameters, session.inputs, session.outputs)

    def _wanted(self, request: Any) -> tuple[str, ...]:
        names = set(request.requested_output_names())
        return tuple(name for name in self._outputs if name in names)

    def _answer(
        self, sender: Any, wanted: Sequence[str], finish: Finish, answer: Answer | RequestError
    ) -> None:
        def tensors() -> list[Any]:
            outputs = finish(_outputs(answer, self._session.library))
            return [tensor(name, _as_answered(outputs[name])) for name in wanted]

        answer_with(sender, response_to(tensors, self._metrics.failed))


def _as_answered(array: Any) -> Any:
    if array.dtype.kind not in "OU":
        return array
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], bytes):
        return array  # made here, not by the graph
    texts = [str(item).encode("utf-8") for item in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)


def _outputs(answer: Answer | RequestError, library: str) -> Arrays:
    """The graph's; raises the error that there is instead, in our words."""
    where = ""
    if isinstance(answer, RowError):
        where, answer = f"{answer.item}: ", answer.error
    if isinstance(answer, TextPathError):
        raise answer
    if isinstance(answer, ValuesRefusedError):
        raise RequestError(f"{where}{library} does not take these values: {answer}")
    if isinstance(answer, Exception):
        raise EngineFailedError(f"{where}{library}: {answer}")
    return answer
