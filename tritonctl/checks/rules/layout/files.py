# SPDX-License-Identifier: Apache-2.0
"""TC02x and TC038: files that the configuration names: labels, data for warm-up and first states.

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
from tritonctl.checks.small_file import exists, is_folder
from tritonctl.protocol.datatypes import BY_CONFIG_NAME

WARM_UP, STATES = "warmup", "initial_state"
_ENVIRONMENT, MODEL_FOLDER = "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY"
_LENGTH = 4
# Far above any list of classes.
_MAX_LABEL_BYTES = 16 << 20


class TensorFile(NamedTuple):
    """A file with a tensor's bytes that the configuration names."""

    folder: str
    name: str
    place: Place
    size: int | None  # required size in bytes; None if any size is valid
    strings: int | None  # required number of strings; None if the tensor has none


def file_size(folder: Path, name: str) -> int | None:
    """Return the size of a regular file; None for others. Triton treats every name as relative."""
    try:
        status = (folder / name.lstrip("/")).stat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@error(
    "TC020 missing-labels",
    summary="a label_filename that does not exist",
    reason="Triton reads it when it loads the model, and refuses the model. A folder of that name "
    "crashes tritonserver 2.51.",
    needs_valid_config=True,
)
def missing_labels(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, output in enumerate(config.message.output):
        name = output.label_filename
        if name and file_size(model.path, name) is None:
            hint = f"; Triton looks for it next to {model.display_path}/config.pbtxt"
            yield Hit(
                f"output {output.name} has its labels in {name}, which is not a file{hint}",
                f"put it at {model.display_path}/{name}",
                config.span("output", index, "label_filename"),
            )


@warning(
    "TC038 labels-outside",
    summary="a label_filename that leads out of the model's folder",
    reason="Current releases of Triton refuse the model: `label file path … is outside model "
    "directory`. Triton 24.10 (2.51) loads it.",
    shows="elsewhere",
    needs_valid_config=True,
)
def labels_outside(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, output in enumerate(config.message.output):
        name = output.label_filename
        if not name or file_size(model.path, name) is None:
            continue  # TC020 reports it
        folder = os.path.realpath(model.path)
        if not os.path.realpath(model.path / name.lstrip("/")).startswith(f"{folder}/"):
            yield Hit(
                f"output {output.name} has its labels in {name}, outside {model.display_path}",
                f"copy the file into {model.display_path}",
                config.span("output", index, "label_filename"),
            )


@warning(
    "TC021 few-labels",
    summary="fewer labels than an output has elements",
    reason="Triton returns classes without a line without a label.",
    needs_valid_config=True,
)
def few_labels(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for output, tensor in zip(config.message.output, outputs(model), strict=True):
        name, dims = output.label_filename, tensor.dims
        size = file_size(model.path, name) if name else None
        if dims is None or min(dims) < 1 or size is None or size > _MAX_LABEL_BYTES:
            continue
        lines = _count_lines(model.path / name.lstrip("/"))
        if lines is not None and lines < element_count(dims):
            yield Hit(
                f"{name} has {lines} labels, and output {output.name} {element_count(dims)} "
                "elements",
                "write a line for each class, in the order of the output",
                config.span(*tensor.path, "label_filename"),
            )


def _count_lines(path: Path) -> int | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content.count(b"\n") + (not content.endswith(b"\n") if content else 0)


@error(
    "TC022 missing-data",
    summary="data for warm-up or a first state that does not exist",
    reason="Triton looks for it in warmup/ and initial_state/, next to config.pbtxt, and refuses "
    "the model.",
    needs_valid_config=True,
)
def missing_data(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for data in tensor_files(model):
        if file_size(model.path / data.folder, data.name) is None:
            yield Hit(
                f"{data.folder}/{data.name} is not a file",
                f"put it at {model.display_path}/{data.folder}/{data.name}",
                config.span(*data.place),
            )


@error(
    "TC023 short-data",
    summary="data for warm-up or a first state that is smaller than its tensor",
    needs_valid_config=True,
)
def short_data(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    fix = "write the raw bytes of the whole tensor, without the batch dimension"
    return _size_mismatches(config, model, operator.lt, fix)


@warning(
    "TC024 long-data",
    summary="data for warm-up or a first state that is larger than its tensor",
    reason="Triton uses the first bytes and silently ignores the rest.",
    needs_valid_config=True,
)
def long_data(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    fix = "correct the dims or the data type if they are wrong, or shorten the file"
    return _size_mismatches(config, model, operator.gt, fix)


def _size_mismatches(
    config: ConfigMessage, model: Model, differs: Callable[[int, int], bool], fix: str
) -> Iterator[Hit]:
    for data in tensor_files(model):
        size = file_size(model.path / data.folder, data.name)
        if data.size and size is not None and differs(size, data.size):
            yield Hit(
                f"{data.folder}/{data.name} has {size} bytes, and the tensor {data.size}",
                fix,
                config.span(*data.place),
            )


@error(
    "TC027 string-data",
    summary="warm-up data with a wrong number of strings",
    reason="Triton refuses the model: it reads each string after its length, as clients send it.",
    needs_valid_config=True,
)
def string_data(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for data in tensor_files(model):
        path = model.path / data.folder / data.name.lstrip("/")
        size = file_size(path.parent, path.name)
        if data.strings is None or size is None or size > _MAX_LABEL_BYTES:
            continue
        count = _count_strings(path)
        if data.folder == WARM_UP and count is not None and count != data.strings:
            yield Hit(
                f"{data.folder}/{data.name} has {count} strings, and the tensor {data.strings}",
                "write each string after its length in 4 bytes, little-endian",
                config.span(*data.place),
            )


def _count_strings(path: Path) -> int | None:
    """Return the number of length-prefixed strings in a file, without an incomplete last one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    count = position = 0
    while position + _LENGTH <= len(content):
        position += _LENGTH + int.from_bytes(content[position : position + _LENGTH], "little")
        count += position <= len(content)
    return count


@warning(
    "TC028 missing-plan",
    summary="a file for GPUs of one compute capability that does not exist",
    reason="On such a GPU Triton cannot load the version; on others it does.",
    shows="elsewhere",
    needs_valid_config=True,
)
def missing_plan(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for key, name in config.message.cc_model_filenames.items():
        missing_versions = [
            v for v in model.served_versions if not exists(model.path / str(v) / name)
        ]
        if missing_versions:
            yield Hit(
                f"version {missing_versions[0]} has no {name}, which GPUs of compute capability "
                f"{key} load",
                f"put it at {model.display_path}/{missing_versions[0]}/{name}, or remove the entry",
                config.span("cc_model_filenames", key),
            )


@error(
    "TC025 missing-environment",
    summary="a Python environment in the model's folder that does not exist",
    reason="The Python backend refuses the model. It accepts an archive of conda-pack, or the "
    "folder of an unpacked one.",
    answers=("server#5094",),
    needs_valid_config=True,
)
def missing_environment(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    value = environment_value(config, model)
    if value is None:
        return
    span = config.span("parameters", _ENVIRONMENT, "string_value")
    if value.startswith(MODEL_FOLDER[1:]):
        yield Hit(
            f"{value} is used as written: a $ is missing",
            f"write ${value}",
            span,
        )
    if not value.startswith(MODEL_FOLDER):
        return
    path = model.path / value.removeprefix(MODEL_FOLDER).lstrip("/")
    if not exists(path):
        yield Hit(
            f"{model.display_path} has no {path.relative_to(model.path)}",
            "put the environment there; conda-pack creates one",
            span,
        )
    elif is_folder(path) and not exists(path / "bin" / "activate"):
        yield Hit(
            f"{path.relative_to(model.path)} has no bin/activate",
            "name the folder of the unpacked conda-pack archive",
            span,
        )


@warning(
    "TC026 relative-environment",
    summary="a Python environment whose path depends on the server's working directory",
    reason="The Python backend uses the path as written, and refuses the model if it does not "
    "exist.",
    shows="elsewhere",
    needs_valid_config=True,
)
def relative_environment(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    value = environment_value(config, model)
    if value and not value.startswith((MODEL_FOLDER, MODEL_FOLDER[1:], "/")):
        name = value.removeprefix("./")
        move = "" if exists(model.path / name) else f"put {name} into {model.display_path}, "
        yield Hit(
            f"{value} is relative to the server's working directory",
            f"{move}write {MODEL_FOLDER}/{name}; or remove it and write the packages into "
            f"{model.display_path}/requirements.txt, which needs no packing",
            config.span("parameters", _ENVIRONMENT, "string_value"),
        )


def environment_value(config: ConfigMessage, model: Model) -> str | None:
    """Return the path of a Python model's own environment, as written; None without one."""
    if model.backend != "python":
        return None
    parameters = config.message.parameters
    return parameters[_ENVIRONMENT].string_value if _ENVIRONMENT in parameters else None


def tensor_files(model: Model) -> Iterator[TensorFile]:
    """Yield the files that warm-up and first states read when the model loads."""
    message = model.config.message
    if model.backend == "ensemble":
        return
    for index, sample in enumerate(message.model_warmup):
        for key, tensor in sample.inputs.items() if sample.batch_size else ():
            if tensor.HasField("input_data_file"):
                config_path: Place = ("model_warmup", index, "inputs", key, "input_data_file")
                yield _tensor_file(WARM_UP, tensor.input_data_file, config_path, tensor)
    for index, state in enumerate(message.sequence_batching.state):
        for number, first in enumerate(state.initial_state):
            if first.HasField("data_file"):
                config_path = (
                    "sequence_batching",
                    "state",
                    index,
                    "initial_state",
                    number,
                    "data_file",
                )
                yield _tensor_file(STATES, first.data_file, config_path, first)


def _tensor_file(folder: str, name: str, place: Place, tensor: Any) -> TensorFile:
    datatype = BY_CONFIG_NAME.get(type_name(tensor.data_type))
    if datatype is None or any(size < 0 for size in tensor.dims):
        return TensorFile(folder, name, place, None, None)
    elements = element_count(tensor.dims)
    if datatype.size is None:
        return TensorFile(folder, name, place, None, elements)
    return TensorFile(folder, name, place, datatype.size * elements, None)
