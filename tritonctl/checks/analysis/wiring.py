# SPDX-License-Identifier: Apache-2.0
"""Whether an ensemble's steps fit together, wherever its graph was read.

The rules TC31x and TC32x report it of a config.pbtxt, `render` of ensembles/<task>.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from tritonctl.checks.analysis.declared import Tensor, dims_match
from tritonctl.checks.analysis.graph import Graph, Link, Path, Side, Step
from tritonctl.errors import suggest


class Fault(NamedTuple):
    """Something wrong at a path of the configuration. of_name: at the field's name there."""

    message: str
    fix: str
    path: Path
    of_name: bool = False


def unfinished_steps(graph: Graph) -> Iterator[Fault]:
    """Steps without a model, an input or an output."""
    for step in graph.steps:
        parts = {"model_name": step.name, "input_map": step.inputs, "output_map": step.outputs}
        lacking = [name for name, given in parts.items() if not given]
        if lacking:
            yield Fault(
                f"step {step.index + 1} has no {' and no '.join(lacking)}",
                "every step names its model, at least one input and one output",
                step.path,
                of_name=True,
            )


def unwritten_tensors(graph: Graph) -> Iterator[Fault]:
    """Tensors that a step reads and nothing writes."""
    for name in _reported(graph):
        if name not in graph.outputs:
            links = graph.readers[name]
            steps = " and ".join(map(str, sorted({link.step + 1 for link in links})))
            yield Fault(
                f"nothing writes {name}, which step {steps} reads",
                _instead(name, (*graph.inputs, *graph.writers)),
                links[0].path,
            )


def unwritten_outputs(graph: Graph) -> Iterator[Fault]:
    """Outputs of the ensemble that no step writes."""
    for name in _reported(graph):
        if name in graph.outputs:
            unread = [tensor for tensor in graph.writers if tensor not in graph.readers]
            path = (*graph.outputs[name].path, "name")
            yield Fault(f"no step writes the output {name}", _instead(name, unread), path)


def unwritten(graph: Graph) -> Iterator[str]:
    """The tensors that nothing writes."""
    for name in graph.tensors:
        if name not in graph.inputs and name not in graph.writers:
            yield name


def _reported(graph: Graph) -> Iterator[str]:
    """The same, unless a step has no output: it most likely writes them, and is reported itself."""
    return unwritten(graph) if all(step.outputs for step in graph.steps) else iter(())


def _instead(name: str, names: Iterable[str]) -> str:
    close = suggest(name, names)
    if close:
        return f"did you mean {close}?"
    return "map a step's output to it, or declare it as an input of the ensemble"


def written_twice(graph: Graph) -> Iterator[Fault]:
    """Tensors that two outputs are mapped to."""
    for name, links in graph.writers.items():
        for link in links[1:]:
            yield Fault(
                f"step {links[0].step + 1} writes {name} already",
                "give each output its own tensor",
                link.path,
            )


def overwritten_inputs(graph: Graph) -> Iterator[Fault]:
    """Inputs of the ensemble that a step writes; TC314 reports those that nothing reads."""
    for name, links in graph.writers.items():
        if name in graph.inputs and (name in graph.readers or name in graph.outputs):
            yield Fault(
                f"{name} is an input of {graph.name}: step {links[0].step + 1} writes it again",
                "give the step's output its own tensor",
                links[0].path,
            )


def unknown_inputs(graph: Graph) -> Iterator[Fault]:
    """Keys of an input_map that are not inputs of the step's model."""
    return (fault for step in graph.steps for fault in _unknown_inputs(step))


def _unknown_inputs(step: Step) -> Iterator[Fault]:
    if step.interface and step.interface.whole_inputs:
        yield from _unknown(step, "input", step.inputs, step.interface.inputs)


def unknown_outputs(graph: Graph) -> Iterator[Fault]:
    """Keys of an output_map that are not outputs of the step's model."""
    for step in graph.steps:
        if step.interface and step.interface.whole_outputs:
            yield from _unknown(step, "output", step.outputs, step.interface.outputs)


