# SPDX-License-Identifier: Apache-2.0
"""TC16x: inputs and outputs that Triton refuses as they are declared.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ragged_batching.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tritonctl.checks.analysis.declared import Tensor, inputs, outputs
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning

_IMAGE_DIMS = 3


def tensors(model: Model) -> tuple[Tensor, ...]:
    """Inputs, then outputs."""
    return inputs(model) + outputs(model)


def called(tensor: Tensor) -> str:
    """What messages call it."""
    direction, index = tensor.path
    return f"{direction} {tensor.name}" if tensor.name else f"{direction} number {int(index) + 1}"


def complete(model: Model, repository: Repository) -> bool:
    """Whether what the configuration leaves out stays out: nothing adds it when the model loads."""
    if model.backend in ("ensemble", "pytorch") or not repository.target.completes:
        return True
    if model.backend == "onnxruntime":  # it fills in all or nothing
        return bool(inputs(model) and outputs(model))
    code = model.code
    made = code.model_class if code else None
    if code is None or made is None or made.bases:
        return False
    return code.method("auto_complete_config") is None


@error(
    "TC160 tensor-without-name",
    summary="an input or output without a name",
    why="Triton refuses the model: must specify 'name'.",
)
def without_name(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for tensor in tensors(model):
        if not tensor.name:
            yield Hit(
                f"{called(tensor)} has no name",
                'give it the name that requests use: name: "INPUT"',
                config.span(*tensor.path),
            )


@error(
    "TC161 tensor-without-type",
    summary="an input or output without a data type",
    why="Triton refuses the model: must specify 'data_type'. Only some backends, and a "
    "model.py with auto_complete_config, fill it in.",
)
def without_type(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for tensor in tensors(model) if complete(model, repository) else ():
        if tensor.dtype == "TYPE_INVALID":
            yield Hit(
                f"{called(tensor)} has no data_type",
                "name one: data_type: TYPE_FP32",
                config.span(*tensor.path, "data_type"),
            )


@error(
    "TC162 tensor-without-dims",
    summary="an input or output without a shape",
    why="Triton refuses the model: must specify 'dims'. A scalar has dims: [ 1 ].",
)
def without_dims(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for tensor in tensors(model) if complete(model, repository) else ():
        if tensor.dims is None:
            yield Hit(
                f"{called(tensor)} has no dims",
                "write its shape without the batch dimension, -1 where it varies: dims: [ -1 ]",
                config.span(*tensor.path, "dims"),
            )


@error(
    "TC163 impossible-dimension",
    summary="a dimension that is neither a size nor -1",
    why="Triton refuses the model: a dimension is 1 or more, or -1 where it varies.",
)
def impossible_dimension(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for tensor in tensors(model):
        for field, dims in (("dims",), tensor.dims), (("reshape", "shape"), tensor.reshape):
            for index, size in enumerate(dims or ()):
                if not _possible(size):
                    yield Hit(
                        f"{called(tensor)} has {size} in {'.'.join(field)}",
                        "write 1 or more, or -1 for a dimension that varies",
                        config.span(*tensor.path, *field, index),
                    )


@error(
    "TC164 other-reshape",
    summary="a reshape to another number of elements",
    why="Triton refuses the model: a reshape neither adds elements nor drops them.",
    answers=("server#1682",),
)
def other_reshape(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for tensor in tensors(model):
        dims, shape = tensor.dims, tensor.reshape
        if dims is None or shape is None:
            continue
        if all(map(_possible, (*dims, *shape))) and pieces(dims) != pieces(shape):
            yield Hit(
                f"{called(tensor)} has dims {list(dims)} and reshape {list(shape)}, which hold "
                "different numbers of elements",
                "give both as many elements, before, between and after each -1",
                config.span(*tensor.path, "reshape"),
            )


@error(
    "TC165 empty-reshape",
    summary="a reshape to a scalar in a model without batches",
    why="Triton refuses the model: tensors without any dimension are not supported.",
)
def empty_reshape(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if config.message.max_batch_size or not complete(model, repository):
        return
    for tensor in tensors(model):
        if tensor.reshape == ():
            yield Hit(
                f"{called(tensor)} is reshaped to no dimension at all, and max_batch_size is 0",
                "remove the reshape, or let the model have a batch: max_batch_size: 1",
                config.span(*tensor.path, "reshape"),
            )


@error(
    "TC166 image-format",
    summary="an image format on an input without 3 dims",
    why="Triton refuses the model: NHWC and NCHW name the 3 dims after the batch.",
)
def image_format(config: ConfigMessage) -> Iterator[Hit]:
    for index, one in enumerate(config.message.input):
        if one.format in (one.FORMAT_NHWC, one.FORMAT_NCHW):
            count = len(one.dims)
            if count != _IMAGE_DIMS:
                format_ = type(one).Format.Name(one.format)
                yield Hit(
                    f"input {one.name} is {format_}, which has 3 dims, and has {count}",
                    "write 3 dims (without the batch dimension), or leave `format` out",
                    config.span("input", index, "format"),
                )


@error(
    "TC167 only-tensorrt",
    summary="a tensor field that only TensorRT has, on another backend",
    why="Triton refuses the model: shape tensors and non-linear formats are TensorRT's.",
)
def only_tensorrt(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if model.backend in (None, "tensorrt"):
        return
    for direction in ("input", "output"):
        for index, one in enumerate(getattr(config.message, direction)):
            for field in ("is_shape_tensor", "is_non_linear_format_io"):
                if getattr(one, field):
                    yield Hit(
                        f"{direction} {one.name} has {field}, which only the backend tensorrt "
                        f"knows, and the model is served by {model.backend}",
                        "remove it",
                        config.name_span(direction, index, field),
                    )


@error(
    "TC168 input-again",
    summary="two inputs of one name",
    why="Triton loads the model, keeps the first and counts both: no request ever has enough "
    "inputs.",
    shows="traffic",
)
def input_again(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    yield from _again(config, inputs(model))


@warning(
    "TC169 output-again",
    summary="two outputs of one name",
    why="Triton silently keeps the first and ignores the second.",
)
def output_again(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    yield from _again(config, outputs(model))


def _again(config: ConfigMessage, tensors: Sequence[Tensor]) -> Iterator[Hit]:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            yield Hit(
                f"{called(tensor)} is declared twice",
                "remove one, or give it its own name",
                config.span(*tensor.path, "name"),
            )
        seen |= {tensor.name} - {""}


def _possible(size: int) -> bool:
    return size >= 1 or size == -1


def pieces(dims: Sequence[int]) -> list[int]:
    """How many elements there are before, between and after the dimensions that vary."""
    counts = [1]
    for size in dims:
        if size < 0:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts
