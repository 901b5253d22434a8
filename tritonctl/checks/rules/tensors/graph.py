# SPDX-License-Identifier: Apache-2.0
"""TC204 to TC209, TC216 and TC217: declared names and types that differ from the model's file.

Sources: https://github.com/triton-inference-server/onnxruntime_backend (what it checks when it
loads a model; its README on optional inputs), https://github.com/triton-inference-server/
openvino_backend, and the table of types in https://github.com/triton-inference-server/server/
blob/main/docs/user_guide/model_configuration.md#datatypes
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.declared import (
    DeclaredTensor,
    comparable_graph,
    has_batch_dimension,
    has_declared,
    inputs,
    outputs,
)
from tritonctl.checks.analysis.placement import join_some
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.errors import suggest
from tritonctl.formats.graph_file import GraphTensor, ModelGraph, Shape

_INTERFACE_REASON = (
    "The backend compares names, types and shapes when it loads the model, and refuses"
)


def find_tensor(name: str, tensors: tuple[GraphTensor, ...]) -> GraphTensor | None:
    """Return the tensor with that name, or None."""
    return next((tensor for tensor in tensors if name in tensor.names), None)


def matching_tensors(
    model: Model, graph: ModelGraph
) -> Iterator[tuple[DeclaredTensor, GraphTensor]]:
    """Yield the declared tensors, each with the graph's tensor of the same name."""
    for tensor in inputs(model):
        if graph_tensor := find_tensor(tensor.name, graph.inputs + graph.defaults):
            yield tensor, graph_tensor
    for tensor in outputs(model):
        if graph_tensor := find_tensor(tensor.name, graph.outputs):
            yield tensor, graph_tensor


def filled_input_names(config: ConfigMessage, model: Model) -> set[str]:
    """Return the names of all inputs that Triton fills: from requests, sequences and batches."""
    message = config.message
    names = {tensor.name for tensor in inputs(model)}
    names.update(name for batch_input in message.batch_input for name in batch_input.target_name)
    names.update(control.name for control in message.sequence_batching.control_input)
    names.update(state.input_name for state in message.sequence_batching.state)
    return names


@error(
    "TC204 not-a-tensor",
    summary="an ONNX graph with an input or output that is a sequence or a map",
    reason="The backend says `Unsupported ONNX Type` and refuses the model, declared or not.",
    answers=("server#3798", "onnxruntime_backend#94"),
    shows="elsewhere",
)
def not_a_tensor(graph: ModelGraph, model: Model) -> Iterator[Hit]:
    for tensor in (*graph.inputs, *graph.defaults, *graph.outputs):
        if not tensor.is_tensor:
            yield Hit(
                f"{tensor.name} of {graph.path.name} is a {tensor.kind}, not a tensor",
                "export the graph with tensors only; for scikit-learn's classifiers, convert with "
                "the option zipmap=False",
                relative_path=graph.path.relative_to(model.path).as_posix(),
            )


@error(
    "TC205 type-unknown-to-triton",
    summary="a tensor of the graph whose type Triton does not support",
    reason="No data_type of the configuration corresponds to it: the backend refuses the model.",
    shows="elsewhere",
)
def type_unknown_to_triton(config: ConfigMessage, onnx: ModelGraph, model: Model) -> Iterator[Hit]:
    declared = {tensor.name: tensor for tensor in (*inputs(model), *outputs(model))}
    for graph_tensor in (*onnx.inputs, *onnx.outputs):
        is_used = graph_tensor in onnx.inputs or graph_tensor.name in declared
        if graph_tensor.is_tensor and graph_tensor.dtype is None and is_used:
            tensor = declared.get(graph_tensor.name)
            path = tensor.path if tensor else ("input", 0)
            yield Hit(
                f"{graph_tensor.name} is of type {graph_tensor.kind}, which the backend does not "
                "support",
                "put a Cast to float or another type in front of it when exporting",
                config.span(*path, "data_type") if tensor else config.name_span(*path),
            )


@error(
    "TC206 unknown-tensor",
    summary="a declared input or output that the model's file does not have",
    reason=f"{_INTERFACE_REASON} it: unexpected inference input or output.",
    shows="elsewhere",
)
def unknown_tensor(
    config: ConfigMessage, compared_graph: ModelGraph, model: Model
) -> Iterator[Hit]:
    for tensors, graph_tensors in (
        (inputs(model), compared_graph.inputs + compared_graph.defaults),
        (outputs(model), compared_graph.outputs),
    ):
        names = [graph_tensor.name for graph_tensor in graph_tensors]
        for tensor in tensors:
            if tensor.name and find_tensor(tensor.name, graph_tensors) is None:
                yield Hit(
                    f"{compared_graph.path.name} has no {tensor.path[0]} {tensor.name}; it has "
                    f"{join_some(names, 8) or 'none'}",
                    _name_fix(tensor.name, names),
                    config.span(*tensor.path, "name"),
                )
    yield from _unknown_controls(config, compared_graph)
    if compared_graph.format == "ONNX":
        yield from _unknown_batch_inputs(config, compared_graph)
        yield from _unknown_states(config, compared_graph)


