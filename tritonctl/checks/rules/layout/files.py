# SPDX-License-Identifier: Apache-2.0
"""TC02x: files that the configuration names: labels, data for warm-up and first states.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/implicit_state_management.md
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
"""

from __future__ import annotations

import operator
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tritonctl.checks.analysis.declared import element_count, outputs, type_name
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.config.message import Path as Place
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.protocol.datatypes import BY_CONFIG_NAME

WARM_UP, STATES = "warmup", "initial_state"
_ENVIRONMENT, _MODEL_FOLDER = "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY"
_LENGTH = 4
_exists = os.path.exists  # never raises, whatever the name
# Far above any list of classes.
_LARGEST_LABELS = 16 << 20


class Data(NamedTuple):
    """A file with a tensor's bytes that the configuration names.

    size: in bytes, strings: how many; None where that may be any.
    """

    folder: str
    name: str
    place: Place
    size: int | None
    strings: int | None


def file_size(folder: Path, name: str) -> int | None:
    """Of a file that can be opened; None of anything else. Triton takes every name as relative."""
    try:
        status = (folder / name.lstrip("/")).stat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@error(
    "TC020 missing-labels",
    summary="a label_filename that does not exist",
    why="Triton reads it when it loads the model, and refuses the model; a folder in its place "
    "crashes tritonserver 2.51.",
)
def missing_labels(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, output in enumerate(config.message.output):
        name = output.label_filename
        if name and file_size(model.path, name) is None:
            searched = f"; Triton looks for it next to {model.shown}/config.pbtxt"
            yield Hit(
                f"output {output.name} has its labels in {name}, which is not a file{searched}",
                f"put it at {model.shown}/{name}",
                config.span("output", index, "label_filename"),
            )


@warning(
    "TC021 few-labels",
    summary="fewer labels than an output has elements",
    why="Classes without a line are returned without a label.",
)
def few_labels(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for output, tensor in zip(config.message.output, outputs(model), strict=True):
        name, dims = output.label_filename, tensor.dims
        size = file_size(model.path, name) if name else None
        if dims is None or min(dims) < 1 or size is None or size > _LARGEST_LABELS:
            continue
        lines = _lines(model.path / name.lstrip("/"))
        if lines is not None and lines < element_count(dims):
            yield Hit(
                f"{name} has {lines} labels, and output {output.name} {element_count(dims)} "
                "elements",
                "write a line for each class, in the order of the output",
                config.span(*tensor.path, "label_filename"),
            )


def _lines(path: Path) -> int | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content.count(b"\n") + (not content.endswith(b"\n") if content else 0)


@error(
    "TC022 missing-data",
    summary="data for warm-up or a first state that does not exist",
    why="Triton looks for it in warmup/ and initial_state/, next to config.pbtxt, when it loads "
    "the model, and refuses the model.",
)
def missing_data(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for data in named_data(model):
        if file_size(model.path / data.folder, data.name) is None:
            yield Hit(
                f"{data.folder}/{data.name} is not a file",
                f"put it at {model.shown}/{data.folder}/{data.name}",
                config.span(*data.place),
            )


@error(
    "TC023 short-data", summary="data for warm-up or a first state that is smaller than its tensor"
)
def short_data(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    fix = "write the raw bytes of the whole tensor, without the batch dimension"
    return _other_size(config, model, operator.lt, fix)


@warning(
    "TC024 long-data",
    summary="data for warm-up or a first state that is larger than its tensor",
    why="Triton takes the first bytes and silently ignores the rest.",
)
def long_data(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    fix = "correct the dims or the data type if they are another tensor's, or cut the file"
    return _other_size(config, model, operator.gt, fix)


def _other_size(
    config: ConfigMessage, model: Model, differs: Callable[[int, int], bool], fix: str
) -> Iterator[Hit]:
    for data in named_data(model):
        size = file_size(model.path / data.folder, data.name)
        if data.size and size is not None and differs(size, data.size):
            yield Hit(
                f"{data.folder}/{data.name} has {size} bytes, and the tensor {data.size}",
                fix,
                config.span(*data.place),
            )


@error(
    "TC027 string-data",
    summary="strings for warm-up that are more or fewer than the tensor's",
    why="Triton refuses the model: it reads each string after its length, as clients send it.",
)
def string_data(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for data in named_data(model):
        place = model.path / data.folder / data.name.lstrip("/")
        size = file_size(place.parent, place.name)
        if data.strings is None or size is None or size > _LARGEST_LABELS:
            continue
        count = _strings(place)
        if data.folder == WARM_UP and count is not None and count != data.strings:
            yield Hit(
                f"{data.folder}/{data.name} has {count} strings, and the tensor {data.strings}",
                "write each string after its length, 4 bytes, the lowest first",
                config.span(*data.place),
            )


def _strings(path: Path) -> int | None:
    """How many strings a file has, each after its length; a remainder does not count."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    count = at = 0
    while at + _LENGTH <= len(content):
        at += _LENGTH + int.from_bytes(content[at : at + _LENGTH], "little")
        count += at <= len(content)
    return count


@warning(
    "TC028 missing-plan",
    summary="a file for GPUs of one compute capability that does not exist",
    why="On such a GPU Triton cannot load the version; on others it does.",
    shows="elsewhere",
)
def missing_plan(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for key, name in config.message.cc_model_filenames.items():
        lacking = [v for v in model.served_versions if not _exists(model.path / str(v) / name)]
        if lacking:
            yield Hit(
                f"version {lacking[0]} has no {name}, which GPUs of compute capability {key} load",
                f"put it at {model.shown}/{lacking[0]}/{name}, or remove the entry",
                config.span("cc_model_filenames", key),
            )


@error(
    "TC025 missing-environment",
    summary="a Python environment in the model's folder that does not exist",
    why="The Python backend refuses the model. It takes an archive of conda-pack, or the "
    "folder that one was unpacked into.",
    answers=("server#5094",),
)
def missing_environment(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    value = _environment(config, model)
    if value is None:
        return
    span = config.span("parameters", _ENVIRONMENT, "string_value")
    if value.startswith(_MODEL_FOLDER[1:]):
        yield Hit(
            f"{value} is used as written: a $ is missing",
            f"write ${value}",
            span,
        )
    if not value.startswith(_MODEL_FOLDER):
        return
    path = model.path / value.removeprefix(_MODEL_FOLDER).lstrip("/")
    if not _exists(path):
        yield Hit(
            f"{model.shown} has no {path.relative_to(model.path)}",
            "put the environment there: conda-pack makes one",
            span,
        )
    elif path.is_dir() and not _exists(path / "bin" / "activate"):
        yield Hit(
            f"{path.relative_to(model.path)} has no bin/activate",
            "name the folder that conda-pack's archive was unpacked into",
            span,
        )


@warning(
    "TC026 relative-environment",
    summary="a Python environment that depends on where the server was started",
    why="The Python backend takes the path as written, and refuses the model where it leads "
    "nowhere.",
    shows="elsewhere",
)
def relative_environment(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    value = _environment(config, model)
    if value and not value.startswith((_MODEL_FOLDER, _MODEL_FOLDER[1:], "/")):
        yield Hit(
            f"{value} is looked up where the server was started",
            f"write {_MODEL_FOLDER}/{value.removeprefix('./')} for a place in the model's folder, "
            "or a path from the root",
            config.span("parameters", _ENVIRONMENT, "string_value"),
        )


def _environment(config: ConfigMessage, model: Model) -> str | None:
    if model.backend != "python":
        return None
    parameters = config.message.parameters
    return parameters[_ENVIRONMENT].string_value if _ENVIRONMENT in parameters else None


def named_data(model: Model) -> Iterator[Data]:
    """What warm-up and first states read when the model loads."""
    message = model.config.message
    if model.backend == "ensemble":
        return
    for index, sample in enumerate(message.model_warmup):
        for key, one in sample.inputs.items() if sample.batch_size else ():
            if one.HasField("input_data_file"):
                place: Place = ("model_warmup", index, "inputs", key, "input_data_file")
                yield _data(WARM_UP, one.input_data_file, place, one)
    for index, state in enumerate(message.sequence_batching.state):
        for number, first in enumerate(state.initial_state):
            if first.HasField("data_file"):
                place = ("sequence_batching", "state", index, "initial_state", number, "data_file")
                yield _data(STATES, first.data_file, place, first)


def _data(folder: str, name: str, place: Place, tensor: Any) -> Data:
    row = BY_CONFIG_NAME.get(type_name(tensor.data_type))
    if row is None or any(size < 0 for size in tensor.dims):
        return Data(folder, name, place, None, None)
    elements = element_count(tensor.dims)
    if row.size is None:
        return Data(folder, name, place, None, elements)
    return Data(folder, name, place, row.size * elements, None)
