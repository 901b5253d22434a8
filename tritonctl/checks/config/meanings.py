# SPDX-License-Identifier: Apache-2.0
"""What a wrong field or value of config.pbtxt means: surely, or probably.

A meaning is sure only within the classes of `certain_field` and `certain_value`: letter case,
underscores, quotes, the prefix of an enum, and another standard's name for the same data type.
`--fix` writes nothing else. Everything else is a remedy in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.config.textproto import MessageBlock, Scalar
from tritonctl.errors import suggest

_MIN_FIELD_SIMILARITY = 0.75
_MISSPELT_SIMILARITY = 0.85
_MIN_VALUE_SIMILARITY = 0.8
_MAX_PLACES = 3
_DATA_TYPE = "DataType"
# Capitals such as INSTANCE_NUM stand for a value that a script puts in.
CAPITALS = re.compile(r"[A-Z][A-Z0-9]*_*[A-Z0-9_]+")
_PLAIN_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_BOOLEANS = {"true": "true", "false": "false"}
_LIKELY_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}

# Names of the same type in KServe v2, NumPy, ONNX, PyTorch and TensorFlow, after `_bare_type`.
_CERTAIN_TYPES = {
    **{f"int{bits}": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"fp{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "TYPE_BF16", "bf16": "TYPE_BF16",
    "bool": "TYPE_BOOL", "boolean": "TYPE_BOOL",
    "bytes": "TYPE_STRING", "string": "TYPE_STRING",
}  # fmt: skip
# Names whose size depends on the library, or that mean no more than a kind of type.
_LIKELY_TYPES = {
    "float": "TYPE_FP32 (NumPy's float is TYPE_FP64)",
    "int": "TYPE_INT32 (TYPE_INT64 for NumPy's and Python's int)",
    "integer": "TYPE_INT32 (TYPE_INT64 for NumPy's and Python's int)",
    "uint": "TYPE_UINT32 (TYPE_UINT64 for NumPy's uint)",
    "byte": "TYPE_UINT8 (TYPE_INT8 for NumPy's byte)",
    "double": "TYPE_FP64", "half": "TYPE_FP16", "single": "TYPE_FP32",
    "bfloat": "TYPE_BF16", "long": "TYPE_INT64", "longlong": "TYPE_INT64",
    "ulong": "TYPE_UINT64", "short": "TYPE_INT16", "ushort": "TYPE_UINT16",
    "char": "TYPE_INT8 (TYPE_STRING for text)", "ubyte": "TYPE_UINT8", "uchar": "TYPE_UINT8",
    "bool_": "TYPE_BOOL", "bool8": "TYPE_BOOL",
    "str": "TYPE_STRING", "str_": "TYPE_STRING", "bytes_": "TYPE_STRING",
    "text": "TYPE_STRING", "object": "TYPE_STRING", "object_": "TYPE_STRING",
    "unicode": "TYPE_STRING", "utf8": "TYPE_STRING", "json": "TYPE_STRING",
    "f16": "TYPE_FP16", "f32": "TYPE_FP32", "f64": "TYPE_FP64",
    "i8": "TYPE_INT8", "i16": "TYPE_INT16", "i32": "TYPE_INT32", "i64": "TYPE_INT64",
    "u8": "TYPE_UINT8", "u16": "TYPE_UINT16", "u32": "TYPE_UINT32", "u64": "TYPE_UINT64",
}  # fmt: skip
_TYPE_PREFIX = re.compile(r"(?:type_|dt_|(?:torch|np|numpy|tf|onnx|tensorproto|trt)[._])+")
_FOREIGN_TYPE = re.compile(
    r"complex\w*|q?u?int4|qu?int\d+|fp8\w*|float8\w*|f8\w*|datetime\w*|timedelta\w*"
)
# Kinds of instances by the device's name.
_LIKELY_KINDS = {"cuda": "KIND_GPU", "device": "KIND_GPU", "none": "KIND_AUTO"}

_ANYWHERE = ""
# Fields that other systems or people have, by Triton's message and the name in `_folded` form.
_INVENTED = {
    _ANYWHERE: {
        "datatype": "write data_type",
        "dtype": "write data_type: TYPE_FP32 or another type",
        "batchsize": "write max_batch_size, at the top level",
        "minbatchsize": "remove it: Triton has no smallest batch; "
        "dynamic_batching.preferred_batch_size and max_queue_delay_microseconds make batches grow",
        "shape": "write dims: [ … ] for the shape; `reshape` is for a backend that needs another",
        "inputs": "write input [ … ], without s",
        "outputs": "write output [ … ], without s",
        "gpuids": "write instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]",
        "deviceids": "write instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]",
        "timeout": "write dynamic_batching { default_queue_policy { default_timeout_microseconds: "
        "… } }; Triton has no limit of an execution's time",
    },
    "ModelConfig": {
        "framework": "write backend",
        "engine": "write backend",
        "runtimebackend": "write backend",
        "modelname": "write name, or remove it: Triton takes the folder's",
        "modelfilename": "write default_model_filename",
        "filename": "write default_model_filename",
        "modelfile": "write default_model_filename",
        "version": "write version_policy: { specific { versions: [ 1 ] } }, or remove it: Triton "
        "serves the latest version folder",
        "versions": "write version_policy: { specific { versions: [ 1 ] } }",
        "instances": "write instance_group [ { count: … } ]",
        "instancecount": "write instance_group [ { count: … } ]",
        "numinstances": "write instance_group [ { count: … } ]",
        "count": "write instance_group [ { count: … } ]",
        "replicas": "write instance_group [ { count: … } ]",
        "workers": "write instance_group [ { count: … } ]",
        "device": "write instance_group [ { kind: KIND_GPU } ]",
        "gpu": "write instance_group [ { kind: KIND_GPU } ]",
        "decoupled": "write model_transaction_policy { decoupled: true }",
        "stream": "write model_transaction_policy { decoupled: true }",
        "streaming": "write model_transaction_policy { decoupled: true }",
        "cache": "write response_cache { enable: true }",
        "warmup": "write model_warmup [ … ]",
        "batching": "write dynamic_batching { }",
        "batcher": "write dynamic_batching { }",
        "ensemble": 'write platform: "ensemble" and ensemble_scheduling { step [ … ] }',
        "env": 'write parameters { key: "EXECUTION_ENV_PATH" value { string_value: "…" } } for a '
        "packed environment; variables come from the server's own environment",
        "environment": 'write parameters { key: "EXECUTION_ENV_PATH" value { string_value: "…" } }',
        "executionenvpath": "write parameters { key: "
        '"EXECUTION_ENV_PATH" value { string_value: "…" } }',
        "description": "write a comment, # …; Triton has no description",
        "metadata": 'write parameters { key: "…" value { string_value: "…" } }',
    },
    "ModelInput": {
        "default": "remove it: Triton has no default values; `optional: true` lets clients omit it",
        "required": "remove it: an input without `optional: true` is required",
        "ragged": "write allow_ragged_batch: true",
    },
    "ModelOutput": {
        "labels": "write label_filename, the name of a file in the model's folder",
        "labelfile": "write label_filename",
        "optional": "remove it: clients may always ask for some of the outputs only",
    },
    "ModelDynamicBatching": {
        "maxbatchsize": "write max_batch_size at the top level, outside dynamic_batching",
        "enable": "remove it: the block dynamic_batching { } itself enables it",
        "enabled": "remove it: the block dynamic_batching { } itself enables it",
    },
    "ModelSequenceBatching": {
        "priorityqueuepolicy": "remove it: sequences have no queue policy",
        "maxsequences": "write oldest { max_candidate_sequences: … }",
    },
    "ModelInstanceGroup": {
        "instances": "write count",
        "num": "write count",
        "replicas": "write count",
        "device": "write kind: KIND_GPU",
        "type": "write kind: KIND_GPU or KIND_CPU",
    },
    "ModelParameter": {"value": 'write string_value: "…": every parameter is text'},
    "ModelEnsembling": {"steps": "write step [ … ], without s"},
    "Step": {
        "model": "write model_name",
        "name": "write model_name",
        "version": "write model_version: -1 for the latest",
        "inputs": "write input_map { key: … value: … }",
        "outputs": "write output_map { key: … value: … }",
        "input": "write input_map { key: … value: … }",
        "output": "write output_map { key: … value: … }",
    },
}  # fmt: skip
# Nothing of a queue policy exists for sequences.
_QUEUE_FIELDS = frozenset(
    {"default_queue_policy", "priority_levels", "default_priority_level", "max_queue_size"}
    | {"priority_queue_policy", "default_timeout_microseconds", "timeout_action"}
    | {"allow_timeout_override"}
)
_SEQUENCE_QUEUE = (
    "remove it: sequences have no queue limit or timeout in Triton. "
    "oldest.max_candidate_sequences and max_sequence_idle_microseconds bound the sequences, and a "
    "gateway in front can bound the requests"
)
# Parts of names that change the meaning, however alike the names are.
_CONTRASTS = (
    frozenset({"min", "minimum", "max", "maximum"}),
    frozenset({"nanoseconds", "microseconds", "milliseconds", "seconds", "ns", "us", "ms", "sec"}),
    frozenset({"input", "inputs", "output", "outputs"}),
    frozenset({"cpu", "gpu"}),
    frozenset({"direct", "oldest"}),
    frozenset({"false", "true"}),
    frozenset({"start", "end", "ready", "corrid"}),
)
_UNITS = {
    "nanoseconds": 0.001, "ns": 0.001, "microseconds": 1, "us": 1,
    "milliseconds": 1_000, "ms": 1_000, "seconds": 1_000_000, "sec": 1_000_000,
}  # fmt: skip


def certain_field(written: str, names: Iterable[str]) -> str | None:
    """Return the one field whose name differs in letter case and underscores only."""
    matches = [name for name in names if _folded(name) == _folded(written)]
    return matches[0] if len(matches) == 1 else None


def certain_value(field: Any, value: Scalar, written: str) -> str | None:
    """Return the value that surely was meant by a scalar of a wrong type; None if unsure.

    `written` is the scalar's text in the file, with its quotes.
    """
    plain = value.value.decode("utf-8", "replace") if isinstance(value.value, bytes) else written
    if field.enum_type is not None:
        return _certain_enum_value(field.enum_type, plain) if value.kind != "float" else None
    if field.message_type is not None:
        return None
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return _BOOLEANS.get(plain.lower())
    if kind == FieldDescriptor.CPPTYPE_STRING:
        # Capitals are a placeholder, and other strings have bytes that are not UTF-8.
        is_word = value.kind != "string" and not CAPITALS.fullmatch(plain)
        return f'"{plain}"' if is_word and re.fullmatch(r"[\w.+-]+", plain) else None
    if value.kind == "string" and _PLAIN_INTEGER.fullmatch(plain):
        return plain
    return None


def _certain_enum_value(enum: Any, plain: str) -> str | None:
    by_upper: dict[str, str] = {name.upper(): name for name in enum.values_by_name}
    for candidate in (plain.upper(), f"{_common_prefix(tuple(by_upper))}{plain.upper()}"):
        if candidate in by_upper:
            return by_upper[candidate]
    return _CERTAIN_TYPES.get(_bare_type(plain)) if enum.name == _DATA_TYPE else None


@cache
def _common_prefix(names: tuple[str, ...]) -> str:
    """Return what all names of an enum start with, up to an underscore: TYPE_, KIND_."""
    first, last = min(names), max(names)
    length = next((i for i, c in enumerate(first) if last[i : i + 1] != c), len(first))
    return first[: first.rfind("_", 0, length) + 1]


def field_remedy(
    written: str, owner: Any, value: Scalar | MessageBlock | None, path: tuple[str, ...]
) -> str | None:
    """Return what to write instead of an unknown field; None if nothing is likely.

    `owner` describes the message that lacks the field, and `path` names the blocks around it.
    """
    names = tuple(owner.fields_by_name)
    if same := certain_field(written, names):
        return f"did you mean {same}?"
    if path[:1] == ("sequence_batching",) and written in _QUEUE_FIELDS:
        return _SEQUENCE_QUEUE
    for message in (owner.name, _ANYWHERE):
        if invented := _INVENTED.get(message, {}).get(_folded(written)):
            return invented
    if unit := _with_other_unit(written, names, value):
        return unit
    misspelt = _similar_field(written, names, _MISSPELT_SIMILARITY)
    places = [] if misspelt else _places(written, owner)
    if places:
        return f"{written} belongs in {' or '.join(places)}"
    close = misspelt or _similar_field(written, names, _MIN_FIELD_SIMILARITY)
    return f"did you mean {close}?" if close else None


def _similar_field(written: str, names: Iterable[str], cutoff: float) -> str | None:
    close = suggest(written, names, cutoff=cutoff)
    return None if close is None or _contrast(written, close) else close


def value_remedy(field: Any, value: Scalar, written: str) -> str | None:
    """Return what to write instead of a scalar of a wrong type; None if nothing is likely."""
    if certain := certain_value(field, value, written):
        if value.kind == "string" and written[1:-1] == certain:
            return f"remove the quotes: {certain}"
        return f"write {certain}"
    plain = value.value.decode("utf-8", "replace") if isinstance(value.value, bytes) else written
    if field.enum_type is not None:
        return _enum_remedy(field.enum_type, plain)
    if field.message_type is not None and field.message_type.name == "ModelParameter":
        return f"write {{ string_value: {_quoted(plain)} }}"
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and plain.lower() in _LIKELY_BOOLEANS:
        return f"write {_LIKELY_BOOLEANS[plain.lower()]}"
    return None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _enum_remedy(enum: Any, plain: str) -> str | None:
    if enum.name == _DATA_TYPE and (remedy := _type_remedy(plain)):
        return remedy
    kind = plain.lower().removeprefix("kind_")
    if "KIND_GPU" in enum.values_by_name and kind in _LIKELY_KINDS:
        return f"did you mean {_LIKELY_KINDS[kind]}?"
    close = suggest(plain.upper(), tuple(enum.values_by_name), cutoff=_MIN_VALUE_SIMILARITY)
    return f"did you mean {close}?" if close and not _contrast(plain, close) else None


def _type_remedy(plain: str) -> str | None:
    bare = _bare_type(plain)
    if likely := _LIKELY_TYPES.get(bare):
        return f"did you mean {likely}?"
    if _FOREIGN_TYPE.fullmatch(bare):
        return f"use a type that Triton has: it has no {plain}, and clients could not send it"
    return None


def _bare_type(plain: str) -> str:
    """Return a type's name without its library: `float32` for `torch.float32`."""
    bare = _TYPE_PREFIX.sub("", plain.lower(), count=1)
    return bare[1:] if re.fullmatch(r"k(?:float|half|int|bool|bf16|uint).*", bare) else bare


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _contrast(written: str, name: str) -> bool:
    """Whether two similar names have parts that mean something different."""
    left, right = set(written.lower().split("_")), set(name.lower().split("_"))
    if any(group & (left - right) and group & (right - left) for group in _CONTRASTS):
        return True
    # As in `shape` and `reshape`, `known` and `unknown`.
    return any(f"{p}{a}" == b for p in ("re", "un", "de", "non") for a, b in (
        (written, name), (name, written)))  # fmt: skip