def _unknown_batch_inputs(config: ConfigMessage, graph: ModelGraph) -> Iterator[Hit]:
    for index, batch_input in enumerate(config.message.batch_input):
        for number, name in enumerate(batch_input.target_name):
            if name and find_tensor(name, graph.inputs + graph.defaults) is None:
                yield Hit(
                    f"{graph.path.name} has no input {name} for the batch_input",
                    "export a graph with that input, or remove this batch_input",
                    config.span("batch_input", index, "target_name", number),
                )


def _unknown_states(config: ConfigMessage, graph: ModelGraph) -> Iterator[Hit]:
    for index, state in enumerate(config.message.sequence_batching.state):
        for direction, name, tensors in (
            ("input", state.input_name, graph.inputs + graph.defaults),
            ("output", state.output_name, graph.outputs),
        ):
            if name and find_tensor(name, tensors) is None:
                yield Hit(
                    f"{graph.path.name} has no {direction} {name} for the sequence's state",
                    _name_fix(name, [tensor.name for tensor in tensors]),
                    config.span("sequence_batching", "state", index, f"{direction}_name"),
                )


def _unknown_controls(config: ConfigMessage, graph: ModelGraph) -> Iterator[Hit]:
    controls = config.message.sequence_batching.control_input
    for index, control in enumerate(controls):
        if control.name and find_tensor(control.name, graph.inputs + graph.defaults) is None:
            yield Hit(
                f"{graph.path.name} has no input {control.name} for the sequence's control",
                "name the input that receives it, or remove that control",
                config.span("sequence_batching", "control_input", index, "name"),
            )


def _name_fix(name: str, names: list[str]) -> str:
    name_by_lower = {candidate.lower(): candidate for candidate in names}
    close = suggest(name.lower(), name_by_lower)
    return f"did you mean {name_by_lower[close]}?" if close else "name it as the graph does"


@error(
    "TC207 undeclared-input",
    summary="an input that the model's file needs and the configuration does not declare",
    reason="The backend says `configuration expects 1 inputs, model provides 2` and refuses the "
    "model.",
    shows="elsewhere",
)
def undeclared_input(
    config: ConfigMessage, compared_graph: ModelGraph, model: Model
) -> Iterator[Hit]:
    declared = inputs(model)
    if not has_declared(model, "input"):
        return  # the backend completes them
    if any(
        find_tensor(tensor.name, compared_graph.inputs + compared_graph.defaults) is None
        for tensor in declared
    ):
        return
    fed = filled_input_names(config, model)
    for tensor in compared_graph.inputs:
        if not fed.intersection(tensor.names):
            yield Hit(
                f"{compared_graph.path.name} needs the input {tensor.name}, which is not declared",
                f"add input [ {{ name: {_quoted(tensor.name)}{_declaration(model, tensor)} }} ], "
                f"or "
                "export the graph without it",
                config.name_span("input", 0),
            )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _declaration(model: Model, graph_tensor: GraphTensor) -> str:
    if graph_tensor.dtype is None or graph_tensor.shape is None:
        return ""
    own_shape = graph_tensor.shape[1:] if has_batch_dimension(model) else graph_tensor.shape
    return f" data_type: {graph_tensor.dtype} dims: [ {format_dims(own_shape) or 1} ]"


def format_dims(shape: Shape) -> str:
    """Return the shape in the format of dims."""
    return ", ".join(str(size) if isinstance(size, int) else "-1" for size in shape)


# Triton types without a counterpart in a backend's library.
UNSUPPORTED_TYPES = {
    "onnxruntime": {"TYPE_BF16"},
    "tensorrt": {"TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT16", "TYPE_FP64"}
    | {"TYPE_STRING"},
    "openvino": {"TYPE_FP64", "TYPE_STRING", "TYPE_BF16"},
    "pytorch": {"TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"},
}


