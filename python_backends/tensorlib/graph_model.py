# SPDX-License-Identifier: Apache-2.0
"""A Triton model around a graph, independent of the library that runs it.

A backend's model.py adds the library: `class TritonPythonModel(GraphModel)` with `open`.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasklib.graph_task import GraphTask
from tasklib.task_file import FILE as TASK_FILE
from tasklib.task_file import TaskDefinition, read_task
from tensorlib.batches import Answer, Arrays, Padding, RowError
from tensorlib.graph_requests import (
    Finish,
    RequestReader,
    TaskRequests,
    TensorRequests,
    UnbatchedRequests,
    run_unbatched,
)
from tensorlib.lanes import parallel_runs
from tensorlib.packing import default_tokens
from tensorlib.run_queue import TRITON_DECIDES, QueuedRequest, RunQueue
from textlib.errors import EngineFailedError, RequestError, TextPathError
from textlib.triton.edge import (
    build_response,
    limit_tokenizer_threads,
    read_arrays,
    reporting_load_errors,
    send_single_response,
    tensor,
    version_folder,
)
from textlib.triton.parameters import ModelParameters
from textlib.triton.step_metrics import StepMetrics


class ValuesRefusedError(Exception):
    """A library rejects the values of a request, such as an id outside the vocabulary."""


class GraphSession(Protocol):
    """A loaded graph."""

    @property
    def library(self) -> str:
        """Name of the library, for messages."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the inputs."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs."""

    def run(self, arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        """Run the graph and return the named outputs in order. Thread-safe.

        A scalar of the graph has the shape [1] in `arrays`. Raises ValuesRefusedError.
        """


class GraphModel:
    """A model whose tensors are the graph's, or those of a task that the engine inlines."""

    def open(
        self, folder: Path, args: Mapping[str, str], parameters: ModelParameters
    ) -> GraphSession:
        """Load the graph in `folder`, the artefact's engine/. Raises ModelConfigurationError."""
        raise NotImplementedError

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/engine, and 1/task if there is one."""
        limit_tokenizer_threads()
        config = json.loads(args["model_config"])
        self._outputs = [output["name"] for output in config["output"]]
        folder = version_folder(args)
        with reporting_load_errors(args) as parameters:
            max_sequence = parameters.integer("longest_sequence", minimum=0)
            max_waiting = parameters.integer("max_queue_size", minimum=TRITON_DECIDES)
            padding = Padding(**parameters.json_object("padding"))
            tokens = parameters.integer("max_num_tokens", minimum=0)
            runs = parameters.integer("parallel_runs")
            self._session = self.open(folder / "engine", args, parameters)
            self._requests: RequestReader = TensorRequests(max_sequence)
            if (folder / "task" / TASK_FILE).exists():
                task = read_task(folder / "task")
                self._requests = TaskRequests(
                    self._graph_task(task, folder, parameters), max_sequence
                )
                # Images have no tokens and all have one shape: they stay together.
                tokens = (tokens or default_tokens(padding.run_tokens)) if task.text else 0
        max_rows, run = int(config["max_batch_size"]), self._session.run
        if not max_rows:  # the graph has no batch dimension: each run is one request
            max_rows, run = 1, partial(run_unbatched, self._session.run)
            self._requests = UnbatchedRequests(max_sequence)
        lanes = parallel_runs(runs, config, args["model_instance_kind"])
        self._queue = RunQueue(run, max_rows, max_waiting, padding, max_tokens=tokens, lanes=lanes)
        self._queue.start()
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> None:
        """Respond through each request's sender, now or later (tensorlib.run_queue)."""
        waiting = []
        reader_inputs = [
            (read_arrays(request), self._requested_outputs(request)) for request in requests
        ]
        reads = self._requests.read(reader_inputs)
        for request, (_, output_names), read in zip(requests, reader_inputs, reads, strict=True):
            sender = request.get_response_sender()
            if isinstance(read, RequestError):
                self._send_answer(sender, output_names, dict, read)
                continue
            work, finish = read
            answer = partial(self._send_answer, sender, output_names, finish)
            waiting.append(QueuedRequest(work, answer, sender.is_cancelled))
        self._queue.submit(waiting)

    def finalize(self) -> None:
        """Stop the queue and the metrics; Triton unloads a model only without live requests."""
        self._queue.close()
        self._metrics.close()

    def _graph_task(
        self, task: TaskDefinition, folder: Path, parameters: ModelParameters
    ) -> GraphTask:
        tokenizer, session = folder / "tokenizer", self._session
        return GraphTask(task, tokenizer, parameters, session.inputs, session.outputs)

    def _requested_outputs(self, request: Any) -> tuple[str, ...]:
        names = set(request.requested_output_names())
        return tuple(name for name in self._outputs if name in names)

    def _send_answer(
        self,
        sender: Any,
        output_names: Sequence[str],
        finish: Finish,
        answer: Answer | RequestError,
    ) -> None:
        def tensors() -> list[Any]:
            outputs = finish(_graph_outputs(answer, self._session.library))
            return [tensor(name, _as_response_array(outputs[name])) for name in output_names]

        send_single_response(sender, build_response(tensors, self._metrics.count_error))


def _as_response_array(array: Any) -> Any:
    if array.dtype.kind not in "OU":
        return array
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], bytes):
        return array  # already bytes, made by a task's last step
    texts = [str(item).encode("utf-8") for item in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)


def _graph_outputs(answer: Answer | RequestError, library: str) -> Arrays:
    """Return the graph's outputs; raises an error of the text path for a failed run."""
    prefix = ""
    if isinstance(answer, RowError):
        prefix, answer = f"{answer.item}: ", answer.error
    if isinstance(answer, TextPathError):
        raise answer
    if isinstance(answer, ValuesRefusedError):
        raise RequestError(f"{prefix}{library} does not take these values: {answer}")
    if isinstance(answer, Exception):
        raise EngineFailedError(f"{prefix}{library}: {answer}")
    return answer
