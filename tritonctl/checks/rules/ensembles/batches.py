# SPDX-License-Identifier: Apache-2.0
"""TC33x: how the batch changes on its way through an ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

from tritonctl.checks.analysis.declared import dims_match
from tritonctl.checks.analysis.graph import EndpointSpec, EnsembleGraph, GraphStep, Link
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import ENSEMBLE_REFUSED, error, warning

# The batch size that Triton assumes for a tensor: the request's, 1 for an added batch dimension,
# the first dimension of a tensor without a batch dimension, or none.
Batch = Literal["request", "one", "first", "none"]


class _BatchLoss(NamedTuple):
    """A place where a batch of more than one is lost."""

    link: Link | None  # None: an output of the ensemble
    tensor: str
    message: str


@error(
    "TC331 batch-too-large",
    summary="an ensemble whose max_batch_size is greater than a step's",
    answers=("server#5943",),
    reason=ENSEMBLE_REFUSED,
)
def batch_too_large(config: ConfigMessage, ensemble: EnsembleGraph, model: Model) -> Iterator[Hit]:
    for step in ensemble.steps:
        step_max_batch_size = step.interface.max_batch_size if step.interface else None
        if step_max_batch_size and step_max_batch_size < ensemble.max_batch_size:
            yield Hit(
                f"{model.name} takes batches of {ensemble.max_batch_size}, and {step.name} "
                f"only of {step_max_batch_size}",
                f"write max_batch_size: {step_max_batch_size} here, or raise it in {step.name}",
                config.span(*step.path, "model_name"),
            )


@warning(
    "TC332 batch-lost",
    summary="a batch that a step cannot accept or does not return",
    reason="Triton loads it and strips or adds a batch dimension of 1: requests with more rows "
    "fail, or their responses have one row.",
    answers=("server#1682",),
)
def batch_lost(config: ConfigMessage, ensemble: EnsembleGraph) -> Iterator[Hit]:
    for loss in _batch_losses(ensemble):
        path = loss.link.path if loss.link else (*ensemble.outputs[loss.tensor].path, "name")
        yield Hit(
            loss.message,
            "give the model a max_batch_size, write a first dimension of -1 into its dims, or set "
            "max_batch_size of the ensemble to 1",
            config.span(*path),
        )


def _batch_losses(graph: EnsembleGraph) -> Iterator[_BatchLoss]:
    request_batch: Batch = "none"
    if graph.max_batch_size > 0:
        request_batch = "request" if graph.max_batch_size > 1 else "one"
    batches: dict[str, Batch | None] = dict.fromkeys(graph.inputs, request_batch)
    sources = {
        name: spec for name in graph.inputs if (spec := graph.ensemble_spec(name)) is not None
    }
    for step in (step for layer in graph.layers for step in layer):
        state = (step, batches, sources)
        loss = next(chain(_inputs_without_batch(*state), _mixed_inputs(*state)), None)
        if loss is not None:
            yield loss
        batch = None if loss else _output_batch(step, batches, sources)
        for link in step.outputs:
            batches.setdefault(link.tensor, batch)
            if link.spec is not None:
                sources.setdefault(link.tensor, link.spec)
    if request_batch == "request":
        yield from _single_row_outputs(graph, batches, sources)


def _inputs_without_batch(
    step: GraphStep, batches: dict[str, Batch | None], sources: dict[str, EndpointSpec]
) -> Iterator[_BatchLoss]:
    """Find inputs that fail for a batch of more than one."""
    inputs = [(link, link.spec, sources.get(link.tensor)) for link in step.inputs]
    for link, spec, source in inputs:
        if spec is None or source is None or spec.is_batched is not False:
            continue
        full = source.full_dims
        fits_whole = spec.dims is None or full is None or dims_match(spec.dims, full)
        if batches.get(link.tensor) == "request" and not fits_whole:
            prefix = (
                f"{step.name} has no batch dimension, and {link.tensor}, which it reads, has one: "
            )
            yield _BatchLoss(link, link.tensor, f"{prefix}only a batch of 1 passes")


def _mixed_inputs(
    step: GraphStep, batches: dict[str, Batch | None], sources: dict[str, EndpointSpec]
) -> Iterator[_BatchLoss]:
    """Find inputs that Triton reads as a batch of 1, together with a batch of any size."""
    if not step.interface or not step.interface.max_batch_size:
        return
    batch_by_tensor = {
        link.tensor: _input_batch(link, batches.get(link.tensor), sources) for link in step.inputs
    }
    larger = [name for name, batch in batch_by_tensor.items() if batch in ("request", "first")]
    for link in step.inputs:
        if larger and batches.get(link.tensor) == "none" and batch_by_tensor[link.tensor] == "one":
            prefix = (
                f"{step.name} reads {link.tensor}, which has no batch dimension, as a batch of 1 "
            )
            yield _BatchLoss(link, link.tensor, f"{prefix}together with all rows of {larger[0]}")


def _output_batch(
    step: GraphStep, batches: dict[str, Batch | None], sources: dict[str, EndpointSpec]
) -> Batch | None:
    """Return the batch size of a step's outputs; None if unknown."""
    interface = step.interface
    if interface is None or interface.max_batch_size is None:
        return None
    if interface.max_batch_size == 0:
        return "none"
    input_batches = {_input_batch(link, batches.get(link.tensor), sources) for link in step.inputs}
    return input_batches.pop() if len(input_batches) == 1 else None


def _input_batch(link: Link, batch: Batch | None, sources: dict[str, EndpointSpec]) -> Batch | None:
    """Return the batch size as a batching step reads a tensor; a fitting one without batch is 1."""
    source = sources.get(link.tensor)
    if batch != "none" or source is None or link.spec is None:
        return batch if batch != "none" else None
    if source.dims is None or link.spec.dims is None:
        return None
    return "one" if dims_match(source.dims, link.spec.dims) else "first"


def _single_row_outputs(
    graph: EnsembleGraph, batches: dict[str, Batch | None], sources: dict[str, EndpointSpec]
) -> Iterator[_BatchLoss]:
    """Find outputs of the ensemble with one row, independent of the request."""
    for name, tensor in graph.outputs.items():
        source, batch = sources.get(name), batches.get(name)
        if source is None or source.dims is None or tensor.dims is None:
            continue
        dims = tensor.dims if tensor.reshape is None else tensor.reshape
        if batch == "one" or (batch == "none" and dims_match(source.dims, dims)):
            message = (
                f"{name} comes from {source.model} with one row, however many rows the request has"
            )
            yield _BatchLoss(None, name, message)
