# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: a graph of a task on a CPU, run by OpenVINO."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino

from tensorlib.batches import Arrays
from tensorlib.graph_model import GraphModel
from textlib.errors import ConfigurationError
from textlib.parameters import ModelParameters, Setting
from textlib.triton_edge import existing

_DEVICE = "CPU"
_INSIDE = "INFERENCE_PRECISION_HINT"


class OpenvinoSession:
    """engine/openvino_model.xml, compiled for this CPU with the properties of its build."""

    library = "OpenVINO"

    def __init__(self, file: Path, properties: Mapping[str, Setting]) -> None:
        core = openvino.Core()
        _require_bf16(core, properties)
        try:
            self._compiled = core.compile_model(file, _DEVICE, dict(properties))
        except RuntimeError as error:
            raise ConfigurationError(
                f"{file} cannot be loaded by OpenVINO with {dict(properties)}: {error}. "
                "Build the model again, or correct engine.properties."
            ) from error
        self.inputs = [one.get_any_name() for one in self._compiled.inputs]
        self.outputs = [one.get_any_name() for one in self._compiled.outputs]
        # A request has buffers of its own, and belongs to who runs it.
        self._own = threading.local()

    def run(self, arrays: Arrays, outputs: Sequence[str]) -> list[Any]:
        """The outputs of these names in their order."""
        request = getattr(self._own, "request", None)
        if request is None:
            request = self._own.request = self._compiled.create_infer_request()
        made = request.infer(dict(arrays), share_inputs=True)
        return [made[name] for name in outputs]


def _require_bf16(core: Any, properties: Mapping[str, Setting]) -> None:
    """Refuse: elsewhere OpenVINO silently computes in other types, which no proof has compared."""
    known = core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
    if properties.get(_INSIDE) == "bf16" and "BF16" not in known:
        raise ConfigurationError(
            "this engine computes in bf16, which this CPU does not (AVX512-BF16 or AMX). Serve it "
            "where the CPU does, or build it with precision fp32."
        )


class TritonPythonModel(GraphModel):
    """Triton's requests to OpenVINO."""

    def open(
        self, folder: Path, args: Mapping[str, str], parameters: ModelParameters
    ) -> OpenvinoSession:
        """Load openvino_model.xml. Raises ConfigurationError."""
        if args["model_instance_kind"] == "GPU":
            raise ConfigurationError(
                f"{args['model_name']}: instance_group asks for a GPU, and this engine is for "
                "CPUs. Set `kind: KIND_CPU`."
            )
        file = existing(folder / "openvino_model.xml")
        return OpenvinoSession(file, parameters.settings("properties"))
