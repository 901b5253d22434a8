# SPDX-License-Identifier: Apache-2.0
"""TC32x, TC33x: whether what a step writes is what the next one reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

from tritonctl.checks.analysis.declared import Tensor, dims_match
from tritonctl.checks.analysis.graph import Graph, Link, Side, Step
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.errors import suggest


@error(
    "TC321 unknown-input",
    summary="an input_map whose key is not an input of the step's model",
    why="Triton refuses the ensemble. The key is the model's name of the tensor, the value the "
    "ensemble's.",
)
def unknown_input(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    for step in ensemble.steps:
        for link in _unknown(step, "input"):
            assert step.interface is not None  # noqa: S101 - it is known to lack it
            yield Hit(
                f"{step.name} has no input {link.name}",
                _of_these(link.name, step.interface.inputs),
                config.name_span(*link.path),
            )


@error(
    "TC322 unknown-output",
    summary="an output_map whose key is not an output of the step's model",
    why="Triton refuses the ensemble. The key is the model's name of the tensor, the value the "
    "ensemble's.",
)
def unknown_output(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    for step in ensemble.steps:
        for link in _unknown(step, "output"):
            assert step.interface is not None  # noqa: S101 - it is known to lack it
            yield Hit(
                f"{step.name} has no output {link.name}",
                _of_these(link.name, step.interface.outputs),
                config.name_span(*link.path),
            )


def _unknown(step: Step, direction: str) -> list[Link]:
    if step.interface is None:
        return []
    whole = step.interface.whole_inputs if direction == "input" else step.interface.whole_outputs
    links = step.inputs if direction == "input" else step.outputs
    return [link for link in links if link.side is None] if whole else []


@error(
    "TC323 unfed-input",
    summary="a required input of a step's model that the step does not map",
    why="Triton refuses the ensemble: only optional inputs may be left out.",
)
def unfed_input(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    for step in ensemble.steps:
        # A key that the model does not have is most likely this input, misspelt.
        if step.interface is None or not step.inputs or _unknown(step, "input"):
            continue
        for name in step.unfed:
            yield Hit(
                f"{step.name} needs the input {name}, which step {step.index + 1} does not map",
                f'add input_map {{ key: "{name}" value: … }}',
                config.span(*step.path, "model_name"),
            )


@error(
    "TC324 types-differ",
    summary="a tensor with different data types on two sides",
    why="Triton converts nothing between steps: it refuses the ensemble.",
    answers=("server#1682", "server#3007"),
)
def types_differ(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    for name, sides in ensemble.sides.items():
        known = [(link, side) for link, side in sides if side.dtype is not None]
        for link, side in known[1:]:
            first = known[0][1]
            if side.dtype != first.dtype and link is not None:
                yield Hit(
                    f"{name} is {first.dtype} in {first.model} and {side.dtype} in {side.model}",
                    "put a step between them that converts, or correct the one that is wrong",
                    config.span(*link.path),
                )
                break


@error(
    "TC325 shapes-differ",
    summary="a tensor whose shapes on two sides can never be the same",
    why="Triton refuses the ensemble.",
    answers=("server#1682", "server#7303"),
)
def shapes_differ(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    for name, sides in ensemble.sides.items():
        for link, side in sides[1:]:
            if link is not None and not fit(sides[0][1], side):
                yield Hit(
                    f"{name} is {sides[0][1].shape} in {sides[0][1].model} and {side.shape} in "
                    f"{side.model}",
                    "make the dims equal; -1 fits any size, and the batch dimension is not written",
                    config.span(*link.path),
                )
                break


@warning(
    "TC326 shapes-differ-later",
    summary="a tensor whose shapes fit a variable one in between, and not each other",
    why="Triton compares every side only with the first one: it loads the ensemble, and then "
    "requests fail with `unexpected shape`.",
)
def shapes_differ_later(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    for name, sides in ensemble.sides.items():
        first = sides[0][1]
        if not all(fit(first, side) for _, side in sides):
            continue
        for (_, one), (link, other) in combinations(sides, 2):
            if link is not None and _never_equal(one, other):
                yield Hit(
                    f"{name} is {one.shape} in {one.model} and {other.shape} in {other.model}; "
                    f"{first.shape} in {first.model} hides it from Triton",
                    "make the dims equal",
                    config.span(*link.path),
                )
                break


def _never_equal(one: Side, other: Side) -> bool:
    """For certain: where one of them does not batch, Triton may add or strip a dimension."""
    if one.dims is None or other.dims is None or dims_match(one.dims, other.dims):
        return False
    both_batch = one.batches is True and other.batches is True
    neither = one.batches is False and other.batches is False
    return both_batch or (neither and len(one.dims) == len(other.dims))


@warning(
    "TC327 optional-input-required",
    summary="an optional input of the ensemble that a step requires",
    why="Triton loads it; a request without the input fails in the middle of the ensemble.",
)
def optional_input_required(config: ConfigMessage, ensemble: Graph, model: Model) -> Iterator[Hit]:
    for name, tensor in ensemble.inputs.items():
        needy = _needy(ensemble, name) if tensor.optional else None
        if needy is not None:
            yield Hit(
                f"{model.name} calls {name} optional, {needy} requires it",
                f"also make the input of {needy} optional, or remove `optional` here",
                config.span(*tensor.path, "optional"),
            )


def _needy(graph: Graph, name: str) -> str | None:
    for link in graph.readers.get(name, ()):
        if link.side is not None and not link.side.optional:
            return link.side.model
    return None


def fit(one: Side, other: Side) -> bool:
    """Whether they may be the same tensor; also where too little is known."""
    if one.dims is None or other.dims is None:
        return True
    return dims_match(one.dims, other.dims) or any(
        dims_match(a, b) for a, b in product(_full(one), _full(other))
    )


def _full(side: Side) -> list[tuple[int, ...]]:
    dims = side.dims or ()
    return {True: [(-1, *dims)], False: [dims], None: [dims, (-1, *dims)]}[side.batches]


def _of_these(name: str, known: Mapping[str, Tensor]) -> str:
    close = suggest(name, known)
    return f"did you mean {close}?" if close else f"it has {', '.join(known) or 'none'}"