@error(
    "TC209 type-unknown-to-backend",
    summary="a declared data type that the backend's library does not have",
    reason="The table of types in Triton's documentation has no such type for this backend, which "
    "refuses the model.",
    shows="elsewhere",
)
def type_unknown_to_backend(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    unsupported_types = UNSUPPORTED_TYPES.get(model.backend or "")
    version = model.served_version
    # The PyTorch backend also runs a model.py, which supports more types.
    if unsupported_types is None or (
        version is not None and "model.py" in model.version_files(version)
    ):
        return
    compared_graph = comparable_graph(model)
    reported = (
        {
            graph_tensor.name
            for _, graph_tensor in matching_tensors(model, compared_graph)
            if not graph_tensor.dtype
        }
        if compared_graph
        else set()
    )
    for tensor in (*inputs(model), *outputs(model)):
        if tensor.dtype in unsupported_types and (
            tensor.name not in reported or model.backend == "openvino"
        ):
            yield Hit(
                f"{tensor.name} is {tensor.dtype}, a type that the backend {model.backend} does "
                "not have",
                "declare the type that the model's file has",
                config.span(*tensor.path, "data_type"),
            )


@error(
    "TC208 other-type",
    summary="a declared data type that differs from the model's file",
    reason=f"{_INTERFACE_REASON} differences.",
    answers=("server#2644",),
    shows="elsewhere",
)
def other_type(config: ConfigMessage, compared_graph: ModelGraph, model: Model) -> Iterator[Hit]:
    unsupported_types = UNSUPPORTED_TYPES.get(model.backend or "", set()) | {"TYPE_INVALID"}
    for tensor, graph_tensor in matching_tensors(model, compared_graph):
        # The OpenVINO backend converts types, so its graphs have no dtype.
        if (
            graph_tensor.dtype
            and tensor.dtype != graph_tensor.dtype
            and tensor.dtype not in unsupported_types
        ):
            yield Hit(
                f"{tensor.name} is declared {tensor.dtype} and is {graph_tensor.dtype} in "
                f"{compared_graph.path.name}",
                f"declare it {graph_tensor.dtype}, and make sure that clients send and expect that",
                config.span(*tensor.path, "data_type"),
            )


@error(
    "TC216 optional-without-default",
    summary="an optional input without a value in the graph, or a required input with one",
    reason="The ONNX Runtime backend accepts as optional only inputs with an initializer, and only "
    "without batching. It refuses anything else.",
    shows="elsewhere",
)
def optional_input(config: ConfigMessage, onnx: ModelGraph, model: Model) -> Iterator[Hit]:
    for tensor in inputs(model):
        has_default = find_tensor(tensor.name, onnx.defaults) is not None
        is_required = find_tensor(tensor.name, onnx.inputs) is not None
        span = config.name_span(*tensor.path, "optional")
        if tensor.optional and is_required:
            yield Hit(
                f"{tensor.name} is declared optional, and {onnx.path.name} has no value for it",
                "remove `optional: true`, or export the graph with an initializer of that name",
                span,
            )
        elif tensor.optional and has_default and has_batch_dimension(model):
            yield Hit(
                f"{tensor.name} is optional, which the backend accepts only with max_batch_size: 0",
                "set max_batch_size: 0 and write the batch dimension into dims, or do not declare "
                "it",
                span,
            )
        elif has_default and not tensor.optional:
            yield Hit(
                f"{tensor.name} has a value in {onnx.path.name}, so it must be optional",
                "add `optional: true` (with max_batch_size: 0), or do not declare it",
                config.span(*tensor.path, "name"),
            )


@error(
    "TC217 ragged-needs-one-dimension",
    summary="allow_ragged_batch for an input that is not one row of elements in the graph",
    reason="Triton joins requests of different lengths into one row. An ONNX graph must accept "
    "[-1], or the backend refuses the model.",
    shows="elsewhere",
)
def ragged_input(config: ConfigMessage, compared_graph: ModelGraph, model: Model) -> Iterator[Hit]:
    if compared_graph.format != "ONNX":
        return
    for tensor, graph_tensor in matching_tensors(model, compared_graph):
        is_one_row = (
            graph_tensor.shape is not None
            and len(graph_tensor.shape) == 1
            and isinstance(graph_tensor.shape[0], str)
        )
        if tensor.ragged and not is_one_row:
            rank_text = (
                "" if graph_tensor.shape is None else f" of {len(graph_tensor.shape)} dimensions"
            )
            yield Hit(
                f"{tensor.name} is ragged: Triton joins the requests' elements into a row, which "
                f"needs an input of one varying dimension, not one{rank_text}",
                "remove allow_ragged_batch and let clients pad, or export a graph that accepts the "
                "row and, through `batch_input`, the end of each request",
                config.name_span(*tensor.path, "allow_ragged_batch"),
            )
