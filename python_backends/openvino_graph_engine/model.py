# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: a task's graph on a CPU, run by OpenVINO."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino

from tensorlib.batches import Arrays
from tensorlib.graph_model import GraphModel
from textlib.errors import ModelConfigurationError
from textlib.triton.edge import require_path
from textlib.triton.parameters import ModelParameters, Setting

_DEVICE = "CPU"
_PRECISION_HINT = "INFERENCE_PRECISION_HINT"


class OpenvinoSession:
    """engine/openvino_model.xml, compiled for this CPU with the properties of its build."""

    library = "OpenVINO"

    def __init__(self, file: Path, properties: Mapping[str, Setting]) -> None:
        core = openvino.Core()
        _require_bf16(core, properties)
        try:
            self._compiled = core.compile_model(file, _DEVICE, dict(properties))
        except RuntimeError as error:
            raise ModelConfigurationError(
                f"{file} cannot be loaded by OpenVINO with {dict(properties)}: {error}. "
                "Build the model again, or correct engine.properties."
            ) from error
        self.inputs = [port.get_any_name() for port in self._compiled.inputs]
        self.outputs = [port.get_any_name() for port in self._compiled.outputs]
        # An infer request has its own buffers, so each thread has one.
        self._thread_state = threading.local()

    def run(self, arrays: Arrays, outputs: Sequence[str]) -> list[Any]:
        """Run the graph and return the named outputs in order."""
        request = getattr(self._thread_state, "request", None)
        if request is None:
            request = self._thread_state.request = self._compiled.create_infer_request()
        results = request.infer(dict(arrays), share_inputs=True)
        return [results[name] for name in outputs]


def _require_bf16(core: Any, properties: Mapping[str, Setting]) -> None:
    """Raise ModelConfigurationError without bf16: OpenVINO would silently use unproven types."""
    capabilities = core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
    if properties.get(_PRECISION_HINT) == "bf16" and "BF16" not in capabilities:
        raise ModelConfigurationError(
            "this engine computes in bf16, which this CPU does not support (AVX512-BF16 or AMX). "
            "Serve it on a CPU with bf16, or build it with precision fp32."
        )


class TritonPythonModel(GraphModel):
    """Runs a graph with OpenVINO."""

    def open(
        self, folder: Path, args: Mapping[str, str], parameters: ModelParameters
    ) -> OpenvinoSession:
        """Load openvino_model.xml. Raises ModelConfigurationError."""
        if args["model_instance_kind"] == "GPU":
            raise ModelConfigurationError(
                f"{args['model_name']}: instance_group requests a GPU, but this engine is for "
                "CPUs. Set `kind: KIND_CPU`."
            )
        file = require_path(folder / "openvino_model.xml")
        return OpenvinoSession(file, parameters.settings("properties"))
