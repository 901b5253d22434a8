# SPDX-License-Identifier: Apache-2.0
"""TC304, TC31x, TC32x: tensors between steps that do not match.

tritonctl.checks.analysis.wiring finds the faults; `render` uses it for its own graphs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tritonctl.checks.analysis import wiring
from tritonctl.checks.analysis.graph import EnsembleGraph
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import ENSEMBLE_REFUSED, error, warning

_MAP_KEY_REASON = (
    "Triton refuses the ensemble. The key is the tensor's name in the model, the value its name in "
    "the ensemble."
)
_RULES = {
    wiring.unfinished_steps: error(
        "TC304 unfinished-step",
        summary="a step without a model, an input or an output",
        reason=ENSEMBLE_REFUSED,
    ),
    wiring.unwritten_tensors: error(
        "TC311 unwritten-tensor",
        summary="a tensor that a step reads and nothing writes",
        reason="The step can never run: Triton refuses the ensemble.",
        answers=("server#7280", "server#4260"),
    ),
    wiring.unwritten_outputs: error(
        "TC312 unwritten-output",
        summary="an output of the ensemble that no step writes",
        reason="Triton refuses the ensemble: no response would ever be complete.",
        answers=("server#5943",),
    ),
    wiring.written_twice: error(
        "TC313 written-twice",
        summary="a tensor that two outputs are mapped to",
        reason=ENSEMBLE_REFUSED,
    ),
    wiring.overwritten_inputs: error(
        "TC317 overwritten-input",
        summary="a step that writes to an input of the ensemble",
        reason="Triton loads it, and each reader of that input runs again for the step's tensor. "
        "If the step itself reads it, it runs without end, which kills tritonserver 2.51.",
        shows="traffic",
    ),
    wiring.unknown_inputs: error(
        "TC321 unknown-input",
        summary="an input_map whose key is not an input of the step's model",
        reason=_MAP_KEY_REASON,
    ),
    wiring.unknown_outputs: error(
        "TC322 unknown-output",
        summary="an output_map whose key is not an output of the step's model",
        reason=_MAP_KEY_REASON,
    ),
    wiring.unfed_inputs: error(
        "TC323 unfed-input",
        summary="a required input of a step's model that the step does not map",
        reason="Triton refuses the ensemble: only optional inputs may be omitted.",
    ),
    wiring.types_differ: error(
        "TC324 types-differ",
        summary="a tensor with different data types in two models",
        reason="Triton converts nothing between steps: it refuses the ensemble.",
        answers=("server#1682", "server#3007"),
    ),
    wiring.shapes_differ: error(
        "TC325 shapes-differ",
        summary="a tensor whose shapes in two models can never match",
        answers=("server#1682", "server#7303"),
        reason=ENSEMBLE_REFUSED,
    ),
    wiring.shapes_differ_later: warning(
        "TC326 shapes-differ-later",
        summary="a tensor whose shapes match a variable shape, but not each other",
        reason="Triton compares each declaration only with the first one. It loads the ensemble, "
        "and requests fail with `unexpected shape`.",
    ),
    wiring.optional_required: warning(
        "TC327 optional-input-required",
        summary="an optional input of the ensemble that a step requires",
        reason="Triton loads it; a request without the input fails in the middle of the ensemble.",
    ),
}


def _hits_at(
    faults: Callable[[EnsembleGraph], Iterator[wiring.WiringFault]],
) -> Callable[[ConfigMessage, EnsembleGraph], Iterator[Hit]]:
    """Return a rule's function that reports each fault at its path."""

    def check(config: ConfigMessage, ensemble: EnsembleGraph) -> Iterator[Hit]:
        for message, fix, path, marks_name in faults(ensemble):
            yield Hit(message, fix, config.name_span(*path) if marks_name else config.span(*path))

    return check


for _faults, _rule in _RULES.items():
    _rule(_hits_at(_faults))
