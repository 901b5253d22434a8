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
from tensorlib.lanes import instances_of, physical_cores
from textlib.errors import ConfigurationError
from textlib.parameters import ModelParameters, Setting
from textlib.triton_edge import existing

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
    """The session options of `serving.session`, every one of them set, for one of `instances`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    cores = physical_cores()
    options.intra_op_num_threads = settings["intra_op_num_threads"] or len(cores)
    if not settings["intra_op_num_threads"] and instances == 1 and len(cores) > 1:
        # A thread that may run anywhere wakes on its caller's core and stays there for most of a
        # run, while another core is idle. ONNX Runtime itself would take all of the machine's
        # cores, whichever this process may use. The caller is the first thread, and not bound.
        bound = ";".join(",".join(str(one + 1) for one in core) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", bound)
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
    # CUDA and cuDNN as Python packages lie where the loader does not look.
    onnxruntime.preload_dlls()
    device = {"device_id": args["model_instance_device_id"]}
    return [("CUDAExecutionProvider", device), "CPUExecutionProvider"]


def _refuse_the_cpu(session: Any, asked: Sequence[Any], model: str) -> None:
    """ONNX Runtime without its CUDA libraries runs on the CPU and only says so in the log."""
    if len(asked) > 1 and session.get_providers() == ["CPUExecutionProvider"]:
        raise ConfigurationError(
            f"{model}: instance_group asks for a GPU, and ONNX Runtime could not start CUDA: its "
            "own words are in the log, before this. It needs the driver, and the libraries of CUDA "
            f"{onnxruntime.cuda_version} and cuDNN 9: pip install 'onnxruntime-gpu[cuda,cudnn]' "
            "brings them."
        )


class OnnxSession:
    """engine/model.onnx in ONNX Runtime."""

    library = "ONNX Runtime"

    def __init__(self, file: Any, args: Mapping[str, str], parameters: ModelParameters) -> None:
        instances = instances_of(json.loads(args["model_config"]))
        options = session_options(parameters.settings("session"), instances)
        try:
            places = providers(args)
            self._session = onnxruntime.InferenceSession(file, options, providers=places)
            _refuse_the_cpu(self._session, places, args["model_name"])
        except ConfigurationError:
            raise
        except Exception as error:  # onnxruntime's own tree has no common base
            raise ConfigurationError(f"{file} cannot be loaded by ONNX Runtime: {error}") from error
        self.inputs = [one.name for one in self._session.get_inputs()]
        self.outputs = [one.name for one in self._session.get_outputs()]

    def run(self, arrays: Arrays, outputs: Sequence[str]) -> list[Any]:
        """The outputs of these names in their order. Raises ValuesRefusedError."""
        try:
            made = self._session.run(list(outputs), dict(arrays))
        except InvalidArgument as error:  # such as an id that is not in the vocabulary
            raise ValuesRefusedError(str(error)) from error
        return [np.asarray(array) for array in made]


class TritonPythonModel(GraphModel):
    """Triton's requests to ONNX Runtime."""

    def open(
        self, folder: Path, args: Mapping[str, str], parameters: ModelParameters
    ) -> OnnxSession:
        """Load model.onnx. Raises ConfigurationError."""
        return OnnxSession(existing(folder / "model.onnx"), args, parameters)
