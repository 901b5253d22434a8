# SPDX-License-Identifier: Apache-2.0
"""TC210 to TC215: declared shapes that differ from the model's file, mostly in the batch dimension.

A `max_batch_size` over 0 adds a batch dimension in front of every `dims`; 0 does not. Sources:
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
#maximum-batch-size and https://github.com/triton-inference-server/onnxruntime_backend, what it
checks when it loads a model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.declared import (
    DeclaredTensor,
    has_batch_dimension,
    is_completed_from_file,
)
from tritonctl.checks.analysis.placement import join_some
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.graph import format_dims, matching_tensors
from tritonctl.checks.source_span import Span
from tritonctl.formats.graph_file import GraphTensor, ModelGraph, Shape, format_shape

Dims = tuple[int, ...]


@error(
    "TC210 no-batch-dimension",
    summary="max_batch_size over 0 with a graph whose first dimension is fixed",
    reason="Triton would batch several requests, which the graph cannot accept: the ONNX Runtime "
    "backend says `the first dimension must be -1` and refuses the model.",
    answers=("server#7462", "server#4159", "server#2387", "onnxruntime_backend#220"),
    shows="elsewhere",
)
def no_batch_dimension(config: ConfigMessage, graph: ModelGraph, model: Model) -> Iterator[Hit]:
    if graph.format != "ONNX" or not has_batch_dimension(model):
        return
    if not is_completed_from_file(model):
        fixed = [
            graph_tensor
            for _, graph_tensor, _ in _comparable_shapes(config, model, graph)
            if _has_fixed_first(graph_tensor.shape or ())
        ]
    else:  # completed from the graph, where every tensor must have a batch dimension
        tensors = (*graph.inputs, *graph.outputs)
        fixed = [
            graph_tensor
            for graph_tensor in tensors
            if graph_tensor.shape == () or _has_fixed_first(graph_tensor.shape or ())
        ]
    if not fixed:
        return
    size = config.message.max_batch_size
    first = fixed[0]
    yield Hit(
        f"max_batch_size: {size} requires a batch dimension in front, and "
        f"{join_some((graph_tensor.name for graph_tensor in fixed), 4)} "
        f"{'have' if len(fixed) > 1 else 'has'} none in "
        f"{graph.path.name}: {first.name} is {format_shape(first.shape or ())}"
        f"{', its first dimension fixed' if first.shape else ''}",
        "export the graph with its first dimension dynamic; or set max_batch_size: 0 and write "
        f"whole shapes into dims, {format_shape(first.shape or ())} for {first.name}",
        config.span("max_batch_size"),
    )


@error(
    "TC211 batch-dimension-in-dims",
    summary="dims that repeat the batch dimension",
    reason="With max_batch_size over 0, dims omit the batch dimension. The full shape has one "
    "dimension more than the graph, and the backend refuses the model.",
    answers=("server#1338",),
    shows="elsewhere",
)
def batch_in_dims(config: ConfigMessage, compared_graph: ModelGraph, model: Model) -> Iterator[Hit]:
    for tensor, graph_tensor, dims in (
        _comparable_shapes(config, model, compared_graph) if has_batch_dimension(model) else ()
    ):
        if _repeats_batch(compared_graph, dims, graph_tensor.shape or ()):
            full_shape = (-1, *dims)
            yield Hit(
                f"dims of {tensor.name} repeat the batch dimension: max_batch_size already puts "
                f"one in front, which makes {format_shape(full_shape)}, and {graph_tensor.name} is "
                f"{format_shape(graph_tensor.shape or ())} in the graph",
                f"remove the first one: dims: [ {', '.join(map(str, dims[1:]))} ]"
                if dims[1:]
                else "write dims: [ 1 ] reshape: { shape: [ ] }",
                _dims_span(config, tensor),
            )


@error(
    "TC212 batch-dimension-left-out",
    summary="dims without the batch dimension although max_batch_size is 0",
    reason="Without max_batch_size, dims are the full shape. They have one dimension less than the "
    "graph, and the backend refuses the model.",
    answers=("server#924",),
    shows="elsewhere",
)
def batch_not_in_dims(
    config: ConfigMessage, compared_graph: ModelGraph, model: Model
) -> Iterator[Hit]:
    if has_batch_dimension(model):
        return
    short = [
        (tensor, graph_tensor, dims)
        for tensor, graph_tensor, dims in _comparable_shapes(config, model, compared_graph)
        if _omits_batch(dims, graph_tensor.shape or ())
    ]
    if not short:
        return
    tensor, graph_tensor, _dims = short[0]
    yield Hit(
        "without max_batch_size, dims are full shapes: "
        f"{join_some((graph_tensor.name for _, graph_tensor, _ in short), 4)} "
        f"{'omit' if len(short) > 1 else 'omits'} "
        f"the first dimension, the batch; {graph_tensor.name} is "
        f"{format_shape(graph_tensor.shape or ())} in the graph",
        f"set max_batch_size, e.g. 8, or write dims: [ {format_dims(graph_tensor.shape or ())} ]",
        _dims_span(config, tensor),
    )


@error(
    "TC213 other-shape",
    summary="dims that differ from the model's file",
    reason="The backend compares the shapes when it loads the model, and refuses differences. A "
    "reshape counts instead of dims.",
    answers=("server#4065",),
    shows="elsewhere",
)
def other_shape(config: ConfigMessage, compared_graph: ModelGraph, model: Model) -> Iterator[Hit]:
    batched = has_batch_dimension(model)
    for tensor, graph_tensor, dims in _comparable_shapes(config, model, compared_graph):
        shape = graph_tensor.shape or ()
        if batched and (
            _repeats_batch(compared_graph, dims, shape)
            or (compared_graph.format == "ONNX" and _has_fixed_first(shape))
        ):
            continue
        if not batched and _omits_batch(dims, shape):
            continue
        own_shape = shape[1:] if batched else shape
        if _may_change(compared_graph, tensor, batched) and len(own_shape) == len(dims):
            continue  # the output sizes follow from the input sizes
        if not _fits(dims, own_shape, allow_open=batched and compared_graph.format != "ONNX"):
            field = "dims" if tensor.reshape is None else "reshape: { shape"
            yield Hit(
                f"{tensor.name} is {format_shape((-1, *dims) if batched else dims)}"
                f"{', the batch in front,' if batched else ''} by the configuration and "
                f"{format_shape(shape)} in {compared_graph.path.name}",
                f"write {field}: [ {format_dims(own_shape)} ]"
                if own_shape
                else "write dims: [ 1 ] reshape: { shape: [ ] }",
                _dims_span(config, tensor, _first_difference(dims, own_shape)),
            )


@error(
    "TC214 scalar-with-dims",
    summary="dims of more than 1 for a tensor that is a scalar in the graph",
    reason="A scalar has one element: the backend accepts only dims of 1.",
    shows="elsewhere",
)
def scalar_with_dims(config: ConfigMessage, onnx: ModelGraph, model: Model) -> Iterator[Hit]:
    for tensor, graph_tensor in matching_tensors(model, onnx):
        dims = _declared_shape(tensor)
        if graph_tensor.shape == () and dims is not None and any(size != 1 for size in dims):
            yield Hit(
                f"{tensor.name} is a scalar in {onnx.path.name} and {format_shape(dims)} here",
                "write dims: [ 1 ]",
                _dims_span(config, tensor),
            )


@warning(
    "TC215 narrower-output",
    summary="dims of an output that fix a size which the graph leaves open",
    reason="The ONNX Runtime backend requires exactly the graph's dims for outputs. It refuses the "
    "model, unless ONNX Runtime infers that size when it loads the graph.",
    shows="elsewhere",
)
def narrower_output(config: ConfigMessage, onnx: ModelGraph, model: Model) -> Iterator[Hit]:
    batched = has_batch_dimension(model)
    for tensor, graph_tensor, dims in _comparable_shapes(config, model, onnx):
        own_shape = (graph_tensor.shape or ())[1:] if batched else graph_tensor.shape or ()
        if tensor.path[0] != "output" or not _fits(dims, own_shape):
            continue
        for index, size in enumerate(own_shape):
            if isinstance(size, str) and dims[index] != -1:
                yield Hit(
                    f"dims of {tensor.name} fix a size, {dims[index]}, that {onnx.path.name} "
                    f"leaves open: {format_shape(graph_tensor.shape or ())}",
                    f"write -1, or export the graph with {dims[index]} there",
                    _dims_span(config, tensor, index),
                )
                break


def _comparable_shapes(
    config: ConfigMessage, model: Model, graph: ModelGraph
) -> Iterator[tuple[DeclaredTensor, GraphTensor, Dims]]:
    """Yield the tensors with comparable shapes: no scalars, ragged inputs or split outputs."""
    if not has_batch_dimension(model) and _may_batch(model, graph):
        return  # the backend may add a batch dimension to all of them
    reshaped = config.message.parameters.get("RESHAPE_IO_LAYERS")
    if graph.format != "ONNX" and reshaped is not None:
        return
    cut_names = {
        name for graph_tensor in config.message.batch_output for name in graph_tensor.target_name
    }
    for tensor, graph_tensor in matching_tensors(model, graph):
        dims = _declared_shape(tensor)
        if (
            dims is not None
            and graph_tensor.shape
            and not tensor.ragged
            and tensor.name not in cut_names
        ):
            yield tensor, graph_tensor, dims


def _declared_shape(tensor: DeclaredTensor) -> Dims | None:
    """Return the shape that the backend gets."""
    return tensor.dims if tensor.reshape is None else tensor.reshape


def _may_batch(model: Model, graph: ModelGraph) -> bool:
    """Whether the backend may complete max_batch_size, which changes what dims mean."""
    if graph.format != "ONNX" and graph.batched is not None:
        return graph.batched  # the only criterion of the OpenVINO backend
    tensors = (*graph.inputs, *graph.outputs)
    fixed = any(
        graph_tensor.shape == () or _has_fixed_first(graph_tensor.shape or ())
        for graph_tensor in tensors
    )
    return is_completed_from_file(model) and (graph.format != "ONNX" or not fixed)


def _may_change(graph: ModelGraph, tensor: DeclaredTensor, batched: bool) -> bool:
    """Whether OpenVINO may change the sizes of an output when a batch is set."""
    sets_batch = graph.format != "ONNX" and (batched or graph.batched is not False)
    return sets_batch and tensor.path[0] == "output"


def _has_fixed_first(shape: Shape) -> bool:
    return bool(shape) and isinstance(shape[0], int)


def _repeats_batch(graph: ModelGraph | None, dims: Dims, shape: Shape) -> bool:
    fixed = graph is not None and graph.format == "ONNX" and _has_fixed_first(shape)
    if fixed or len(dims) != len(shape) or not _fits(dims[1:], shape[1:]):
        return False
    return len(dims) > 1 or dims == (-1,)


def _omits_batch(dims: Dims, shape: Shape) -> bool:
    return len(dims) == len(shape) - 1 and _fits(dims, shape[1:])


def _fits(dims: Dims, shape: Shape, *, allow_open: bool = False) -> bool:
    """Whether every fixed size of the graph is declared, or optionally declared as -1."""
    return len(dims) == len(shape) and all(
        isinstance(size, str) or declared == size or (allow_open and declared == -1)
        for declared, size in zip(dims, shape, strict=True)
    )


def _first_difference(dims: Dims, shape: Shape) -> int:
    if len(dims) != len(shape):
        return 0
    return next(i for i, size in enumerate(shape) if isinstance(size, int) and dims[i] != size)


def _dims_path(tensor: DeclaredTensor) -> tuple[str | int, ...]:
    return (*tensor.path, "dims") if tensor.reshape is None else (*tensor.path, "reshape", "shape")


def _dims_span(config: ConfigMessage, tensor: DeclaredTensor, index: int = 0) -> Span:
    return config.span(*_dims_path(tensor), index)
