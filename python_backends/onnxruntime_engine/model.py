# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: an ONNX graph, run by ONNX Runtime."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from tensorlib.batches import Arrays
from tensorlib.graph_model import GraphModel, ValuesRefusedError
from tensorlib.lanes import instance_count, physical_cores
from textlib.errors import ModelConfigurationError
from textlib.triton.edge import require_path
from textlib.triton.parameters import ModelParameters, Setting

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


def session_options(settings: Mapping[str, Setting], instances: int) -> Any:
    """Create the session options of `serving.session` for one of `instances`; sets all of them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    cores = physical_cores()
    options.intra_op_num_threads = settings["intra_op_num_threads"] or len(cores)
    if not settings["intra_op_num_threads"] and instances == 1 and len(cores) > 1:
        # An unpinned thread wakes on its caller's core and stays there for most of a run, while
        # another core is idle. ONNX Runtime itself would pin threads to all cores of the machine,
        # even those that this process may not use. The caller is the first thread, and not pinned.
        bound = ";".join(",".join(str(logical + 1) for logical in core) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", bound)
    options.inter_op_num_threads = settings["inter_op_num_threads"]
    options.execution_mode = _MODES[str(settings["execution_mode"])]
    options.graph_optimization_level = _LEVELS[str(settings["graph_optimization_level"])]
    # Threads that spin between requests take processor time from other models.
    spinning = "1" if settings["allow_spinning"] else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    return options


def providers(args: Mapping[str, str]) -> list[Any]:
    """Return the execution providers for `instance_group`.

    Raises ModelConfigurationError for a GPU if this onnxruntime is built for CPUs.
    """
    if args["model_instance_kind"] != "GPU":
        return ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise ModelConfigurationError(
            f"{args['model_name']}: instance_group requests a GPU, but this onnxruntime has "
            "no CUDA. Set `kind: KIND_CPU`, or install onnxruntime-gpu in the server's environment."
        )
    # The dynamic loader does not find CUDA and cuDNN in Python packages.
    onnxruntime.preload_dlls()
    device = {"device_id": args["model_instance_device_id"]}
    return [("CUDAExecutionProvider", device), "CPUExecutionProvider"]


def _check_gpu_is_used(session: Any, requested_providers: Sequence[Any], model: str) -> None:
    """Raise ModelConfigurationError if ONNX Runtime fell back to the CPU, which it only logs."""
    if len(requested_providers) > 1 and session.get_providers() == ["CPUExecutionProvider"]:
        raise ModelConfigurationError(
            f"{model}: instance_group requests a GPU, but ONNX Runtime could not start CUDA; its "
            "message is in the log above. It needs the driver, and the libraries of CUDA "
            f"{onnxruntime.cuda_version} and cuDNN 9: pip install 'onnxruntime-gpu[cuda,cudnn]' "
            "installs them."
        )


class OnnxSession:
    """engine/model.onnx in ONNX Runtime."""

    library = "ONNX Runtime"

    def __init__(self, file: Any, args: Mapping[str, str], parameters: ModelParameters) -> None:
        instances = instance_count(json.loads(args["model_config"]))
        options = session_options(parameters.settings("session"), instances)
        try:
            requested_providers = providers(args)
            self._session = onnxruntime.InferenceSession(
                file, options, providers=requested_providers
            )
            _check_gpu_is_used(self._session, requested_providers, args["model_name"])
        except ModelConfigurationError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise ModelConfigurationError(
                f"{file} cannot be loaded by ONNX Runtime: {error}"
            ) from error
        self.inputs = [tensor.name for tensor in self._session.get_inputs()]
        # Triton has no tensors without a dimension: it passes [1] for a scalar.
        self._scalars = {tensor.name for tensor in self._session.get_inputs() if not tensor.shape}
        self.outputs = [tensor.name for tensor in self._session.get_outputs()]

    def run(self, arrays: Arrays, outputs: Sequence[str]) -> list[Any]:
        """Run the graph and return the named outputs in order. Raises ValuesRefusedError."""
        scalars = {name: arrays[name].reshape(()) for name in self._scalars & arrays.keys()}
        try:
            results = self._session.run(list(outputs), {**arrays, **scalars})
        except InvalidArgument as error:  # such as an id that is not in the vocabulary
            raise ValuesRefusedError(str(error)) from error
        return [np.asarray(array) for array in results]


class TritonPythonModel(GraphModel):
    """Runs a graph with ONNX Runtime."""

    def open(
        self, folder: Path, args: Mapping[str, str], parameters: ModelParameters
    ) -> OnnxSession:
        """Load model.onnx. Raises ModelConfigurationError."""
        return OnnxSession(require_path(folder / "model.onnx"), args, parameters)
