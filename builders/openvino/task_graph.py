# SPDX-License-Identifier: Apache-2.0
"""Reads, quantises, saves and runs a task's exported graph with OpenVINO.

Importing this module imports openvino; quantising imports nncf.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino

from buildlib.problems import BuildError
from onnxlib.graph import OnnxTensor
from taskproof.feeds import Feed

MODEL_XML = "openvino_model.xml"
_DEVICE = "CPU"
# Triton's names (model_config.proto, DataType) of OpenVINO's element types, and ONNX's.
_TYPES = {"i64": ("TYPE_INT64", "INT64"), "f32": ("TYPE_FP32", "FLOAT")}


def read_graph(file: Path) -> Any:
    """Read the graph in an ONNX file.

    Raises:
        BuildError: OpenVINO lacks an operator, or serving does not support a tensor's type.
    """
    try:
        model = openvino.Core().read_model(file)
    except RuntimeError as error:
        last_line = str(error).strip().splitlines()[-1]
        raise BuildError(
            f"OpenVINO {openvino.__version__} cannot read the exported graph: {last_line}",
            remedy="Use the builder onnxruntime for this architecture.",
        ) from error
    for port in (*model.inputs, *model.outputs):
        kind = port.element_type.get_type_name()
        if kind not in _TYPES:
            raise BuildError(
                f"{port.any_name} of the exported graph is of the type {kind}",
                remedy="Report it with build.log; until then use the builder onnxruntime.",
            )
    return model


def tensor_specs(model: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the `tensors` object of the result, without the batch dimension."""

    def spec(port: Any) -> dict[str, Any]:
        triton, _ = _TYPES[port.element_type.get_type_name()]
        dims = [size if size is not None else -1 for size in _sizes(port)[1:]]
        return {"name": port.any_name, "data_type": triton, "dims": dims}

    return {"inputs": [spec(p) for p in model.inputs], "outputs": [spec(p) for p in model.outputs]}


def onnx_tensors(ports: Sequence[Any]) -> list[OnnxTensor]:
    """Return ports as ONNX tensors."""
    return [
        OnnxTensor(port.any_name, _TYPES[port.element_type.get_type_name()][1], _sizes(port))
        for port in ports
    ]


def _sizes(port: Any) -> tuple[int | None, ...]:
    """Return the sizes of a port's dimensions; None: variable."""
    return tuple(size.get_length() if size.is_static else None for size in port.get_partial_shape())


def compress_weights(model: Any) -> Any:
    """Convert weights to int8 with a scale and a zero point per row. Activations stay fp32."""
    import nncf

    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)


def quantise(model: Any, feeds: Sequence[Feed]) -> Any:
    """Convert weights and activations to int8 with ranges measured on `feeds`."""
    import nncf

    names = [port.any_name for port in model.inputs]
    data = nncf.Dataset(list(feeds), lambda feed: {name: feed[name] for name in names})
    return nncf.quantize(
        model,
        data,
        subset_size=len(feeds),
        model_type=nncf.ModelType.TRANSFORMER,
    )


def save_graph(model: Any, folder: Path, *, fp16: bool) -> Path:
    """Write the graph and return its file. `fp16`: store its weights in fp16."""
    openvino.save_model(model, folder / MODEL_XML, compress_to_fp16=fp16)
    return folder / MODEL_XML


class GraphRunner:
    """Runs a graph on this machine's CPU: maps inputs by name to outputs."""

    def __init__(self, model: Any, properties: Mapping[str, str | int | bool]) -> None:
        """Compile `model`, a read graph or a file. Raises BuildError for a CPU without bf16."""
        core = openvino.Core()
        capabilities = core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
        if properties["INFERENCE_PRECISION_HINT"] == "bf16" and "BF16" not in capabilities:
            raise BuildError(
                f"precision bf16: OpenVINO says that this CPU has {', '.join(capabilities)}, not "
                "BF16",
                remedy="Build where the CPU has it, or set engine.precision to fp32 or int8.",
            )
        compiled = core.compile_model(model, _DEVICE, dict(properties))
        self._names = [port.get_any_name() for port in compiled.inputs]
        self._outputs = compiled.outputs
        self._request = compiled.create_infer_request()

    def outputs(self, feed: Feed) -> list[Any]:
        """Return all outputs in the graph's order."""
        results = self._request.infer({name: feed[name] for name in self._names})
        return [results[port] for port in self._outputs]

    def __call__(self, feed: Feed) -> Any:
        """Return the first output, the task's."""
        return self.outputs(feed)[0]
