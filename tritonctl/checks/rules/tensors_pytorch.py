# SPDX-License-Identifier: Apache-2.0
"""TC218 and TC219: what the PyTorch backend makes of names and of strings.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/
model_configuration.md#special-conventions-for-pytorch-backend and https://github.com/
triton-inference-server/pytorch_backend#important-notes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tritonctl.checks.analysis.declared import Tensor, batches, inputs, outputs
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import Example, File, Rule
from tritonctl.formats.graph_file import whole_number


def position(model: Model, _: Repository) -> Iterator[Hit]:
    """`<name>__<index>` with an index that is taken, or beyond what there is."""
    if not _is_torchscript(model) or model.config is None:
        return
    message = model.config.message
    if message.HasField("sequence_batching") or message.batch_input:
        return
    for tensors in (inputs(model), outputs(model)):
        numbers = [_index(tensor.name) for tensor in tensors]
        if None in numbers:
            continue  # then all of them go by the names of forward(), or by their order
        for place, tensor in enumerate(tensors):
            if problem := _problem(tensors, numbers, place):
                yield Hit(
                    f"{tensor.name} stands for {tensor.path[0]} {numbers[place]} of forward(), "
                    f"{problem}",
                    f"number the {tensor.path[0]}s from __0 on, each once",
                    model.config.span(*tensor.path, "name"),
                )


def _problem(tensors: Sequence[Tensor], numbers: Sequence[int | None], place: int) -> str | None:
    number = numbers[place]
    if number in numbers[:place]:
        return f"as {tensors[numbers.index(number)].name} does"
    # Outputs may be left out, inputs may not.
    is_input = tensors[place].path[0] == "input"
    if is_input and number is not None and number >= len(tensors):
        return f"of which there are {len(tensors)}, counted from 0"
    return None


def _index(name: str) -> int | None:
    """The number after the first `__`, as the backend reads it."""
    return whole_number(name.partition("__")[2])


def strings(model: Model, _: Repository) -> Iterator[Hit]:
    """Strings of more than one dimension."""
    if not _is_torchscript(model) or model.config is None:
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
                model.config.span(*tensor.path, "data_type"),
            )


def _is_torchscript(model: Model) -> bool:
    version = model.served_version
    if model.backend != "pytorch" or version is None:
        return False
    return "model.py" not in model.files_of(version)


_CONFIG = """\
name: "m"
backend: "pytorch"
max_batch_size: 0
input [
  { name: "TEXT__0" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "TEXT__1" data_type: TYPE_STRING dims: [ -1 ] }
]
output [ { name: "SCORE__0" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
"""


def _torchscript(old: str, new: str) -> Example:
    assert old in _CONFIG, old  # noqa: S101
    return {"m/config.pbtxt": _CONFIG.replace(old, new), "m/1/model.pt": File(b"PK\3\4")}


_GOOD = _torchscript("", "")

RULES = (
    Rule(
        id="TC218",
        name="pytorch-position",
        severity="warning",
        summary="an index in a PyTorch model's tensor names that is taken or too large",
        why="TorchScript names no tensors, so `INPUT__1` means the second argument of forward(): "
        "a wrong number feeds another argument, or none.",
        check=position,
        bad=_torchscript("TEXT__1", "TEXT__2"),
        good=_GOOD,
        shows="elsewhere",
    ),
    Rule(
        id="TC219",
        name="pytorch-strings",
        severity="error",
        summary="strings of more than one dimension for the PyTorch backend",
        why="TorchScript has no tensors of strings; Triton passes lists of them, which have one "
        "dimension, and refuses a model that declares more.",
        check=strings,
        bad=_torchscript(
            '"TEXT__1" data_type: TYPE_STRING dims: [ -1 ]',
            '"TEXT__1" data_type: TYPE_STRING dims: [ -1, 2 ]',
        ),
        good=_GOOD,
        shows="elsewhere",
    ),
)
