# SPDX-License-Identifier: Apache-2.0
"""TC218 and TC219: what the PyTorch backend makes of names and of strings.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/
model_configuration.md#special-conventions-for-pytorch-backend and https://github.com/
triton-inference-server/pytorch_backend#important-notes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tritonctl.checks.analysis.declared import Tensor, batches, inputs, outputs
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.formats.graph_file import whole_number


@warning(
    "TC218 pytorch-position",
    summary="an index in a PyTorch model's tensor names that is taken or too large",
    why="TorchScript names no tensors, so `INPUT__1` means the second argument of forward(): "
    "a wrong number feeds another argument, or no argument.",
)
def position(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not _is_torchscript(model):
        return
    message = config.message
    if message.HasField("sequence_batching") or message.batch_input:
        return
    for tensors in (inputs(model), outputs(model)):
        # The backend reads the number after the first `__`.
        numbers = [whole_number(tensor.name.partition("__")[2]) for tensor in tensors]
        if None in numbers:
            continue  # then all of them go by the names of forward(), or by their order
        for place, tensor in enumerate(tensors):
            if problem := _problem(tensors, numbers, place):
                yield Hit(
                    f"{tensor.name} stands for {tensor.path[0]} {numbers[place]} of forward(), "
                    f"{problem}",
                    f"number the {tensor.path[0]}s from __0 on, each once",
                    config.span(*tensor.path, "name"),
                )


def _problem(tensors: Sequence[Tensor], numbers: Sequence[int | None], place: int) -> str | None:
    number = numbers[place]
    if number in numbers[:place]:
        return f"as {tensors[numbers.index(number)].name} does"
    # Outputs may be left out, inputs may not.
    is_input = tensors[place].path[0] == "input"
    if is_input and number is not None and number >= len(tensors):
        return f"which has {len(tensors)}, counted from 0"
    return None


@error(
    "TC219 pytorch-strings",
    summary="strings of more than one dimension for the PyTorch backend",
    why="TorchScript has no tensors of strings; Triton passes lists of them, which have one "
    "dimension, and refuses a model that declares more.",
)
def strings(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not _is_torchscript(model):
        return
    for tensor in (*inputs(model), *outputs(model)):
        shape = tensor.dims if tensor.reshape is None else tensor.reshape
        if tensor.dtype != "TYPE_STRING" or shape is None:
            continue
        if len(shape) + batches(model) > 1:
            batch = ", the batch in front included" if batches(model) else ""
            yield Hit(
                f"{tensor.name} has strings in {len(shape) + batches(model)} dimensions{batch}",
                "set max_batch_size: 0 and give it one dimension, or turn text into numbers in "
                "another model",
                config.span(*tensor.path, "data_type"),
            )


def _is_torchscript(model: Model) -> bool:
    version = model.served_version
    if model.backend != "pytorch" or version is None:
        return False
    return "model.py" not in model.files_of(version)
