# SPDX-License-Identifier: Apache-2.0
"""Find faults in the wiring of an ensemble graph, from any source.

The rules TC31x and TC32x report them for a config.pbtxt, `render` for ensembles/<task>.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from tritonctl.checks.analysis.declared import DeclaredTensor, dims_match
from tritonctl.checks.analysis.graph import EndpointSpec, EnsembleGraph, GraphStep, Link, Path
from tritonctl.errors import suggest


class WiringFault(NamedTuple):
    """A fault at a path of the configuration."""

    message: str
    fix: str
    path: Path
    marks_name: bool = False  # the fault is at the field's name, not at its value


def unfinished_steps(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find steps without a model, an input or an output."""
    for step in graph.steps:
        parts = {"model_name": step.name, "input_map": step.inputs, "output_map": step.outputs}
        missing = [name for name, value in parts.items() if not value]
        if missing:
            yield WiringFault(
                f"step {step.index + 1} has no {' and no '.join(missing)}",
                "every step names its model, at least one input and one output",
                step.path,
                marks_name=True,
            )


def unwritten_tensors(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find tensors that a step reads and nothing writes."""
    for name in _reported_unwritten(graph):
        if name not in graph.outputs:
            links = graph.readers[name]
            steps = " and ".join(map(str, sorted({link.step + 1 for link in links})))
            yield WiringFault(
                f"nothing writes {name}, which step {steps} reads",
                _suggested_fix(name, (*graph.inputs, *graph.writers)),
                links[0].path,
            )


def unwritten_outputs(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find outputs of the ensemble that no step writes."""
    for name in _reported_unwritten(graph):
        if name in graph.outputs:
            unread = [tensor for tensor in graph.writers if tensor not in graph.readers]
            path = (*graph.outputs[name].path, "name")
            yield WiringFault(
                f"no step writes the output {name}", _suggested_fix(name, unread), path
            )


def unwritten_names(graph: EnsembleGraph) -> Iterator[str]:
    """Yield the names of the tensors that nothing writes."""
    for name in graph.tensors:
        if name not in graph.inputs and name not in graph.writers:
            yield name


def _reported_unwritten(graph: EnsembleGraph) -> Iterator[str]:
    """Yield the same names, unless a step has no output: it most likely writes them.

    TC304 reports such a step.
    """
    return unwritten_names(graph) if all(step.outputs for step in graph.steps) else iter(())


def _suggested_fix(name: str, names: Iterable[str]) -> str:
    close_match = suggest(name, names)
    if close_match:
        return f"did you mean {close_match}?"
    return "map a step's output to it, or declare it as an input of the ensemble"


def written_twice(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find tensors that two outputs are mapped to."""
    for name, links in graph.writers.items():
        for link in links[1:]:
            yield WiringFault(
                f"step {links[0].step + 1} already writes {name}",
                "give each output its own tensor",
                link.path,
            )


def overwritten_inputs(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find inputs of the ensemble that a step writes; TC314 reports those that nothing reads."""
    for name, links in graph.writers.items():
        if name in graph.inputs and (name in graph.readers or name in graph.outputs):
            yield WiringFault(
                f"{name} is an input of {graph.name}, and step {links[0].step + 1} overwrites it",
                "give the step's output its own tensor",
                links[0].path,
            )


def outputs_read_by_steps(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find outputs of the ensemble that a step reads, too: a request for one output fails."""
    for name, tensor in graph.outputs.items():
        if name in graph.writers and (readers := graph.readers.get(name)):
            step = graph.steps[readers[0].step]
            yield WiringFault(
                f"the output {name} is also an input of step {step.index + 1}, {step.name}: a "
                "request for one output alone fails",
                f"let the model of {name} write it twice, once for the step under a name that is "
                "no output of the ensemble",
                (*tensor.path, "name"),
            )


def unknown_inputs(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find keys of an input_map that are not inputs of the step's model."""
    return (fault for step in graph.steps for fault in _unknown_inputs(step))


def _unknown_inputs(step: GraphStep) -> Iterator[WiringFault]:
    if step.interface and step.interface.inputs_are_complete:
        yield from _unknown_names(step, "input", step.inputs, step.interface.inputs)


def unknown_outputs(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find keys of an output_map that are not outputs of the step's model."""
    for step in graph.steps:
        if step.interface and step.interface.outputs_are_complete:
            yield from _unknown_names(step, "output", step.outputs, step.interface.outputs)


def _unknown_names(
    step: GraphStep, direction: str, links: Iterable[Link], tensors: Mapping[str, DeclaredTensor]
) -> Iterator[WiringFault]:
    for link in links:
        if link.spec is None:
            close_match = suggest(link.name, tensors)
            fix = (
                f"did you mean {close_match}?"
                if close_match
                else f"it has {', '.join(tensors) or 'none'}"
            )
            yield WiringFault(
                f"{step.name} has no {direction} {link.name}", fix, link.path, marks_name=True
            )


def unfed_inputs(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find required inputs of a step's model that the step does not map."""
    for step in graph.steps:
        # An unknown key is most likely this input, misspelt.
        if not step.inputs or any(_unknown_inputs(step)):
            continue
        for name in step.unmapped_inputs:
            yield WiringFault(
                f"{step.name} needs the input {name}, which step {step.index + 1} does not map",
                f"map a tensor to its input {name}",
                (*step.path, "model_name"),
            )


def types_differ(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find tensors that two models declare with different data types."""
    for name, specs in graph.specs.items():
        typed_specs = [(link, spec) for link, spec in specs if spec.dtype is not None]
        for link, spec in typed_specs[1:]:
            first = typed_specs[0][1]
            if spec.dtype != first.dtype and link is not None:
                yield WiringFault(
                    f"{name} is {first.dtype} in {first.model} and {spec.dtype} in {spec.model}",
                    "add a step that converts the tensor, or correct the wrong declaration",
                    link.path,
                )
                break


def shapes_differ(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find tensors whose shapes in two models can never match."""
    for name, specs in graph.specs.items():
        for link, spec in specs[1:]:
            if link is not None and not _may_match(specs[0][1], spec):
                yield WiringFault(
                    f"{name} is {specs[0][1].shape} in {specs[0][1].model} and {spec.shape} in "
                    f"{spec.model}",
                    "make the dims equal; -1 matches any size, and dims omit the batch dimension",
                    link.path,
                )
                break


def shapes_differ_later(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find tensors whose shapes match a variable declaration but not each other."""
    for name, specs in graph.specs.items():
        first = specs[0][1]
        if not all(_may_match(first, spec) for _, spec in specs):
            continue
        if pair := _incompatible_pair(specs):
            earlier, (link, later) = pair
            yield WiringFault(
                f"{name} is {earlier.shape} in {earlier.model} and {later.shape} in {later.model}; "
                f"{first.shape} in {first.model} hides it from Triton",
                "make the dims equal",
                link.path,
            )


def _incompatible_pair(
    sides: Sequence[tuple[Link | None, EndpointSpec]],
) -> tuple[EndpointSpec, tuple[Link, EndpointSpec]] | None:
    """Return the first two declarations that certainly differ.

    Each fixed size is compared with its first occurrence. If one of two models has no batch
    dimension, Triton may add or strip one.
    """
    sizes: dict[tuple[bool, int, int], tuple[int, EndpointSpec]] = {}
    for link, spec in sides:
        if spec.dims is None or spec.is_batched is None:
            continue
        # With a batch dimension on both sides, the rank must match; otherwise Triton may adapt it.
        rank = len(spec.dims)
        fixed_sizes = [((True, 0, 0), rank)] if spec.is_batched else []
        fixed_sizes += [
            ((spec.is_batched, rank, axis), n) for axis, n in enumerate(spec.dims) if n != -1
        ]
        for key, size in fixed_sizes:
            first_size, first_spec = sizes.setdefault(key, (size, spec))
            if first_size != size and link is not None:
                return first_spec, (link, spec)
    return None


def _may_match(first: EndpointSpec, second: EndpointSpec) -> bool:
    """Whether two declarations may match; True if too little is known."""
    if first.dims is None or second.dims is None:
        return True
    return dims_match(first.dims, second.dims) or any(
        dims_match(a, b) for a, b in product(_possible_dims(first), _possible_dims(second))
    )


def _possible_dims(side: EndpointSpec) -> list[tuple[int, ...]]:
    dims = side.dims or ()
    return {True: [(-1, *dims)], False: [dims], None: [dims, (-1, *dims)]}[side.is_batched]


def optional_required(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Find optional inputs of the ensemble that a step requires."""
    for name, tensor in graph.inputs.items():
        specs = (link.spec for link in graph.readers.get(name, ()) if tensor.optional)
        requiring_model = next((spec.model for spec in specs if spec and not spec.optional), None)
        if requiring_model is not None:
            yield WiringFault(
                f"{graph.name} declares {name} optional, and {requiring_model} requires it",
                f"also make the input of {requiring_model} optional, or remove `optional` here",
                (*tensor.path, "optional"),
            )
