# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: an ONNX graph, run by ONNX Runtime."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from tasklib.graph_task import GraphTask
from tasklib.task_file import FILE as TASK_FILE
from tasklib.task_file import Task, read_task
from tensorlib.batches import Answer, Arrays, Asked, Padding, RowError
from tensorlib.lanes import parallel_runs
from tensorlib.packing import default_tokens
from tensorlib.run_queue import TRITON_DECIDES, RunQueue, Waiting
from textlib.errors import ConfigurationError, EngineFailedError, RequestError, TextPathError
from textlib.parameters import ModelParameters, Setting
from textlib.step_metrics import StepMetrics
from textlib.triton_edge import (
    answer_with,
    existing,
    limit_tokenizer_threads,
    loading,
    read_arrays,
    response_to,
    tensor,
    version_folder,
)

_LEVELS = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_MODES = {
    "sequential": onnxruntime.ExecutionMode.ORT_SEQUENTIAL,
    "parallel": onnxruntime.ExecutionMode.ORT_PARALLEL,
}
_ERRORS_ONLY = 3
_LENGTHS_OF = "input_ids"


def session_options(settings: Mapping[str, Setting]) -> Any:
    """The session options of `serving.session`, every one of them set."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = settings["intra_op_num_threads"]
    options.inter_op_num_threads = settings["inter_op_num_threads"]
    options.execution_mode = _MODES[str(settings["execution_mode"])]
    options.graph_optimization_level = _LEVELS[str(settings["graph_optimization_level"])]
    # Threads that spin between requests take the processor from the models beside this one.
    spinning = "1" if settings["allow_spinning"] else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    return options


def providers(args: Mapping[str, str]) -> list[Any]:
    """Where the graph runs: what `instance_group` says.

    Raises ConfigurationError when that is a GPU and this onnxruntime is built for CPUs.
    """
    if args["model_instance_kind"] != "GPU":
        return ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise ConfigurationError(
            f"{args['model_name']}: instance_group asks for a GPU, and the onnxruntime here has "
            "no CUDA. Set `kind: KIND_CPU`, or install onnxruntime-gpu beside the server."
        )
    device = {"device_id": args["model_instance_device_id"]}
    return [("CUDAExecutionProvider", device), "CPUExecutionProvider"]


Finish = Callable[[Arrays], Mapping[str, Any]]
Read = tuple[Asked, Finish]


class TensorRequests:
    """Requests for a graph as it is: its own tensors in and out."""

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def read(self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]) -> list[Read | RequestError]:
        """Each request's arrays and the outputs that it wants, or what is wrong with it."""
        return [self._read(*request) for request in requests]

    def _read(self, arrays: Arrays, wanted: tuple[str, ...]) -> Read | RequestError:
        problem = too_long(arrays, self._longest)
        return problem or (Asked({name: _as_given(a) for name, a in arrays.items()}, wanted), dict)


class TaskRequests:
    """Requests for a task: what is folded into this engine happens around the graph."""

    def __init__(self, task: GraphTask, longest: int) -> None:
        self._task = task
        self._longest = longest

    def read(self, requests: Sequence[tuple[Arrays, tuple[str, ...]]]) -> list[Read | RequestError]:
        """What the graph is fed for each request, or what is wrong with it."""
        works = self._task.works([arrays for arrays, _ in requests])
        return [
            work
            if isinstance(work, RequestError)
            else too_long(work.feed, self._longest)
            or (Asked(work.feed, self._task.outputs), work.answer)
            for work in works
        ]


def too_long(arrays: Arrays, longest: int) -> RequestError | None:
    """What ONNX Runtime could not say clearly."""
    ids = arrays.get(_LENGTHS_OF)
    if longest and ids is not None and ids.shape[1] > longest:
        return RequestError(
            f"{_LENGTHS_OF} has {ids.shape[1]} tokens per row; this model takes up to {longest}."
        )
    return None


def _as_given(array: Any) -> Any:
    """Triton's texts are bytes, ONNX Runtime's are str."""
    if array.dtype.kind not in "OS":
        return array
    texts = [bytes(item).decode("utf-8", errors="replace") for item in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)


def _as_answered(array: Any) -> Any:
    if array.dtype.kind not in "OU":
        return array
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], bytes):
        return array  # made here, not by the graph
    texts = [str(item).encode("utf-8") for item in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)


class TritonPythonModel:
    """The tensors are the graph's own, or those of a task that is folded into it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/engine/model.onnx, and 1/task where there is one."""
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
            self._session = _session(existing(folder / "engine" / "model.onnx"), args, parameters)
            self._requests: TensorRequests | TaskRequests = TensorRequests(longest)
            if (folder / "task" / TASK_FILE).exists():
                task = read_task(folder / "task")
                self._requests = TaskRequests(self._work(task, folder, parameters), longest)
                # Images have no tokens, and all of them one shape: they stay together.
                tokens = (tokens or default_tokens(padding.run_tokens)) if task.text else 0
        most = int(config["max_batch_size"])
        lanes = parallel_runs(runs, config, args["model_instance_kind"])
        run = self._run
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
        inputs = [one.name for one in self._session.get_inputs()]
        outputs = [one.name for one in self._session.get_outputs()]
        return GraphTask(task, folder / "tokenizer", parameters, inputs, outputs)

    def _wanted(self, request: Any) -> tuple[str, ...]:
        names = set(request.requested_output_names())
        return tuple(name for name in self._outputs if name in names)

    def _answer(
        self, sender: Any, wanted: Sequence[str], finish: Finish, answer: Answer | RequestError
    ) -> None:
        def tensors() -> list[Any]:
            outputs = finish(_outputs(answer))
            return [tensor(name, _as_answered(outputs[name])) for name in wanted]

        answer_with(sender, response_to(tensors, self._metrics.failed))

    def _run(self, arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        return [np.asarray(array) for array in self._session.run(list(outputs), dict(arrays))]


def _session(file: Any, args: Mapping[str, str], parameters: ModelParameters) -> Any:
    options = session_options(parameters.settings("session"))
    try:
        return onnxruntime.InferenceSession(file, options, providers=providers(args))
    except ConfigurationError:
        raise
    except Exception as error:  # onnxruntime's own tree has no common base
        raise ConfigurationError(f"{file} cannot be loaded by ONNX Runtime: {error}") from error


def _outputs(answer: Answer) -> Arrays:
    """The graph's; raises the error that there is instead, in our words."""
    where = ""
    if isinstance(answer, RowError):
        where, answer = f"{answer.item}: ", answer.error
    if isinstance(answer, TextPathError):
        raise answer
    if isinstance(answer, InvalidArgument):  # such as an id that is not in the vocabulary
        raise RequestError(f"{where}ONNX Runtime does not take these values: {answer}")
    if isinstance(answer, Exception):
        raise EngineFailedError(f"{where}ONNX Runtime: {answer}")
    return answer
