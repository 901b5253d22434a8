# SPDX-License-Identifier: Apache-2.0
"""TC304, TC31x, TC32x: whether what a step writes is what the next one reads.

What tritonctl.checks.analysis.wiring finds, which judges the graphs that `render` makes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tritonctl.checks.analysis import wiring
from tritonctl.checks.analysis.graph import Graph
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import error, warning

_THE_KEY = (
    "Triton refuses the ensemble. The key is the model's name of the tensor, the value the "
    "ensemble's."
)
_RULES = {
    wiring.unfinished_steps: error(
        "TC304 unfinished-step", summary="a step without a model, an input or an output"
    ),
    wiring.unwritten_tensors: error(
        "TC311 unwritten-tensor",
        summary="a tensor that a step reads and nothing writes",
        why="The step can never run: Triton refuses the ensemble.",
        answers=("server#7280", "server#4260"),
    ),
    wiring.unwritten_outputs: error(
        "TC312 unwritten-output",
        summary="an output of the ensemble that no step writes",
        why="Triton refuses the ensemble: no answer would ever be complete.",
        answers=("server#5943",),
    ),
    wiring.written_twice: error(
        "TC313 written-twice", summary="a tensor that two outputs are mapped to"
    ),
    wiring.overwritten_inputs: error(
        "TC317 overwritten-input",
        summary="a step that writes to an input of the ensemble",
        why="Triton loads it, and what reads that input runs once more for what the step wrote: "
        "without end if the step itself does, which kills tritonserver 2.51.",
        shows="traffic",
    ),
    wiring.unknown_inputs: error(
        "TC321 unknown-input",
        summary="an input_map whose key is not an input of the step's model",
        why=_THE_KEY,
    ),
    wiring.unknown_outputs: error(
        "TC322 unknown-output",
        summary="an output_map whose key is not an output of the step's model",
        why=_THE_KEY,
    ),
    wiring.unfed_inputs: error(
        "TC323 unfed-input",
        summary="a required input of a step's model that the step does not map",
        why="Triton refuses the ensemble: only optional inputs may be left out.",
    ),
    wiring.types_differ: error(
        "TC324 types-differ",
        summary="a tensor with different data types on two sides",
        why="Triton converts nothing between steps: it refuses the ensemble.",
        answers=("server#1682", "server#3007"),
    ),
    wiring.shapes_differ: error(
        "TC325 shapes-differ",
        summary="a tensor whose shapes on two sides can never be the same",
        answers=("server#1682", "server#7303"),
    ),
    wiring.shapes_differ_later: warning(
        "TC326 shapes-differ-later",
        summary="a tensor whose shapes fit a variable one in between, and not each other",
        why="Triton compares every side only with the first one: it loads the ensemble, and then "
        "requests fail with `unexpected shape`.",
    ),
    wiring.optional_required: warning(
        "TC327 optional-input-required",
        summary="an optional input of the ensemble that a step requires",
        why="Triton loads it; a request without the input fails in the middle of the ensemble.",
    ),
}


def _hits_at(
    faults: Callable[[Graph], Iterator[wiring.Fault]],
) -> Callable[[ConfigMessage, Graph], Iterator[Hit]]:
    """A rule's function, which reports each fault at what its path leads to."""

    def check(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
        for message, fix, path, of_name in faults(ensemble):
            yield Hit(message, fix, config.name_span(*path) if of_name else config.span(*path))

    return check


for _faults, _rule in _RULES.items():
    _rule(_hits_at(_faults))
