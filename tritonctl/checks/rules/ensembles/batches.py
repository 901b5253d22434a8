# SPDX-License-Identifier: Apache-2.0
"""TC33x: what becomes of the batch on its way through an ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

from tritonctl.checks.analysis.declared import dims_match
from tritonctl.checks.analysis.graph import Graph, Link, Side, Step
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning

# What Triton takes for the batch size of a tensor on its way: that of the request, one that it
# made up for a tensor without, the first dimension of a tensor without, or none.
Batch = Literal["request", "one", "first", "none"]


class _Lost(NamedTuple):
    """Where a batch of more than one cannot go on."""

    link: Link | None
    tensor: str
    why: str


@error(
    "TC331 batch-too-large",
    summary="an ensemble whose max_batch_size is greater than that of a step",
    answers=("server#5943",),
)
def batch_too_large(config: ConfigMessage, ensemble: Graph, model: Model) -> Iterator[Hit]:
    for step in ensemble.steps:
        most = step.interface.max_batch_size if step.interface else None
        if most and most < ensemble.max_batch_size:
            yield Hit(
                f"{model.name} takes batches of {ensemble.max_batch_size}, and {step.name} "
                f"only of {most}",
                f"write max_batch_size: {most} here, or raise that of {step.name}",
                config.span(*step.path, "model_name"),
            )


@warning(
    "TC332 batch-lost",
    summary="a batch that a step cannot take or does not give back",
    why="Triton loads it and strips or adds a batch dimension of 1: requests with more rows "
    "fail, or their answers have one row.",
    answers=("server#1682",),
)
def batch_lost(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    for lost in _losses(ensemble):
        path = lost.link.path if lost.link else (*ensemble.outputs[lost.tensor].path, "name")
        yield Hit(
            lost.why,
            "give the model a max_batch_size, write a first dimension of -1 into its dims, or set "
            "max_batch_size of the ensemble to 1",
            config.span(*path),
        )


def _losses(graph: Graph) -> Iterator[_Lost]:
    first: Batch = "none"
    if graph.max_batch_size > 0:
        first = "request" if graph.max_batch_size > 1 else "one"
    batches: dict[str, Batch | None] = dict.fromkeys(graph.inputs, first)
    sources = {name: side for name in graph.inputs if (side := graph.given(name)) is not None}
    for step in (step for layer in graph.layers for step in layer):
        state = (step, batches, sources)
        lost = next(chain(_refused(*state), _mixed(*state)), None)
        if lost is not None:
            yield lost
        batch = None if lost else _batch_of(step, batches, sources)
        for link in step.outputs:
            batches.setdefault(link.tensor, batch)
            if link.side is not None:
                sources.setdefault(link.tensor, link.side)
    if first == "request":
        yield from _shrunk(graph, batches, sources)


def _refused(
    step: Step, batches: dict[str, Batch | None], sources: dict[str, Side]
) -> Iterator[_Lost]:
    """The inputs that fail when the batch is not of one."""
    known = [(link, link.side, sources.get(link.tensor)) for link in step.inputs]
    for link, side, source in known:
        if side is None or source is None or side.batches is not False:
            continue
        full = source.full_dims
        fits_whole = side.dims is None or full is None or dims_match(side.dims, full)
        if batches.get(link.tensor) == "request" and not fits_whole:
            why = f"{step.name} has no batch dimension and reads {link.tensor}, which has: only a "
            yield _Lost(link, link.tensor, f"{why}batch of 1 gets through")


def _mixed(
    step: Step, batches: dict[str, Batch | None], sources: dict[str, Side]
) -> Iterator[_Lost]:
    """Inputs that Triton reads as a batch of 1, next to a batch of any size."""
    if not step.interface or not step.interface.max_batch_size:
        return
    read = {link.tensor: _as_read(link, batches.get(link.tensor), sources) for link in step.inputs}
    larger = [name for name, batch in read.items() if batch in ("request", "first")]
    for link in step.inputs:
        if larger and batches.get(link.tensor) == "none" and read[link.tensor] == "one":
            why = f"{step.name} reads {link.tensor}, which has no batch dimension, as a batch of 1 "
            yield _Lost(link, link.tensor, f"{why}together with all rows of {larger[0]}")


def _batch_of(
    step: Step, batches: dict[str, Batch | None], sources: dict[str, Side]
) -> Batch | None:
    """The batch size of a step's answers."""
    interface = step.interface
    if interface is None or interface.max_batch_size is None:
        return None
    if interface.max_batch_size == 0:
        return "none"
    seen = {_as_read(link, batches.get(link.tensor), sources) for link in step.inputs}
    return seen.pop() if len(seen) == 1 else None


def _as_read(link: Link, batch: Batch | None, sources: dict[str, Side]) -> Batch | None:
    """As a step with batching reads it: a tensor without a batch that fits becomes one of 1."""
    source = sources.get(link.tensor)
    if batch != "none" or source is None or link.side is None:
        return batch if batch != "none" else None
    if source.dims is None or link.side.dims is None:
        return None
    return "one" if dims_match(source.dims, link.side.dims) else "first"


def _shrunk(
    graph: Graph, batches: dict[str, Batch | None], sources: dict[str, Side]
) -> Iterator[_Lost]:
    """Outputs of the ensemble that have one row, whatever the request has."""
    for name, tensor in graph.outputs.items():
        source, batch = sources.get(name), batches.get(name)
        if source is None or source.dims is None or tensor.dims is None:
            continue
        dims = tensor.dims if tensor.reshape is None else tensor.reshape
        if batch == "one" or (batch == "none" and dims_match(source.dims, dims)):
            why = (
                f"{name} comes from {source.model} with one row, however many rows the request has"
            )
            yield _Lost(None, name, why)
