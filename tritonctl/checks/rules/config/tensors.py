# SPDX-License-Identifier: Apache-2.0
"""TC16x: inputs and outputs that Triton refuses as they are declared.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ragged_batching.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tritonctl.checks.analysis.declared import DeclaredTensor, inputs, outputs
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning

_IMAGE_DIMS = 3


def all_tensors(model: Model) -> tuple[DeclaredTensor, ...]:
    """Return the declared inputs, then the outputs."""
    return inputs(model) + outputs(model)


def tensor_label(tensor: DeclaredTensor) -> str:
    """Return the tensor's name for messages."""
    direction, index = tensor.path
    return f"{direction} {tensor.name}" if tensor.name else f"{direction} number {int(index) + 1}"


def stays_incomplete(model: Model, repository: Repository) -> bool:
    """Whether nothing completes missing fields when the model loads."""
    if model.backend in ("ensemble", "pytorch") or not repository.target.completes:
        return True
    if model.backend == "onnxruntime":  # it completes all or nothing
        return bool(inputs(model) and outputs(model))
    code = model.code
    model_class = code.model_class if code else None
    if code is None or model_class is None or model_class.bases:
        return False
    return code.method("auto_complete_config") is None


@error(
    "TC160 tensor-without-name",
    summary="an input or output without a name",
    reason="Triton refuses the model: must specify 'name'.",
    needs_valid_config=True,
)
def without_name(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for tensor in all_tensors(model):
        if not tensor.name:
            yield Hit(
                f"{tensor_label(tensor)} has no name",
                'give it the name that requests use: name: "INPUT"',
                config.span(*tensor.path),
            )


@error(
    "TC161 tensor-without-type",
    summary="an input or output without a data type",
    reason="Triton refuses the model: must specify 'data_type'. Only some backends, and a "
    "model.py with auto_complete_config, fill it in.",
    needs_valid_config=True,
)
def without_type(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for tensor in all_tensors(model) if stays_incomplete(model, repository) else ():
        if tensor.dtype == "TYPE_INVALID":
            yield Hit(
                f"{tensor_label(tensor)} has no data_type",
                "name one: data_type: TYPE_FP32",
                config.span(*tensor.path, "data_type"),
            )


@error(
    "TC162 tensor-without-dims",
    summary="an input or output without a shape",
    reason="Triton refuses the model: must specify 'dims'. A scalar has dims: [ 1 ].",
    needs_valid_config=True,
)
def without_dims(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for tensor in all_tensors(model) if stays_incomplete(model, repository) else ():
        if tensor.dims is None:
            yield Hit(
                f"{tensor_label(tensor)} has no dims",
                "write its shape without the batch dimension, -1 where it varies: dims: [ -1 ]",
                config.span(*tensor.path, "dims"),
            )


@error(
    "TC163 impossible-dimension",
    summary="a dimension that is neither a size nor -1",
    reason="Triton refuses the model: a dimension is 1 or more, or -1 where it varies.",
    needs_valid_config=True,
)
def impossible_dimension(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for tensor in all_tensors(model):
        for field, dims in (("dims",), tensor.dims), (("reshape", "shape"), tensor.reshape):
            for index, size in enumerate(dims or ()):
                if not _is_valid_dimension(size):
                    yield Hit(
                        f"{tensor_label(tensor)} has {size} in {'.'.join(field)}",
                        "write 1 or more, or -1 for a dimension that varies",
                        config.span(*tensor.path, *field, index),
                    )


@error(
    "TC164 other-reshape",
    summary="a reshape to another number of elements",
    reason="Triton refuses the model: a reshape neither adds elements nor drops them.",
    answers=("server#1682",),
    needs_valid_config=True,
)
def mismatched_reshape(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for tensor in all_tensors(model):
        dims, shape = tensor.dims, tensor.reshape
        if dims is None or shape is None:
            continue
        if all(map(_is_valid_dimension, (*dims, *shape))) and element_counts(
            dims
        ) != element_counts(shape):
            yield Hit(
                f"{tensor_label(tensor)} has dims {list(dims)} and reshape {list(shape)}, which "
                "hold "
                "different numbers of elements",
                "give both as many elements, before, between and after each -1",
                config.span(*tensor.path, "reshape"),
            )


@error(
    "TC165 empty-reshape",
    summary="a reshape to a scalar in a model without batches",
    reason="Triton refuses the model: tensors without any dimension are not supported.",
    needs_valid_config=True,
)
def empty_reshape(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if config.message.max_batch_size or not stays_incomplete(model, repository):
        return
    for tensor in all_tensors(model):
        if tensor.reshape == ():
            yield Hit(
                f"{tensor_label(tensor)} is reshaped to no dimension at all, and max_batch_size is "
                "0",
                "remove the reshape, or let the model have a batch: max_batch_size: 1",
                config.span(*tensor.path, "reshape"),
            )


@error(
    "TC166 image-format",
    summary="an image format, or TensorRT's non-linear format, on a tensor without 3 dims",
    reason="Triton refuses the model: such formats are about the 3 dims after the batch.",
    needs_valid_config=True,
)
def image_format(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, tensor in enumerate(config.message.input):
        if tensor.format in (tensor.FORMAT_NHWC, tensor.FORMAT_NCHW):
            count = len(tensor.dims)
            if count != _IMAGE_DIMS:
                format_ = type(tensor).Format.Name(tensor.format)
                yield Hit(
                    f"input {tensor.name} is {format_}, which has 3 dims, and has {count}",
                    "write 3 dims (without the batch dimension), or leave `format` out",
                    config.span("input", index, "format"),
                )
    for direction in ("input", "output") if model.backend == "tensorrt" else ():
        for index, tensor in enumerate(getattr(config.message, direction)):
            if tensor.is_non_linear_format_io and len(tensor.dims) != _IMAGE_DIMS:
                yield Hit(
                    f"{direction} {tensor.name} has a non-linear format and {len(tensor.dims)} "
                    "dims",
                    "write 3 dims (without the batch dimension), or remove is_non_linear_format_io",
                    config.name_span(direction, index, "is_non_linear_format_io"),
                )


@error(
    "TC167 only-tensorrt",
    summary="a tensor field that only TensorRT has, on another backend",
    reason="Triton refuses the model: shape tensors and non-linear formats are TensorRT's.",
    needs_valid_config=True,
)
def only_tensorrt(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if model.backend in (None, "tensorrt"):
        return
    for direction in ("input", "output"):
        for index, tensor in enumerate(getattr(config.message, direction)):
            for field in ("is_shape_tensor", "is_non_linear_format_io"):
                if getattr(tensor, field):
                    yield Hit(
                        f"{direction} {tensor.name} has {field}, which only the backend tensorrt "
                        f"knows, and the backend is {model.backend}",
                        "remove it",
                        config.name_span(direction, index, field),
                    )


@error(
    "TC168 input-again",
    summary="two inputs of one name",
    reason="Triton loads the model, keeps the first and counts both: every request has too few "
    "inputs.",
    shows="traffic",
    needs_valid_config=True,
)
def repeated_input(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    yield from _repeated_names(config, inputs(model))


@warning(
    "TC169 output-again",
    summary="two outputs of one name",
    reason="Triton silently keeps the first and ignores the second.",
    needs_valid_config=True,
)
def repeated_output(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    yield from _repeated_names(config, outputs(model))


def _repeated_names(config: ConfigMessage, tensors: Sequence[DeclaredTensor]) -> Iterator[Hit]:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            yield Hit(
                f"{tensor_label(tensor)} is declared twice",
                "remove one, or give it its own name",
                config.span(*tensor.path, "name"),
            )
        seen |= {tensor.name} - {""}


def _is_valid_dimension(size: int) -> bool:
    return size >= 1 or size == -1


def element_counts(dims: Sequence[int]) -> list[int]:
    """Return the element counts before, between and after the variable dimensions."""
    counts = [1]
    for size in dims:
        if size < 0:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts
