# SPDX-License-Identifier: Apache-2.0
"""TC18x: sequence batchers that Triton refuses as they are configured.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/implicit_state_management.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.declared import size_fits, type_name
from tritonctl.checks.config.message import ConfigMessage, Path
from tritonctl.checks.findings import Hit
from tritonctl.checks.rule import error

_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_PAIR = 2
_CORRELATION = "CONTROL_SEQUENCE_CORRID"
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def _controls(sequences: Any) -> Iterator[tuple[Path, str, Any, str]]:
    """Each control: where, of which tensor, what, of which kind."""
    for index, tensor in enumerate(sequences.control_input):
        for place, control in enumerate(tensor.control):
            path = ("sequence_batching", "control_input", index, "control", place)
            kinds = type(control).Kind
            if control.kind in kinds.values():
                yield path, tensor.name, control, str(kinds.Name(control.kind))


@error("TC180 control-without-name", summary="a control tensor without a name")
def control_without_name(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    for index, tensor in enumerate(sequences.control_input):
        if not tensor.name:
            yield Hit(
                f"control_input number {index + 1} has no name",
                'give it the name under which the model reads it: name: "START"',
                config.span("sequence_batching", "control_input", index),
            )


@error(
    "TC181 control-again",
    summary="a control tensor, or a kind of control, given twice",
    why="Triton refuses the model: each kind of control has one tensor, and each tensor is "
    "listed once.",
)
def control_again(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    names: set[str] = set()
    for index, name in enumerate(tensor.name for tensor in sequences.control_input):
        if name and name in names:
            yield Hit(
                f"control_input has the tensor {name} twice",
                "give each control its own tensor",
                config.span("sequence_batching", "control_input", index, "name"),
            )
        names.add(name)
    seen: dict[str, str] = {}
    for path, tensor, _control, kind in _controls(sequences):
        if kind in seen:
            yield Hit(
                f"{kind} goes to {tensor or 'a tensor'}, and to {seen[kind]} already",
                "give each kind of control one tensor",
                config.span(*path, "kind"),
            )
        seen.setdefault(kind, tensor or "another")


@error(
    "TC182 control-values",
    summary="a control without its two values",
    why="Triton refuses the model: start, end and ready are sent as one of two values, which "
    "the configuration names; a correlation id is sent itself.",
)
def control_values(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    for path, tensor, control, kind in _controls(sequences):
        given = [name for name in _VALUES if len(getattr(control, name))]
        wrong = _wrong_values(control, kind, given)
        if wrong:
            yield Hit(
                f"the control {tensor}, {kind}, {wrong}",
                f"remove {' and '.join(given)}"
                if kind == _CORRELATION
                else "give one list of two values, what false is and what true is: "
                "int32_false_true: [ 0, 1 ]",
                config.span(*path, *given[-1:]),
            )


def _wrong_values(control: Any, kind: str, given: list[str]) -> str:
    if kind == _CORRELATION:
        return f"has {given[0]}, and carries a number" if given else ""
    if not given:
        return "does not say what false and true are"
    if len(given) > 1:
        return f"has {' and '.join(given)}"
    count = len(getattr(control, given[0]))
    return f"has {count} value{'s' * (count > 1)} in {given[0]}" if count != _PAIR else ""


@error("TC183 correlation-type", summary="a correlation id with an unsupported type")
def correlation_type(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    for path, tensor, control, kind in _controls(sequences):
        name = type_name(control.data_type)
        if kind == _CORRELATION and name not in _CORRELATION_TYPES:
            yield Hit(
                f"the control {tensor}, {kind}, has data_type {name}",
                f"write one of {', '.join(_CORRELATION_TYPES)}",
                config.span(*path, "data_type"),
            )


@error("TC184 slot-utilization", summary="a minimum_slot_utilization outside of 0 to 1")
def slot_utilization(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    if not sequences.HasField("direct"):
        return
    share = sequences.direct.minimum_slot_utilization
    if share < 0 or share > 1:
        yield Hit(
            f"minimum_slot_utilization is {share:g}",
            "write a share from 0 to 1",
            config.span("sequence_batching", "direct", "minimum_slot_utilization"),
        )


@error(
    "TC185 initial-state",
    summary="an initial_state that does not fit its state",
    why="Triton refuses the model: data type and dims are the state's, without -1, and it has "
    "a name and a content.",
)
def initial_state(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    for index, state in enumerate(sequences.state):
        path = ("sequence_batching", "state", index, "initial_state")
        if len(state.initial_state) > 1:
            yield Hit(
                f"state {state.input_name} has {len(state.initial_state)} entries of initial_state",
                "keep one",
                config.span(*path, 1),
            )
        elif len(state.initial_state) == 1:
            initial = state.initial_state[0]
            if wrong := _wrong_initial(initial, state):
                field, problem, fix = wrong
                yield Hit(
                    f"the initial_state of {state.input_name} {problem}",
                    fix,
                    config.span(*path, 0, field),
                )


def _wrong_initial(initial: Any, state: Any) -> tuple[str, str, str] | None:
    """Which field, what is wrong with it, what to do."""
    if initial.data_type != state.data_type:
        return "data_type", "has another data_type than the state", "give both the same"
    if not initial.name:
        return "name", "has no name", 'give it any: name: "zeros"'
    dims, wanted = list(initial.dims), list(state.dims)
    if -1 in dims:
        return "dims", f"has dims {dims}, and a first state has a size", "write it without -1"
    if not size_fits(dims, wanted):
        return "dims", f"has dims {dims}, and the state {wanted}", "write dims that fit the state's"
    if initial.WhichOneof("state_data") is None:
        return "name", "has no content", "write zero_data: true, or name a data_file"
    return None
