# SPDX-License-Identifier: Apache-2.0
"""Parse tensors of a command line, `NAME=VALUE` or `NAME=@FILE`, for a model's inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonctl.errors import UsageError
from tritonctl.protocol.datatypes import NUMPY_OF
from tritonctl.protocol.server_description import TensorMetadata

Array = NDArray[Any]

_BYTES = "BYTES"


def parse_tensors(declared: Sequence[TensorMetadata], options: Sequence[str]) -> dict[str, Array]:
    """Parse `--input` options to arrays. Raises UsageError for values that the model refuses."""
    tensors = {tensor.name: tensor for tensor in declared}
    if not options:
        raise UsageError(
            "no --input is given",
            remedy=f"give each as --input NAME=VALUE; the model's inputs: {_listing(tensors)}",
        )
    arrays: dict[str, Array] = {}
    for text in options:
        name, separator, value = text.partition("=")
        if not separator or name not in tensors or name in arrays:
            raise UsageError(
                f"--input {text}: {_rejection_reason(name, separator, arrays)}",
                remedy=f"write NAME=VALUE or NAME=@FILE; the model's inputs: {_listing(tensors)}",
            )
        arrays[name] = _check_shape(tensors[name], _value(tensors[name], value))
    return arrays


def _rejection_reason(name: str, separator: str, arrays: Mapping[str, Array]) -> str:
    if not separator:
        return "it has no `=`"
    return f"{name} is given twice" if name in arrays else f"the model has no input `{name}`"


def _listing(tensors: Mapping[str, TensorMetadata]) -> str:
    return ", ".join(f"{t.name} ({t.datatype}, {list(t.shape)})" for t in tensors.values())


def _value(tensor: TensorMetadata, value: str) -> Array:
    """Parse a value from the command line or a file, in its natural type."""
    if value.startswith("@"):
        return _from_file(tensor, Path(value[1:]))
    try:
        return _from_json(tensor, json.loads(value))
    except (ValueError, RecursionError) as error:  # not JSON: a text needs no quotes
        if tensor.datatype != _BYTES:
            raise UsageError(
                f"--input {tensor.name}: {value:.100} is not JSON: {error}",
                remedy=f"write numbers, such as [[1, 2]], for {_listing({'': tensor})}",
            ) from error
        return _from_json(tensor, value)


def _from_file(tensor: TensorMetadata, file: Path) -> Array:
    try:
        if file.suffix == ".npy":
            array: Array = np.load(file, allow_pickle=False)
            return array
        return _from_json(tensor, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"--input {tensor.name}: {file} cannot be read: {error}",
            remedy="give a file of numpy.save() (.npy), or one with JSON",
        ) from error


def _from_json(tensor: TensorMetadata, value: Any) -> Array:
    """Convert a JSON value to an array; a single value becomes one element."""
    try:
        array: Array = np.array(value, dtype=object if tensor.datatype == _BYTES else None)
    except ValueError as error:  # rows of unequal length
        raise UsageError(
            f"--input {tensor.name}: {error}", remedy="give rows of equal length"
        ) from error
    return array if isinstance(value, list) else array.reshape([1] * len(tensor.shape))


def _check_shape(tensor: TensorMetadata, array: Array) -> Array:
    """Convert to the tensor's type. Raises UsageError for another shape or type."""
    shape = list(tensor.shape)
    agree = len(shape) == array.ndim and all(
        want in (-1, size) for want, size in zip(shape, array.shape, strict=True)
    )
    if not agree:
        raise UsageError(
            f"--input {tensor.name} has the shape {list(array.shape)}, the model takes {shape}",
            remedy="-1 is any size; the first dimension of a model that batches is the batch",
        )
    return _convert(tensor, array)


def _convert(tensor: TensorMetadata, array: Array) -> Array:
    if tensor.datatype == _BYTES:
        if all(isinstance(item, str | bytes) for item in array.reshape(-1)):
            return array
        raise UsageError(
            f"--input {tensor.name} contains values that are not texts",
            remedy='write them in quotes: "7"',
        )
    kind = NUMPY_OF.get(tensor.datatype)
    converted = None
    if kind is not None and array.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            converted = array.astype(kind)
        # A fraction may be rounded to the tensor's precision; anything else is a mistake.
        exact = np.dtype(kind).kind == "f" or bool(np.array_equal(converted, array))
        overflown = np.isfinite(array).all() and not np.isfinite(converted).all()
        converted = converted if exact and not overflown else None
    if converted is None:
        raise UsageError(
            f"--input {tensor.name}: {array.dtype} does not fit into {tensor.datatype}",
            remedy=f"give values of the type {tensor.datatype}",
        )
    return converted