def _with_other_unit(
    written: str, names: Iterable[str], value: Scalar | MessageBlock | None
) -> str | None:
    """Return the field with another unit of time, and the value in that unit."""
    stem, _, unit = written.lower().rpartition("_")
    factor = _UNITS.get(unit)
    matches = [name for name in names if stem and name.startswith(f"{stem}_")]
    matches = [name for name in matches if name.rpartition("_")[2] in _UNITS]
    if factor is None or not matches:
        return None
    target = matches[0]
    if isinstance(value, Scalar) and isinstance(value.value, int | float):
        converted = value.value * factor / _UNITS[target.rpartition("_")[2]]
        return f"write {target}: {converted:.0f}, the same time in that unit"
    return f"write {target}, with the time in that unit"


def _places(written: str, owner: Any) -> list[str]:
    """Return the blocks of a configuration that have a field of this name, the outermost first."""
    if written in owner.fields_by_name:
        return []
    places = [block for block, message in _blocks() if written in message.fields_by_name]
    # A name that many blocks have, such as `name`, says nothing.
    if len(places) > _MAX_PLACES:
        return []
    return [f"{block} {{ }}" if block else "the top level" for block in places]


@cache
def _blocks() -> tuple[tuple[str, Any], ...]:
    root = model_config_schema().ModelConfig.DESCRIPTOR
    blocks = _walk(root, (), (root.full_name,))
    return tuple(sorted(blocks, key=lambda block: (block[0].count("."), bool(block[0]))))


def _walk(message: Any, path: tuple[str, ...], outer: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not message.GetOptions().map_entry:
        yield ".".join(name for name in path if name != "value"), message
    for field in message.fields:
        inner = field.message_type
        if inner is not None and inner.full_name not in outer:
            yield from _walk(inner, (*path, field.name), (*outer, inner.full_name))
