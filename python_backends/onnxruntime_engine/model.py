# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: an ONNX graph, run by ONNX Runtime."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from tensorlib.batches import Answer, Arrays, Asked, Padding
from tensorlib.run_queue import TRITON_DECIDES, RunQueue, Waiting
from textlib.errors import ConfigurationError, EngineFailedError, RequestError, TextPathError
from textlib.parameters import ModelParameters, Setting
from textlib.step_metrics import StepMetrics
from textlib.triton_edge import (
    answer_with,
    existing,
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


def read_request(request: Any, known: Sequence[str], longest: int) -> Asked | RequestError:
    """One request's arrays and the outputs it wants; what ONNX Runtime could not say clearly."""
    arrays = {name: _as_given(array) for name, array in read_arrays(request).items()}
    ids = arrays.get(_LENGTHS_OF)
    if longest and ids is not None and ids.shape[1] > longest:
        return RequestError(
            f"{_LENGTHS_OF} has {ids.shape[1]} tokens per row; this model takes up to {longest}."
        )
    wanted = set(request.requested_output_names())
    return Asked(arrays, tuple(name for name in known if name in wanted))


def _as_given(array: Any) -> Any:
    """Triton's texts are bytes, ONNX Runtime's are str."""
    if array.dtype.kind not in "OS":
        return array
    texts = [bytes(item).decode("utf-8", errors="replace") for item in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)


def _as_answered(array: Any) -> Any:
    if array.dtype.kind not in "OU":
        return array
    texts = [str(item).encode("utf-8") for item in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)


class TritonPythonModel:
    """The tensors are the graph's own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/engine/model.onnx."""
        config = json.loads(args["model_config"])
        self._outputs = [output["name"] for output in config["output"]]
        file = version_folder(args) / "engine" / "model.onnx"
        with loading(args) as parameters:
            self._longest = parameters.integer("longest_sequence", minimum=0)
            bound = parameters.integer("max_queue_size", minimum=TRITON_DECIDES)
            padding = Padding(**parameters.record("padding"))
            self._session = _session(existing(file), args, parameters)
        self._queue = RunQueue(self._run, int(config["max_batch_size"]), bound, padding)
        self._queue.start()
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> None:
        """Answer by each request's sender, now or later (tensorlib.run_queue)."""
        waiting = []
        for request in requests:
            sender = request.get_response_sender()
            asked = read_request(request, self._outputs, self._longest)
            if isinstance(asked, Asked):
                answer = partial(self._answer, sender)
                waiting.append(Waiting(asked, answer, sender.is_cancelled))
            else:
                self._answer(sender, asked)
        self._queue.handle(waiting)

    def finalize(self) -> None:
        """Triton unloads a model only when nobody waits for it."""
        self._queue.close()
        self._metrics.close()

    def _answer(self, sender: Any, answer: Answer) -> None:
        answer_with(sender, response_to(lambda: _tensors(answer), self._metrics.failed))

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


def _tensors(answer: Answer) -> list[Any]:
    if isinstance(answer, TextPathError):
        raise answer
    if isinstance(answer, InvalidArgument):  # such as an id that is not in the vocabulary
        raise RequestError(f"ONNX Runtime does not take these values: {answer}")
    if isinstance(answer, Exception):
        raise EngineFailedError(f"ONNX Runtime: {answer}")
    return [tensor(name, _as_answered(array)) for name, array in answer.items()]
