# SPDX-License-Identifier: Apache-2.0
"""TC204 to TC209, TC215 to TC217: names and types declared, against the model's own file.

Sources: https://github.com/triton-inference-server/onnxruntime_backend (what it checks when it
loads a model; its README on optional inputs), https://github.com/triton-inference-server/
openvino_backend, and the table of types in https://github.com/triton-inference-server/server/
blob/main/docs/user_guide/model_configuration.md#datatypes
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.declared import (
    Tensor,
    batches,
    declares,
    inputs,
    judged_graph,
    outputs,
)
from tritonctl.checks.analysis.placement import some
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Edit, Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.errors import suggest
from tritonctl.formats.graph_file import Graph, GraphTensor, Shape

_WHY_INTERFACE = "The backend compares names, types and shapes when it loads the model, and refuses"


def tensor_named(name: str, tensors: tuple[GraphTensor, ...]) -> GraphTensor | None:
    """The tensor of that name."""
    return next((tensor for tensor in tensors if name in tensor.names), None)


def pairs(model: Model, graph: Graph) -> Iterator[tuple[Tensor, GraphTensor]]:
    """Declared tensors, each with the one of the graph that has its name."""
    for tensor in inputs(model):
        if one := tensor_named(tensor.name, graph.inputs + graph.defaults):
            yield tensor, one
    for tensor in outputs(model):
        if one := tensor_named(tensor.name, graph.outputs):
            yield tensor, one


def fed_names(config: ConfigMessage, model: Model) -> set[str]:
    """Every input of the model that Triton fills: of requests, sequences and batches."""
    message = config.message
    names = {tensor.name for tensor in inputs(model)}
    names.update(name for one in message.batch_input for name in one.target_name)
    names.update(control.name for control in message.sequence_batching.control_input)
    names.update(state.input_name for state in message.sequence_batching.state)
    return names


@error(
    "TC204 not-a-tensor",
    summary="an ONNX graph with an input or output that is a sequence or a map",
    why="The backend says `Unsupported ONNX Type` and refuses the model, declared or not.",
    answers=("server#3798", "onnxruntime_backend#94"),
)
def not_a_tensor(graph: Graph, model: Model) -> Iterator[Hit]:
    for tensor in (*graph.inputs, *graph.defaults, *graph.outputs):
        if not tensor.is_tensor:
            yield Hit(
                f"{tensor.name} of {graph.path.name} is a {tensor.kind}, not a tensor",
                "export the graph with tensors only; for scikit-learn's classifiers, convert with "
                "the option zipmap=False",
                place=graph.path.relative_to(model.path).as_posix(),
            )


@error(
    "TC205 type-unknown-to-triton",
    summary="a tensor of the graph whose type Triton does not support",
    why="No data_type of the configuration corresponds to it: the model is refused.",
)
def type_unknown_to_triton(config: ConfigMessage, onnx: Graph, model: Model) -> Iterator[Hit]:
    declared = {tensor.name: tensor for tensor in (*inputs(model), *outputs(model))}
    for one in (*onnx.inputs, *onnx.outputs):
        needed = one in onnx.inputs or one.name in declared
        if one.is_tensor and one.dtype is None and needed:
            tensor = declared.get(one.name)
            path = tensor.path if tensor else ("input", 0)
            yield Hit(
                f"{one.name} is of type {one.kind}, which the backend does not support",
                "put a Cast to float or another type in front of it when exporting",
                config.span(*path, "data_type") if tensor else config.name_span(*path),
            )


@error(
    "TC206 unknown-tensor",
    summary="a declared input or output that the model's file does not have",
    why=f"{_WHY_INTERFACE} it: unexpected inference input or output.",
)
def unknown_tensor(config: ConfigMessage, judged: Graph, model: Model) -> Iterator[Hit]:
    for tensors, there in (
        (inputs(model), judged.inputs + judged.defaults),
        (outputs(model), judged.outputs),
    ):
        names = [one.name for one in there]
        for tensor in tensors:
            if tensor.name and tensor_named(tensor.name, there) is None:
                yield Hit(
                    f"{judged.path.name} has no {tensor.path[0]} {tensor.name}; it has "
                    f"{some(names, 8) or 'none'}",
                    _nearest(tensor.name, names),
                    config.span(*tensor.path, "name"),
                )
    yield from _unknown_controls(config, judged)


def _unknown_controls(config: ConfigMessage, graph: Graph) -> Iterator[Hit]:
    controls = config.message.sequence_batching.control_input
    for index, control in enumerate(controls):
        if control.name and tensor_named(control.name, graph.inputs + graph.defaults) is None:
            yield Hit(
                f"{graph.path.name} has no input {control.name} for the sequence's control",
                "name the input that takes it, or leave that control out",
                config.span("sequence_batching", "control_input", index, "name"),
            )


def _nearest(name: str, names: list[str]) -> str:
    lower = {one.lower(): one for one in names}
    close = suggest(name.lower(), lower)
    return f"did you mean {lower[close]}?" if close else "name it as the graph does"


@error(
    "TC207 undeclared-input",
    summary="an input that the model's file needs and the configuration does not declare",
    why="The backend says `configuration expects 1 inputs, model provides 2` and refuses the "
    "model.",
)
def undeclared_input(config: ConfigMessage, judged: Graph, model: Model) -> Iterator[Hit]:
    declared = inputs(model)
    if not declares(model, "input"):
        return  # the backend adds them
    if any(tensor_named(one.name, judged.inputs + judged.defaults) is None for one in declared):
        return
    fed = fed_names(config, model)
    for one in judged.inputs:
        if not fed.intersection(one.names):
            yield Hit(
                f"{judged.path.name} needs the input {one.name}, which is not declared",
                f"add input [ {{ name: {_quoted(one.name)}{_declaration(model, one)} }} ], or "
                "export the graph without it",
                config.name_span("input", 0),
            )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _declaration(model: Model, one: GraphTensor) -> str:
    if one.dtype is None or one.shape is None:
        return ""
    own = one.shape[1:] if batches(model) else one.shape
    return f" data_type: {one.dtype} dims: [ {as_dims(own) or 1} ]"


def as_dims(shape: Shape) -> str:
    """The shape as a configuration lists it."""
    return ", ".join(str(size) if isinstance(size, int) else "-1" for size in shape)


# Types that have no counterpart in a backend's library.
UNKNOWN_TYPES = {
    "onnxruntime": {"TYPE_BF16"},
    "tensorrt": {"TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT16", "TYPE_FP64"}
    | {"TYPE_STRING"},
    "openvino": {"TYPE_FP64", "TYPE_STRING", "TYPE_BF16"},
    "pytorch": {"TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"},
}


@error(
    "TC209 type-unknown-to-backend",
    summary="a declared data type that the backend's library does not have",
    why="The table of types in Triton's documentation has no such type for this backend: the "
    "model is refused.",
)
def type_unknown_to_backend(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    unknown = UNKNOWN_TYPES.get(model.backend or "")
    version = model.served_version
    # The PyTorch backend has a way for a model.py as well, which takes more.
    if unknown is None or (version is not None and "model.py" in model.files_of(version)):
        return
    judged = judged_graph(model)
    reported = {one.name for _, one in pairs(model, judged) if not one.dtype} if judged else set()
    for tensor in (*inputs(model), *outputs(model)):
        if tensor.dtype in unknown and (tensor.name not in reported or model.backend == "openvino"):
            yield Hit(
                f"{tensor.name} is {tensor.dtype}, a type that the backend {model.backend} does "
                "not have",
                "declare the type that the model's file has",
                config.span(*tensor.path, "data_type"),
            )


@error(
    "TC208 other-type",
    summary="a declared data type that is not the one in the model's file",
    why=f"{_WHY_INTERFACE} what differs.",
    answers=("server#2644",),
)
def other_type(config: ConfigMessage, judged: Graph, model: Model) -> Iterator[Hit]:
    unknown = UNKNOWN_TYPES.get(model.backend or "", set()) | {"TYPE_INVALID"}
    for tensor, one in pairs(model, judged):
        # The OpenVINO backend converts types, so its graphs have none.
        if one.dtype and tensor.dtype != one.dtype and tensor.dtype not in unknown:
            span = config.span(*tensor.path, "data_type")
            yield Hit(
                f"{tensor.name} is declared {tensor.dtype} and is {one.dtype} in "
                f"{judged.path.name}",
                f"declare it {one.dtype}, and make sure that clients send and expect that",
                span,
                edits=(Edit(span, one.dtype),),
            )


@error(
    "TC216 optional-without-default",
    summary="an input that is optional and has no value in the graph, or the other way round",
    why="The ONNX Runtime backend takes as optional just the inputs that have an initializer, "
    "and those only without batching; anything else it refuses.",
)
def optional_input(config: ConfigMessage, onnx: Graph, model: Model) -> Iterator[Hit]:
    for tensor in inputs(model):
        has_default = tensor_named(tensor.name, onnx.defaults) is not None
        needed = tensor_named(tensor.name, onnx.inputs) is not None
        span = config.name_span(*tensor.path, "optional")
        if tensor.optional and needed:
            yield Hit(
                f"{tensor.name} is declared optional, and {onnx.path.name} has no value for it",
                "remove `optional: true`, or export the graph with an initializer of that name",
                span,
            )
        elif tensor.optional and has_default and batches(model):
            yield Hit(
                f"{tensor.name} is optional, which the backend takes only with max_batch_size: 0",
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
    why="Requests of different lengths become one row: an ONNX graph must take [-1], or the "
    "model is refused.",
)
def ragged_input(config: ConfigMessage, judged: Graph, model: Model) -> Iterator[Hit]:
    if judged.format != "ONNX":
        return
    for tensor, one in pairs(model, judged):
        flat = one.shape is not None and len(one.shape) == 1 and isinstance(one.shape[0], str)
        if tensor.ragged and not flat:
            written = "" if one.shape is None else f" of {len(one.shape)} dimensions"
            yield Hit(
                f"{tensor.name} is ragged: Triton joins the requests' elements in a row, which "
                f"needs an input of one varying dimension, not one{written}",
                "remove allow_ragged_batch and let clients pad, or export a graph that takes the "
                "row and, by `batch_input`, where each request ends",
                config.name_span(*tensor.path, "allow_ragged_batch"),
            )