def _unknown(
    step: Step, direction: str, links: Iterable[Link], known: Mapping[str, Tensor]
) -> Iterator[Fault]:
    for link in links:
        if link.side is None:
            close = suggest(link.name, known)
            fix = f"did you mean {close}?" if close else f"it has {', '.join(known) or 'none'}"
            yield Fault(f"{step.name} has no {direction} {link.name}", fix, link.path, of_name=True)


def unfed_inputs(graph: Graph) -> Iterator[Fault]:
    """Required inputs of a step's model that the step does not map."""
    for step in graph.steps:
        # A key that the model does not have is most likely this input, misspelt.
        if not step.inputs or any(_unknown_inputs(step)):
            continue
        for name in step.unfed:
            yield Fault(
                f"{step.name} needs the input {name}, which step {step.index + 1} does not map",
                f"map a tensor to its input {name}",
                (*step.path, "model_name"),
            )


def types_differ(graph: Graph) -> Iterator[Fault]:
    """Tensors with different data types on two sides."""
    for name, sides in graph.sides.items():
        known = [(link, side) for link, side in sides if side.dtype is not None]
        for link, side in known[1:]:
            first = known[0][1]
            if side.dtype != first.dtype and link is not None:
                yield Fault(
                    f"{name} is {first.dtype} in {first.model} and {side.dtype} in {side.model}",
                    "put a step between them that converts, or correct the one that is wrong",
                    link.path,
                )
                break


def shapes_differ(graph: Graph) -> Iterator[Fault]:
    """Tensors whose shapes on two sides can never be the same."""
    for name, sides in graph.sides.items():
        for link, side in sides[1:]:
            if link is not None and not _fit(sides[0][1], side):
                yield Fault(
                    f"{name} is {sides[0][1].shape} in {sides[0][1].model} and {side.shape} in "
                    f"{side.model}",
                    "make the dims equal; -1 fits any size, and the batch dimension is not written",
                    link.path,
                )
                break


def shapes_differ_later(graph: Graph) -> Iterator[Fault]:
    """Tensors whose shapes fit a variable one in between, and not each other."""
    for name, sides in graph.sides.items():
        first = sides[0][1]
        if not all(_fit(first, side) for _, side in sides):
            continue
        if pair := _never_equal(sides):
            one, (link, other) = pair
            yield Fault(
                f"{name} is {one.shape} in {one.model} and {other.shape} in {other.model}; "
                f"{first.shape} in {first.model} hides it from Triton",
                "make the dims equal",
                link.path,
            )


def _never_equal(
    sides: Sequence[tuple[Link | None, Side]],
) -> tuple[Side, tuple[Link, Side]] | None:
    """The first two that differ for certain; each is held against the first with such a size.

    Where one of two does not batch, Triton may add or strip a dimension.
    """
    sizes: dict[tuple[bool, int, int], tuple[int, Side]] = {}
    for link, side in sides:
        if side.dims is None or side.batches is None:
            continue
        # Two that batch differ by their rank alone; of others it may be a dimension of one.
        rank = len(side.dims)
        certain = [((True, 0, 0), rank)] if side.batches else []
        certain += [((side.batches, rank, at), n) for at, n in enumerate(side.dims) if n != -1]
        for place, size in certain:
            known, one = sizes.setdefault(place, (size, side))
            if known != size and link is not None:
                return one, (link, side)
    return None


def _fit(one: Side, other: Side) -> bool:
    """Whether they may be the same tensor; also where too little is known."""
    if one.dims is None or other.dims is None:
        return True
    return dims_match(one.dims, other.dims) or any(
        dims_match(a, b) for a, b in product(_full(one), _full(other))
    )


def _full(side: Side) -> list[tuple[int, ...]]:
    dims = side.dims or ()
    return {True: [(-1, *dims)], False: [dims], None: [dims, (-1, *dims)]}[side.batches]


def optional_required(graph: Graph) -> Iterator[Fault]:
    """Optional inputs of the ensemble that a step requires."""
    for name, tensor in graph.inputs.items():
        sides = (link.side for link in graph.readers.get(name, ()) if tensor.optional)
        needy = next((side.model for side in sides if side and not side.optional), None)
        if needy is not None:
            yield Fault(
                f"{graph.name} calls {name} optional, {needy} requires it",
                f"also make the input of {needy} optional, or remove `optional` here",
                (*tensor.path, "optional"),
            )
