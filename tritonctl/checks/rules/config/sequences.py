# SPDX-License-Identifier: Apache-2.0
"""TC18x: sequence batchers that Triton refuses as they are configured.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/implicit_state_management.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.declared import size_fits, type_name
from tritonctl.checks.analysis.placement import groups
from tritonctl.checks.analysis.releases import meets_minimum
from tritonctl.checks.config.message import ConfigMessage, Path
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error

_VALUE_FIELDS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_PAIR = 2
_CORRELATION = "CONTROL_SEQUENCE_CORRID"
_FIRST_WITH_STRING_IDS = "2.54.0"
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def _controls(sequences: Any) -> Iterator[tuple[Path, str, Any, str]]:
    """Yield the path, tensor name, message and kind of each control."""
    for index, tensor in enumerate(sequences.control_input):
        for control_index, control in enumerate(tensor.control):
            path = ("sequence_batching", "control_input", index, "control", control_index)
            kinds = type(control).Kind
            if control.kind in kinds.values():
                yield path, tensor.name, control, str(kinds.Name(control.kind))


@error(
    "TC180 control-without-name", summary="a control tensor without a name", needs_valid_config=True
)
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
    summary="a repeated control tensor or kind of control",
    reason="Triton refuses the model: each kind of control has one tensor, and each tensor is "
    "listed once.",
    needs_valid_config=True,
)
def repeated_control(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
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
    reason="Triton refuses the model: it sends start, end and ready as one of two values of the "
    "configuration, and a correlation id as itself.",
    needs_valid_config=True,
)
def control_values(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    for path, tensor, control, kind in _controls(sequences):
        value_fields = [name for name in _VALUE_FIELDS if len(getattr(control, name))]
        wrong = _value_problem(control, kind, value_fields)
        if wrong:
            yield Hit(
                f"the control {tensor}, {kind}, {wrong}",
                f"remove {' and '.join(value_fields)}"
                if kind == _CORRELATION
                else "give one list of two values, what false is and what true is: "
                "int32_false_true: [ 0, 1 ]",
                config.span(*path, *value_fields[-1:]),
            )


def _value_problem(control: Any, kind: str, value_fields: list[str]) -> str:
    if kind == _CORRELATION:
        return f"has {value_fields[0]}, and carries a number" if value_fields else ""
    if not value_fields:
        return "does not say what false and true are"
    if len(value_fields) > 1:
        return f"has {' and '.join(value_fields)}"
    count = len(getattr(control, value_fields[0]))
    return f"has {count} value{'s' * (count > 1)} in {value_fields[0]}" if count != _PAIR else ""


@error(
    "TC183 correlation-type",
    summary="a correlation id with an unsupported type",
    needs_valid_config=True,
)
def correlation_type(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    for path, tensor, control, kind in _controls(sequences):
        name = type_name(control.data_type)
        if kind == _CORRELATION and name not in _CORRELATION_TYPES:
            yield Hit(
                f"the control {tensor}, {kind}, has data_type {name}",
                f"write one of {', '.join(_CORRELATION_TYPES)}",
                config.span(*path, "data_type"),
            )


@error(
    "TC186 string-correlation",
    summary="a correlation id of TYPE_STRING on a server before 25.01",
    reason="Triton keeps the id in a buffer of 128 bytes and counts its content wrongly: every "
    "request with a shorter id fails, `unexpected number of string elements 2`.",
    shows="traffic",
    answers=("server#8110",),
    needs_valid_config=True,
)
def string_correlation(
    config: ConfigMessage, sequences: Any, repository: Repository
) -> Iterator[Hit]:
    version = repository.target.version
    if version is None or meets_minimum(version, _FIRST_WITH_STRING_IDS):
        return
    for path, tensor in _string_ids(sequences):
        yield Hit(
            f"the control {tensor} takes ids as strings, and Triton {version} refuses requests "
            "with ids shorter than 128 bytes",
            f"write data_type: TYPE_UINT64 and send numbers, or serve with Triton "
            f"{_FIRST_WITH_STRING_IDS} (25.01) or later",
            config.span(*path, "data_type"),
        )


@error(
    "TC187 string-correlation-warm-up",
    summary="a warm-up of a model whose correlation id is a string",
    reason="The requests of a warm-up have the number 0 as their id. From Triton 25.01 on, where "
    "string ids work, such a model is refused.",
    shows="elsewhere",
    answers=("server#8110",),
    needs_valid_config=True,
)
def string_correlation_warm_up(
    config: ConfigMessage, sequences: Any, repository: Repository
) -> Iterator[Hit]:
    version = repository.target.version
    if not config.message.model_warmup:
        return
    if version is not None and not meets_minimum(version, _FIRST_WITH_STRING_IDS):
        return  # the warm-up works there, and TC186 reports the id
    for _, tensor in _string_ids(sequences):
        yield Hit(
            f"the warm-up sends a number as id, and the control {tensor} takes a string",
            "remove model_warmup, or write data_type: TYPE_UINT64 and send numbers as ids",
            config.name_span("model_warmup", 0),
        )


def _string_ids(sequences: Any) -> Iterator[tuple[Path, str]]:
    for path, tensor, control, kind in _controls(sequences):
        if kind == _CORRELATION and type_name(control.data_type) == "TYPE_STRING":
            yield path, tensor


@error(
    "TC184 slot-utilization",
    summary="a minimum_slot_utilization outside of 0 to 1",
    needs_valid_config=True,
)
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
    reason="Triton refuses the model: the initial state needs the state's data type and dims, "
    "without -1, and a name and content.",
    needs_valid_config=True,
)
def initial_state(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    initialized: set[str] = set()
    for index, state in enumerate(sequences.state):
        path = ("sequence_batching", "state", index, "initial_state")
        if state.initial_state and state.input_name in initialized:
            yield Hit(
                f"two states with an initial_state have the input {state.input_name}",
                "give each state its own input",
                config.span("sequence_batching", "state", index, "input_name"),
            )
        initialized.update((state.input_name,) if state.initial_state else ())
        if len(state.initial_state) > 1:
            yield Hit(
                f"state {state.input_name} has {len(state.initial_state)} entries of initial_state",
                "keep one",
                config.span(*path, 1),
            )
        elif len(state.initial_state) == 1:
            initial = state.initial_state[0]
            if wrong := _initial_state_problem(initial, state):
                field, problem, fix = wrong
                yield Hit(
                    f"the initial_state of {state.input_name} {problem}",
                    fix,
                    config.span(*path, 0, field),
                )


@error(
    "TC189 growable-state",
    summary="use_growable_memory of a state that cannot grow",
    reason="Triton loads the model and refuses every request: such a state needs one buffer for "
    "input and output, in the memory of a GPU.",
    shows="elsewhere",
    needs_valid_config=True,
)
def growable_state(
    config: ConfigMessage, sequences: Any, model: Model, repository: Repository
) -> Iterator[Hit]:
    kinds = {group.kind for group in groups(model, repository.target)}
    for index, state in enumerate(sequences.state):
        if not state.use_growable_memory:
            continue
        name = state.input_name
        off_gpu = sorted(kinds & {"KIND_CPU", "KIND_MODEL"})
        problem = None
        if not state.use_same_buffer_for_input_output:
            problem = f"{name} has one buffer for input and another for output"
        elif off_gpu:
            problem = f"{name} is the state of instances with {off_gpu[0]}"
        if problem:
            yield Hit(
                f"{problem}, and use_growable_memory",
                "remove use_growable_memory, or write use_same_buffer_for_input_output: true and "
                "kind: KIND_GPU",
                config.name_span("sequence_batching", "state", index, "use_growable_memory"),
            )


def _initial_state_problem(initial: Any, state: Any) -> tuple[str, str, str] | None:
    """Return the field, the problem and the fix; None if the initial state is valid."""
    if initial.data_type != state.data_type:
        return "data_type", "has another data_type than the state", "give both the same"
    if not initial.name:
        return "name", "has no name", 'give it any: name: "zeros"'
    dims, state_dims = list(initial.dims), list(state.dims)
    if -1 in dims:
        return "dims", f"has dims {dims}, and a first state needs a size", "write it without -1"
    if not size_fits(dims, state_dims):
        return (
            "dims",
            f"has dims {dims}, and the state {state_dims}",
            "write dims that fit the state's",
        )
    if initial.WhichOneof("state_data") is None:
        return "name", "has no content", "write zero_data: true, or name a data_file"
    return None
