# SPDX-License-Identifier: Apache-2.0
"""TC32x, TC33x: whether what a step writes is what the next one reads."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import wiring
from tritonctl.checks.analysis.graph import Graph
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.ensembles.hits import hits


@error(
    "TC321 unknown-input",
    summary="an input_map whose key is not an input of the step's model",
    why="Triton refuses the ensemble. The key is the model's name of the tensor, the value the "
    "ensemble's.",
)
def unknown_input(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    return hits(config, wiring.unknown_inputs(ensemble))


@error(
    "TC322 unknown-output",
    summary="an output_map whose key is not an output of the step's model",
    why="Triton refuses the ensemble. The key is the model's name of the tensor, the value the "
    "ensemble's.",
)
def unknown_output(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    return hits(config, wiring.unknown_outputs(ensemble))


@error(
    "TC323 unfed-input",
    summary="a required input of a step's model that the step does not map",
    why="Triton refuses the ensemble: only optional inputs may be left out.",
)
def unfed_input(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    return hits(config, wiring.unfed_inputs(ensemble))


@error(
    "TC324 types-differ",
    summary="a tensor with different data types on two sides",
    why="Triton converts nothing between steps: it refuses the ensemble.",
    answers=("server#1682", "server#3007"),
)
def types_differ(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    return hits(config, wiring.types_differ(ensemble))


@error(
    "TC325 shapes-differ",
    summary="a tensor whose shapes on two sides can never be the same",
    why="Triton refuses the ensemble.",
    answers=("server#1682", "server#7303"),
)
def shapes_differ(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    return hits(config, wiring.shapes_differ(ensemble))


@warning(
    "TC326 shapes-differ-later",
    summary="a tensor whose shapes fit a variable one in between, and not each other",
    why="Triton compares every side only with the first one: it loads the ensemble, and then "
    "requests fail with `unexpected shape`.",
)
def shapes_differ_later(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    return hits(config, wiring.shapes_differ_later(ensemble))


@warning(
    "TC327 optional-input-required",
    summary="an optional input of the ensemble that a step requires",
    why="Triton loads it; a request without the input fails in the middle of the ensemble.",
)
def optional_input_required(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    return hits(config, wiring.optional_required(ensemble))
