# SPDX-License-Identifier: Apache-2.0
"""TC210 to TC215: shapes declared, against the model's own file; above all, the batch dimension.

`max_batch_size` over 0 puts a batch dimension in front of every `dims`; 0 does not. Sources:
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
#maximum-batch-size and https://github.com/triton-inference-server/onnxruntime_backend, what it
checks when it loads a model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.declared import Tensor, batches, completed
from tritonctl.checks.analysis.placement import some
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Edit, Hit
from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.graph import as_dims, pairs
from tritonctl.formats.graph_file import Graph, GraphTensor, Shape, shown

Dims = tuple[int, ...]


@error(
    "TC210 no-batch-dimension",
    summary="max_batch_size over 0 with a graph whose first dimension is fixed",
    why="Triton would put several requests into one batch, for which the graph has no room: "
    "the ONNX Runtime backend says `the first dimension must be -1` and refuses the model.",
    answers=("server#7462", "server#4159", "server#2387", "onnxruntime_backend#220"),
)
def no_batch_dimension(config: ConfigMessage, graph: Graph, model: Model) -> Iterator[Hit]:
    if graph.format != "ONNX" or not batches(model):
        return
    if not completed(model):
        fixed = [one for _, one, _ in _shapes(config, model, graph) if _is_fixed(one.shape or ())]
    else:  # completed from the graph, of which every tensor must then have a batch
        tensors = (*graph.inputs, *graph.outputs)
        fixed = [one for one in tensors if one.shape == () or _is_fixed(one.shape or ())]
    if not fixed:
        return
    size = config.message.max_batch_size
    first = fixed[0]
    yield Hit(
        f"max_batch_size: {size} asks for a batch dimension in front, and "
        f"{some((one.name for one in fixed), 4)} {'have' if len(fixed) > 1 else 'has'} none in "
        f"{graph.path.name}: {first.name} is {shown(first.shape or ())}"
        f"{', its first dimension fixed' if first.shape else ''}",
        "export the graph with its first dimension dynamic; or set max_batch_size: 0 and write "
        f"whole shapes into dims, {shown(first.shape or ())} for {first.name}",
        config.span("max_batch_size"),
    )


@error(
    "TC211 batch-dimension-in-dims",
    summary="dims that repeat the batch dimension",
    why="With max_batch_size over 0, dims are the shape of one request's share; the whole "
    "shape has one dimension more than the graph, and the model is refused.",
    answers=("server#1338",),
)
def batch_in_dims(config: ConfigMessage, judged: Graph, model: Model) -> Iterator[Hit]:
    for tensor, one, dims in _shapes(config, model, judged) if batches(model) else ():
        if _repeats(judged, dims, one.shape or ()):
            whole = (-1, *dims)
            yield Hit(
                f"dims of {tensor.name} repeat the batch dimension: max_batch_size already puts "
                f"one in front, which makes {shown(whole)}, and {one.name} is "
                f"{shown(one.shape or ())} in the graph",
                f"leave the first one out: dims: [ {', '.join(map(str, dims[1:]))} ]"
                if dims[1:]
                else "write dims: [ 1 ] reshape: { shape: [ ] }",
                _place(config, tensor),
                edits=_without_first(model, tensor),
            )


@error(
    "TC212 batch-dimension-left-out",
    summary="dims without the batch dimension although max_batch_size is 0",
    why="With max_batch_size 0 or absent, dims are the whole shape; a dimension less than the "
    "graph has, and the model is refused.",
    answers=("server#924",),
)
def batch_not_in_dims(config: ConfigMessage, judged: Graph, model: Model) -> Iterator[Hit]:
    if batches(model):
        return
    short = [
        (tensor, one, dims)
        for tensor, one, dims in _shapes(config, model, judged)
        if _leaves_out(dims, one.shape or ())
    ]
    if not short:
        return
    tensor, one, _dims = short[0]
    yield Hit(
        "without max_batch_size, dims are whole shapes: "
        f"{some((one.name for _, one, _ in short), 4)} {'leave' if len(short) > 1 else 'leaves'} "
        f"out the first dimension, the batch; {one.name} is {shown(one.shape or ())} in the graph",
        f"set max_batch_size, e.g. 8, or write dims: [ {as_dims(one.shape or ())} ]",
        _place(config, tensor),
    )


@error(
    "TC213 other-shape",
    summary="dims that are not those of the model's file",
    why="The backend compares the shapes when it loads the model, and refuses what differs; a "
    "reshape counts instead of dims.",
    answers=("server#4065",),
)
def other_shape(config: ConfigMessage, judged: Graph, model: Model) -> Iterator[Hit]:
    batched = batches(model)
    for tensor, one, dims in _shapes(config, model, judged):
        shape = one.shape or ()
        if batched and (
            _repeats(judged, dims, shape) or (judged.format == "ONNX" and _is_fixed(shape))
        ):
            continue
        if not batched and _leaves_out(dims, shape):
            continue
        own = shape[1:] if batched else shape
        if _may_change(judged, tensor, batched) and len(own) == len(dims):
            continue  # the sizes of its outputs follow from those of its inputs
        if not _fits(dims, own, open_too=batched and judged.format != "ONNX"):
            field = "dims" if tensor.reshape is None else "reshape: { shape"
            yield Hit(
                f"{tensor.name} is {shown((-1, *dims) if batched else dims)}"
                f"{', the batch in front,' if batched else ''} by the configuration and "
                f"{shown(shape)} in {judged.path.name}",
                f"write {field}: [ {as_dims(own)} ]"
                if own
                else "write dims: [ 1 ] reshape: { shape: [ ] }",
                _place(config, tensor, _differing(dims, own)),
            )


@error(
    "TC214 scalar-with-dims",
    summary="dims of more than 1 for a tensor that is a scalar in the graph",
    why="A scalar has one element: the backend takes only dims of 1 for it.",
)
def scalar(config: ConfigMessage, onnx: Graph, model: Model) -> Iterator[Hit]:
    for tensor, one in pairs(model, onnx):
        dims = _declared_shape(tensor)
        if one.shape == () and dims is not None and any(size != 1 for size in dims):
            yield Hit(
                f"{tensor.name} is a scalar in {onnx.path.name} and {shown(dims)} here",
                "write dims: [ 1 ]",
                _place(config, tensor),
            )


@warning(
    "TC215 narrower-output",
    summary="dims of an output that fix a size which the graph leaves open",
    why="The ONNX Runtime backend wants dims of outputs to be exactly the graph's: the model "
    "is refused, unless ONNX Runtime works out that size when it loads the graph.",
)
def narrower_output(config: ConfigMessage, onnx: Graph, model: Model) -> Iterator[Hit]:
    batched = batches(model)
    for tensor, one, dims in _shapes(config, model, onnx):
        own = (one.shape or ())[1:] if batched else one.shape or ()
        if tensor.path[0] != "output" or not _fits(dims, own):
            continue
        for index, size in enumerate(own):
            if isinstance(size, str) and dims[index] != -1:
                yield Hit(
                    f"dims of {tensor.name} fix a size, {dims[index]}, that {onnx.path.name} "
                    f"leaves open: {shown(one.shape or ())}",
                    f"write -1, or export the graph with {dims[index]} there",
                    _place(config, tensor, index),
                )
                break


def _shapes(
    config: ConfigMessage, model: Model, graph: Graph
) -> Iterator[tuple[Tensor, GraphTensor, Dims]]:
    """What can be compared by shape: no scalars, nothing ragged, no outputs cut up by batches."""
    if not batches(model) and _may_batch(model, graph):
        return  # the backend may put a batch dimension in front of them all
    reshaped = config.message.parameters.get("RESHAPE_IO_LAYERS")
    if graph.format != "ONNX" and reshaped is not None:
        return
    cut = {name for one in config.message.batch_output for name in one.target_name}
    for tensor, one in pairs(model, graph):
        dims = _declared_shape(tensor)
        if dims is not None and one.shape and not tensor.ragged and tensor.name not in cut:
            yield tensor, one, dims


def _declared_shape(tensor: Tensor) -> Dims | None:
    """The shape that the backend sees."""
    return tensor.dims if tensor.reshape is None else tensor.reshape


def _may_batch(model: Model, graph: Graph) -> bool:
    """Whether the backend may complete max_batch_size, which changes what dims mean."""
    if graph.format != "ONNX" and graph.batched is not None:
        return graph.batched  # which is all that the OpenVINO backend goes by
    tensors = (*graph.inputs, *graph.outputs)
    fixed = any(one.shape == () or _is_fixed(one.shape or ()) for one in tensors)
    return completed(model) and (graph.format != "ONNX" or not fixed)


def _may_change(graph: Graph, tensor: Tensor, batched: bool) -> bool:
    """Whether an output gets other sizes, as OpenVINO gives it once a batch is set."""
    sets_batch = graph.format != "ONNX" and (batched or graph.batched is not False)
    return sets_batch and tensor.path[0] == "output"


def _is_fixed(shape: Shape) -> bool:
    return bool(shape) and isinstance(shape[0], int)


def _repeats(graph: Graph | None, dims: Dims, shape: Shape) -> bool:
    fixed = graph is not None and graph.format == "ONNX" and _is_fixed(shape)
    if fixed or len(dims) != len(shape) or not _fits(dims[1:], shape[1:]):
        return False
    return len(dims) > 1 or dims == (-1,)


def _leaves_out(dims: Dims, shape: Shape) -> bool:
    return len(dims) == len(shape) - 1 and _fits(dims, shape[1:])


def _fits(dims: Dims, shape: Shape, *, open_too: bool = False) -> bool:
    """Whether every size that the graph fixes is the one declared; open_too: or none is."""
    return len(dims) == len(shape) and all(
        isinstance(size, str) or own == size or (open_too and own == -1)
        for own, size in zip(dims, shape, strict=True)
    )


def _differing(dims: Dims, shape: Shape) -> int:
    if len(dims) != len(shape):
        return 0
    return next(i for i, size in enumerate(shape) if isinstance(size, int) and dims[i] != size)


def _dims_path(tensor: Tensor) -> tuple[str | int, ...]:
    return (*tensor.path, "dims") if tensor.reshape is None else (*tensor.path, "reshape", "shape")


def _place(config: ConfigMessage, tensor: Tensor, index: int = 0) -> Span:
    return config.span(*_dims_path(tensor), index)


def _without_first(model: Model, tensor: Tensor) -> tuple[Edit, ...]:
    """Where dims are one list of several sizes, its first one can be struck out."""
    config, path = model.config, _dims_path(tensor)
    if model.file is None or (*path, 1) not in config.values:
        return ()
    first, second = config.values[(*path, 0)], config.values[(*path, 1)]
    between = model.file.source.text[first.end : second.start]
    if between.strip() != ",":
        return ()
    return (Edit(Span(first.start, second.start), ""),)
