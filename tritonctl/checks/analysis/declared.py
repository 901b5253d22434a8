# SPDX-License-Identifier: Apache-2.0
"""The tensors that a configuration declares, as clients and other models see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model
from tritonctl.formats.graph_file import ModelGraph

_MAX_ELEMENTS = 1 << 63
Direction = Literal["input", "output"]


class DeclaredTensor(NamedTuple):
    """An entry of `input` or `output` in the configuration."""

    name: str
    dtype: str  # as written: "TYPE_FP32"; "TYPE_INVALID" if missing
    # As written: without the batch dimension, -1 for a variable one; None if missing.
    dims: tuple[int, ...] | None
    path: tuple[str | int, ...]  # in the configuration: ("input", 0)
    optional: bool = False
    ragged: bool = False
    reshape: tuple[int, ...] | None = None


def inputs(model: Model) -> tuple[DeclaredTensor, ...]:
    """Return the declared inputs in the order of the configuration."""
    return _tensors(model, "input")


def outputs(model: Model) -> tuple[DeclaredTensor, ...]:
    """Return the declared outputs in the order of the configuration."""
    return _tensors(model, "output")


def has_batch_dimension(model: Model) -> bool:
    """Whether max_batch_size is over 0: requests then have a batch dimension not in `dims`."""
    return bool(model.config.message.max_batch_size > 0)


def _tensors(model: Model, direction: Direction) -> tuple[DeclaredTensor, ...]:
    config = model.config
    return memoized(model, direction, lambda: tuple(_read_tensors(config, direction)))


def _read_tensors(config: ConfigMessage, direction: Direction) -> Iterator[DeclaredTensor]:
    for index, tensor in enumerate(getattr(config.message, direction)):
        yield DeclaredTensor(
            name=tensor.name,
            dtype=type_name(tensor.data_type),
            dims=tuple(tensor.dims) or None,
            path=(direction, index),
            optional=direction == "input" and tensor.optional,
            ragged=direction == "input" and tensor.allow_ragged_batch,
            reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        )


def type_name(number: int) -> str:
    """Return the name of a DataType, or the number itself as text if it has no name."""
    types = model_config_schema().DataType
    return str(types.Name(number)) if number in types.values() else str(number)


def element_count(dims: Iterable[int]) -> int:
    """Return the number of elements of a tensor, capped at 2^63 as in Triton."""
    count = 1
    for size in dims:
        count = min(count * size, _MAX_ELEMENTS)
    return count


def size_fits(size: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether `size` is a concrete size (no -1) that matches `dims`."""
    return -1 not in size and dims_match(tuple(size), tuple(dims))


def dims_match(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether two dims match; -1 matches any size."""
    return len(first) == len(second) and all(
        a == b or -1 in (a, b) for a, b in zip(first, second, strict=True)
    )


def comparable_graph(model: Model, only_format: str | None = None) -> ModelGraph | None:
    """Return the graph of the model's file if the backend compares the configuration with it.

    The backend completes a missing tensor list from the graph and compares an existing one. With
    `only_format`, graphs of other formats give None.
    """
    graph = model.graph
    if graph is None or graph.read_error or only_format not in (None, graph.format):
        return None
    return graph if has_declared(model, "input") or has_declared(model, "output") else None


def has_declared(model: Model, direction: Direction) -> bool:
    """Whether the configuration lists tensors of that direction; such a list is not completed."""
    message = model.config.message
    lists = (message.input, message.batch_input) if direction == "input" else (message.output,)
    return any(map(len, lists))


def is_completed_from_file(model: Model) -> bool:
    """Whether a backend that can read its model's file completes the configuration from it."""
    return not (has_declared(model, "input") and has_declared(model, "output"))
