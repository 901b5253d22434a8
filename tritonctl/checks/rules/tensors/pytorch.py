# SPDX-License-Identifier: Apache-2.0
"""TC218, TC219, TC247 and TC256: names, strings and states that only PyTorch handles so.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/
model_configuration.md#special-conventions-for-pytorch-backend and https://github.com/
triton-inference-server/pytorch_backend#important-notes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tritonctl.checks.analysis.declared import (
    DeclaredTensor,
    has_batch_dimension,
    inputs,
    outputs,
    type_name,
)
from tritonctl.checks.config.message import ConfigMessage, Path
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.graph import UNSUPPORTED_TYPES
from tritonctl.formats.graph_file import whole_number

_NOT_IN_CONTROLS = ("TYPE_UINT64", "TYPE_UINT32", "TYPE_STRING")


@warning(
    "TC218 pytorch-position",
    summary="a duplicate or too large index in a PyTorch model's tensor names",
    reason="TorchScript names no tensors, so `INPUT__1` means the second argument of forward(): "
    "a wrong number feeds another argument, or no argument.",
    shows="elsewhere",
)
def pytorch_position(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not _is_torchscript(model):
        return
    message = config.message
    if message.HasField("sequence_batching") or message.batch_input:
        return
    for tensors in (inputs(model), outputs(model)):
        # The backend reads the number after the first `__`.
        numbers = [whole_number(tensor.name.partition("__")[2]) for tensor in tensors]
        if None in numbers:
            continue  # then the names of forward() or the order of the tensors count
        for tensor_index, tensor in enumerate(tensors):
            if problem := _index_problem(tensors, numbers, tensor_index):
                yield Hit(
                    f"{tensor.name} stands for {tensor.path[0]} {numbers[tensor_index]} of "
                    "forward(), "
                    f"{problem}",
                    f"number the {tensor.path[0]}s from __0 on, each once",
                    config.span(*tensor.path, "name"),
                )


def _index_problem(
    tensors: Sequence[DeclaredTensor], numbers: Sequence[int | None], place: int
) -> str | None:
    number = numbers[place]
    if number in numbers[:place]:
        return f"as {tensors[numbers.index(number)].name} does"
    # Outputs may be omitted, inputs may not.
    is_input = tensors[place].path[0] == "input"
    if is_input and number is not None and number >= len(tensors):
        return f"which has {len(tensors)}, counted from 0"
    return None


@error(
    "TC247 pytorch-control-name",
    summary="a control or state of a PyTorch model whose name has no index",
    reason="TorchScript names no tensors. The name of a control or a state must end with the "
    "position of its argument, or the backend refuses the model: `does not follow "
    "<name>__<index> naming convention`.",
    shows="elsewhere",
    answers=("server#915",),
)
def pytorch_control_name(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not _is_torchscript(model):
        return
    first_free = len(config.message.input)
    for path, name in _controls_and_states(config):
        index = name.partition("__")[2]
        if not name or (index.isascii() and index.isdecimal()):
            continue
        is_output = path[-1] == "output_name"
        position = len(config.message.output) if is_output else first_free
        first_free += not is_output
        yield Hit(
            f"{name} does not say which {'result' if is_output else 'argument'} of forward() it is",
            f'write its position, counted from 0: "{name.rstrip("_")}__{position}"',
            config.span(*path),
        )


def _controls_and_states(config: ConfigMessage) -> Iterator[tuple[Path, str]]:
    sequences = config.message.sequence_batching
    for index, control in enumerate(sequences.control_input):
        yield ("sequence_batching", "control_input", index, "name"), control.name
    for index, state in enumerate(sequences.state):
        yield ("sequence_batching", "state", index, "input_name"), state.input_name
        yield ("sequence_batching", "state", index, "output_name"), state.output_name


@error(
    "TC256 pytorch-state",
    summary="a control or state of a PyTorch model with a type or names that its backend refuses",
    reason="TorchScript has no strings and no unsigned integers but UINT8 in controls and states, "
    "and with a state all tensors need the positions in their names.",
    shows="elsewhere",
    needs_valid_config=True,
)
def pytorch_state(config: ConfigMessage, sequences: Any, model: Model) -> Iterator[Hit]:
    if not _is_torchscript(model):
        return
    for index, tensor in enumerate(sequences.control_input):
        for number, control in enumerate(tensor.control):
            name = type_name(control.data_type)
            if control.kind == control.CONTROL_SEQUENCE_CORRID and name in _NOT_IN_CONTROLS:
                yield Hit(
                    f"the control {tensor.name} has {name}, which PyTorch does not have",
                    "write data_type: TYPE_INT64 or TYPE_INT32",
                    config.span(
                        *("sequence_batching", "control_input", index, "control", number),
                        "data_type",
                    ),
                )
    for index, state in enumerate(sequences.state):
        name = type_name(state.data_type)
        is_text = name == "TYPE_STRING" and len(state.dims) + has_batch_dimension(model) > 1
        if name in UNSUPPORTED_TYPES["pytorch"] or is_text:
            yield Hit(
                f"the state {state.input_name} has {name}, which PyTorch does not have"
                + (" in more than one dimension" if is_text else ""),
                "declare the type that the model has",
                config.span("sequence_batching", "state", index, "data_type"),
            )
    for tensor in (*inputs(model), *outputs(model)) if sequences.state else ():
        index_text = tensor.name.partition("__")[2]
        if tensor.name and not (index_text.isascii() and index_text.isdecimal()):
            yield Hit(
                f"{tensor.name} does not say its position, and the model has a state",
                f'write the position, counted from 0: "{tensor.name.rstrip("_")}__'
                f'{tensor.path[1]}"',
                config.span(*tensor.path, "name"),
            )


@error(
    "TC219 pytorch-strings",
    summary="strings of more than one dimension for the PyTorch backend",
    reason="TorchScript has no string tensors. Triton passes lists of strings, which have one "
    "dimension, and refuses a model that declares more.",
    shows="elsewhere",
)
def pytorch_strings(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not _is_torchscript(model):
        return
    for tensor in (*inputs(model), *outputs(model)):
        shape = tensor.dims if tensor.reshape is None else tensor.reshape
        if tensor.dtype != "TYPE_STRING" or shape is None:
            continue
        if len(shape) + has_batch_dimension(model) > 1:
            batch = ", the batch in front included" if has_batch_dimension(model) else ""
            yield Hit(
                f"{tensor.name} has strings in {len(shape) + has_batch_dimension(model)} "
                f"dimensions{batch}",
                "set max_batch_size: 0 and give it one dimension, or turn text into numbers in "
                "another model",
                config.span(*tensor.path, "data_type"),
            )


def _is_torchscript(model: Model) -> bool:
    version = model.served_version
    if model.backend != "pytorch" or version is None:
        return False
    return "model.py" not in model.version_files(version)
