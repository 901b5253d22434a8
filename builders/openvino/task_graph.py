# SPDX-License-Identifier: Apache-2.0
"""A task's exported graph in OpenVINO: converted, quantised, run.

Importing this imports openvino; quantising imports nncf.
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
    """The graph in an ONNX file.

    Raises:
        BuildError: OpenVINO lacks an operator of it, or a tensor is of another type than the
            served steps make and read.
    """
    try:
        model = openvino.Core().read_model(file)
    except RuntimeError as error:
        last = str(error).strip().splitlines()[-1]
        raise BuildError(
            f"OpenVINO {openvino.__version__} cannot read the exported graph: {last}",
            remedy="Use the builder onnxruntime for this architecture.",
        ) from error
    for port in (*model.inputs, *model.outputs):
        kind = port.element_type.get_type_name()
        if kind not in _TYPES:
            raise BuildError(
                f"{port.any_name} of the exported graph is of the type {kind}",
                remedy="Report it, with build.log; the builder onnxruntime serves it meanwhile.",
            )
    return model


def tensors(model: Any) -> dict[str, list[dict[str, Any]]]:
    """The graph's inputs and outputs as the result has them, without the batch dimension."""

    def spec(port: Any) -> dict[str, Any]:
        triton, _ = _TYPES[port.element_type.get_type_name()]
        dims = [size if size is not None else -1 for size in _sizes(port)[1:]]
        return {"name": port.any_name, "data_type": triton, "dims": dims}

    return {"inputs": [spec(p) for p in model.inputs], "outputs": [spec(p) for p in model.outputs]}


def onnx_tensors(ports: Sequence[Any]) -> list[OnnxTensor]:
    """The same as the export has them."""
    return [
        OnnxTensor(port.any_name, _TYPES[port.element_type.get_type_name()][1], _sizes(port))
        for port in ports
    ]


def _sizes(port: Any) -> tuple[int | None, ...]:
    """None for a variable one."""
    return tuple(size.get_length() if size.is_static else None for size in port.get_partial_shape())


def with_small_weights(model: Any) -> Any:
    """Weights in int8, a scale and a zero point for each row; activations as they are."""
    import nncf

    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)


def quantised(model: Any, feeds: Sequence[Feed]) -> Any:
    """Weights and activations in int8, ranges measured on `feeds`."""
    import nncf

    names = [port.any_name for port in model.inputs]
    data = nncf.Dataset(list(feeds), lambda feed: {name: feed[name] for name in names})
    return nncf.quantize(
        model,
        data,
        subset_size=len(feeds),
        model_type=nncf.ModelType.TRANSFORMER,
    )


def save(model: Any, folder: Path, *, fp16: bool) -> Path:
    """Write the graph; `fp16`: its weights so."""
    openvino.save_model(model, folder / MODEL_XML, compress_to_fp16=fp16)
    return folder / MODEL_XML


class Running:
    """A graph on this machine's CPU: its inputs by name, to its outputs."""

    def __init__(self, model: Any, properties: Mapping[str, str | int | bool]) -> None:
        """`model`: one that was read, or a file. Raises BuildError for a CPU without bf16."""
        core = openvino.Core()
        can = core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
        if properties["INFERENCE_PRECISION_HINT"] == "bf16" and "BF16" not in can:
            raise BuildError(
                f"precision bf16: OpenVINO says that this CPU has {', '.join(can)}, not BF16",
                remedy="Build where the CPU has it, or set engine.precision to fp32 or int8.",
            )
        compiled = core.compile_model(model, _DEVICE, dict(properties))
        self._names = [port.get_any_name() for port in compiled.inputs]
        self._outputs = compiled.outputs
        self._request = compiled.create_infer_request()

    def outputs(self, feed: Feed) -> list[Any]:
        """All outputs, in the graph's order."""
        made = self._request.infer({name: feed[name] for name in self._names})
        return [made[port] for port in self._outputs]

    def __call__(self, feed: Feed) -> Any:
        """The only output."""
        [made] = self.outputs(feed)
        return made
