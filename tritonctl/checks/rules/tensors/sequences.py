# SPDX-License-Identifier: Apache-2.0
"""TC257: controls and states of a sequence that differ from the ONNX graph.

Source: https://github.com/triton-inference-server/onnxruntime_backend/blob/main/src/onnxruntime.cc
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.declared import has_batch_dimension, type_name
from tritonctl.checks.config.message import ConfigMessage, Path
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.checks.rules.tensors.graph import find_tensor
from tritonctl.formats.graph_file import ModelGraph

_TYPE_BY_VALUES = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}


@error(
    "TC257 sequence-unlike-graph",
    summary="a control or state of a sequence whose type or shape differs from the ONNX graph",
    reason="The backend compares the controls when it loads the model, and refuses it; with a "
    "state of another type, every request fails.",
    shows="elsewhere",
    needs_valid_config=True,
)
def sequence_unlike_graph(
    config: ConfigMessage, sequences: Any, onnx: ModelGraph, model: Model
) -> Iterator[Hit]:
    for index, tensor in enumerate(sequences.control_input):
        graph_tensor = find_tensor(tensor.name, onnx.inputs + onnx.defaults)
        if graph_tensor is None:
            continue  # TC206 reports it
        name_path: Path = ("sequence_batching", "control_input", index)
        shape = graph_tensor.shape
        expected = ("batch", 1) if has_batch_dimension(model) else (1,)
        if shape is not None and (len(shape) != len(expected) or shape[-1] != 1):
            yield Hit(
                f"the control {tensor.name} has the shape [{', '.join(map(str, shape))}] in "
                f"{onnx.path.name}",
                f"export the graph with the shape [{', '.join(map(str, expected))}]",
                config.span(*name_path, "name"),
            )
        for number, control in enumerate(tensor.control):
            declared = _control_type(control)
            if declared and graph_tensor.dtype and declared != graph_tensor.dtype:
                yield Hit(
                    f"the control {tensor.name} sends {declared}, and {onnx.path.name} takes "
                    f"{graph_tensor.dtype}",
                    "send the type of the graph, or export it with this one",
                    config.span(*name_path, "control", number),
                )
    yield from _other_state_types(config, sequences, onnx)


def _control_type(control: Any) -> str | None:
    """Return the data type that a control sends; None if it has not exactly one."""
    if control.kind == control.CONTROL_SEQUENCE_CORRID:
        return type_name(control.data_type)
    types = [name for field, name in _TYPE_BY_VALUES.items() if len(getattr(control, field))]
    return types[0] if len(types) == 1 else None


def _other_state_types(config: ConfigMessage, sequences: Any, onnx: ModelGraph) -> Iterator[Hit]:
    for index, state in enumerate(sequences.state):
        declared = type_name(state.data_type)
        for name, tensors in (
            (state.input_name, onnx.inputs + onnx.defaults),
            (state.output_name, onnx.outputs),
        ):
            graph_tensor = find_tensor(name, tensors)
            if graph_tensor and graph_tensor.dtype and graph_tensor.dtype != declared:
                yield Hit(
                    f"the state {name} is {declared}, and {onnx.path.name} has "
                    f"{graph_tensor.dtype}",
                    f"write data_type: {graph_tensor.dtype}",
                    config.span("sequence_batching", "state", index, "data_type"),
                )
                break
