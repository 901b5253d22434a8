# SPDX-License-Identifier: Apache-2.0
"""The tensors that a configuration declares, as clients and other models see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model
from tritonctl.formats.graph_file import Graph

_MOST_ELEMENTS = 1 << 63
Direction = Literal["input", "output"]


class Tensor(NamedTuple):
    """One of `input` or `output`. `path` leads to it in the configuration: ("input", 0).

    dims: as written, without the batch dimension, -1 where it varies; None where absent.
    dtype: as written, "TYPE_FP32"; "TYPE_INVALID" where absent.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] | None
    path: tuple[str | int, ...]
    optional: bool = False
    ragged: bool = False
    reshape: tuple[int, ...] | None = None


def inputs(model: Model) -> tuple[Tensor, ...]:
    """The inputs that the configuration declares, in its order."""
    return _tensors(model, "input")


def outputs(model: Model) -> tuple[Tensor, ...]:
    """The outputs that the configuration declares, in its order."""
    return _tensors(model, "output")


def batches(model: Model) -> bool:
    """Whether requests have a batch dimension, which `dims` leaves out: max_batch_size over 0."""
    return bool(model.config.message.max_batch_size > 0)


def _tensors(model: Model, direction: Direction) -> tuple[Tensor, ...]:
    config = model.config
    return memoized(model, direction, lambda: tuple(_declared(config, direction)))


def _declared(config: ConfigMessage, direction: Direction) -> Iterator[Tensor]:
    for index, one in enumerate(getattr(config.message, direction)):
        yield Tensor(
            name=one.name,
            dtype=type_name(one.data_type),
            dims=tuple(one.dims) or None,
            path=(direction, index),
            optional=direction == "input" and one.optional,
            ragged=direction == "input" and one.allow_ragged_batch,
            reshape=tuple(one.reshape.shape) if one.HasField("reshape") else None,
        )


def type_name(number: int) -> str:
    """The name of a DataType; unknown numbers stay numbers, as a config.pbtxt may hold any."""
    types = model_config_schema().DataType
    return str(types.Name(number)) if number in types.values() else str(number)


def element_count(dims: Iterable[int]) -> int:
    """How many elements a tensor has, at most 2^63: Triton counts no further, nor does memory."""
    count = 1
    for size in dims:
        count = min(count * size, _MOST_ELEMENTS)
    return count


def size_fits(size: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether a tensor of that size, with no -1, has these dims."""
    return -1 not in size and dims_match(tuple(size), tuple(dims))


def dims_match(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether dims are the same, -1 being any."""
    return len(one) == len(other) and all(
        a == b or -1 in (a, b) for a, b in zip(one, other, strict=True)
    )


def judged_graph(model: Model, only: str | None = None) -> Graph | None:
    """The graph in the model's file, where the backend holds the configuration against it.

    only: of this format.

    A list that the configuration lacks is completed from it; one that is there is compared.
    """
    graph = model.graph
    if graph is None or graph.broken or only not in (None, graph.format):
        return None
    return graph if declares(model, "input") or declares(model, "output") else None


def declares(model: Model, direction: Direction) -> bool:
    """Whether the configuration has tensors of that direction, which are then not completed."""
    message = model.config.message
    lists = (message.input, message.batch_input) if direction == "input" else (message.output,)
    return any(map(len, lists))


def completed(model: Model) -> bool:
    """Whether a backend that knows its model's file completes the configuration from it."""
    return not (declares(model, "input") and declares(model, "output"))
