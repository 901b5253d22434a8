# SPDX-License-Identifier: Apache-2.0
"""A config.pbtxt against the configuration that a server runs with: what differs, and who did it.

Triton fills in defaults silently, and backends complete what a file leaves out. Neither is a
difference; what they fill in is written down here, from Triton's NormalizeModelConfig and
NormalizeInstanceGroup (core, src/model_config_utils.cc) and from what a server of 2.51 answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from tritonctl.checks.config.message import ConfigMessage, Path, is_map

# Entries of these lists are the same thing if they have the same name; their order means nothing.
_NAMED = {"ModelInput", "ModelOutput", "ModelWarmup", "ControlInput"}
_SEQUENCE_IDLE_MICROSECONDS = 1_000_000
_BY_FILE_NAMES = ("backend", "platform", "default_model_filename", "runtime")
# Rewritten by the server to where it unpacks the environment.
_REWRITTEN = ("parameters", "EXECUTION_ENV_PATH")
# What a backend may complete where the file is silent (auto-complete).
_COMPLETED = {"input", "output", "max_batch_size", "dynamic_batching", "model_transaction_policy"}
# Of the lists that auto-complete fills, the fields that it may add to an entry of the file.
_TENSOR_FIELDS = {"data_type", "dims", "optional", "format"}

# Values by value, the model's name, and the whole configuration: whether Triton fills that in.
_Is = Callable[[Any, str, Any], bool]


def _largest_batch(value: Any, _: str, served: Any) -> bool:
    return list(value) == [served.max_batch_size]


_DEFAULTS: dict[tuple[str, ...], _Is] = {
    ("name",): lambda value, name, _: value == name,
    **{(field,): lambda *_: True for field in _BY_FILE_NAMES},
    # An ensemble is decoupled if one of its steps is.
    ("model_transaction_policy",): lambda _, __, served: served.HasField("ensemble_scheduling"),
    ("version_policy",): lambda value, *_: value.latest.num_versions == 1,
    ("version_policy", "latest", "num_versions"): lambda value, *_: value == 1,
    ("optimization", "input_pinned_memory"): lambda value, *_: value.enable,
    ("optimization", "output_pinned_memory"): lambda value, *_: value.enable,
    ("dynamic_batching", "preferred_batch_size"): _largest_batch,
    ("sequence_batching", "oldest", "preferred_batch_size"): _largest_batch,
    ("sequence_batching", "max_sequence_idle_microseconds"): (
        lambda value, *_: value == _SEQUENCE_IDLE_MICROSECONDS
    ),
    ("instance_group",): lambda value, name, _: [group.name for group in value] == [name],
    ("instance_group", "*", "name"): lambda value, name, _: value.rpartition("_")[0] == name,
    **{("instance_group", "*", field): lambda *_: True for field in ("kind", "count", "gpus")},
}

Kind = Literal["differs", "completed"]


@dataclass(frozen=True)
class Difference:
    """One setting. `here`: in the file, `there`: on the server, both as text; "" where absent."""

    path: Path
    kind: Kind
    here: str
    there: str

    @property
    def dotted(self) -> str:
        """The path in words: instance_group[0].count."""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}"
        return text.removeprefix(".")


def differences(
    name: str, file: ConfigMessage, served: Any, *, completes: bool = True
) -> list[Difference]:
    """Where the server's settings differ from the model's file, Triton's defaults aside.

    served: a ModelConfig, of the same schema as the file's. completes: whether the backend may
    complete what the file leaves out.
    """
    return list(_Comparison(name, file, served, completes).all())


class _Comparison:
    def __init__(self, name: str, file: ConfigMessage, served: Any, completes: bool) -> None:
        self._name = name
        self._file = file
        self._served = served
        self._completes = completes

    def all(self) -> Iterator[Difference]:
        """Field by field, from the top."""
        yield from self._message(self._file.message, self._served, ())

    def _message(self, here: Any, there: Any, path: Path) -> Iterator[Difference]:
        for field in here.DESCRIPTOR.fields:
            one, other = getattr(here, field.name), getattr(there, field.name)
            at = (*path, field.name)
            if at[:2] == _REWRITTEN:
                continue
            if is_map(field):
                yield from self._entries(dict(one), dict(other), field, at)
            elif field.is_repeated:
                yield from self._list(list(one), list(other), field, at)
            elif field.message_type is not None:
                yield from self._inner(here, there, field, at)
            elif one != other:
                yield from self._value(one, other, field, at)

    def _value(self, one: Any, other: Any, field: Any, path: Path) -> Iterator[Difference]:
        """A zero that the file writes down is a value, unless Triton takes it for silence, too."""
        zero = one == field.default_value
        if zero and self._is_default(path, other):
            return
        if zero and path not in self._file.values:
            yield Difference(path, self._kind(path), "", _text(other, field))
        else:
            yield Difference(path, "differs", _text(one, field), _text(other, field))

    def _inner(self, here: Any, there: Any, field: Any, path: Path) -> Iterator[Difference]:
        one, other = getattr(here, field.name), getattr(there, field.name)
        if here.HasField(field.name) and there.HasField(field.name):
            yield from self._message(one, other, path)
        elif here.HasField(field.name):
            yield Difference(path, "differs", _text(one, field), "")
        elif there.HasField(field.name) and not self._is_default(path, other):
            yield from self._only_there(other, field, path)

    def _only_there(self, other: Any, field: Any, path: Path) -> Iterator[Difference]:
        """A whole message that is not in the file; of `optimization` only what is not a default."""
        if path == ("optimization",):
            empty = type(other)()
            yield from self._message(empty, other, path)
        else:
            yield Difference(path, self._kind(path), "", _text(other, field))

    def _entries(
        self, here: Mapping[str, Any], there: Mapping[str, Any], field: Any, path: Path
    ) -> Iterator[Difference]:
        value = field.message_type.fields_by_name["value"]
        for key in sorted({*here, *there}, key=str):
            at = (*path, key)
            if at == _REWRITTEN:
                continue
            one = _text(here[key], value) if key in here else ""
            other = _text(there[key], value) if key in there else ""
            if one != other or (key in here) != (key in there):
                yield Difference(at, "differs", one, other)

    def _list(
        self, here: Sequence[Any], there: Sequence[Any], field: Any, path: Path
    ) -> Iterator[Difference]:
        if field.message_type is None:
            if here != there and not (not here and self._is_default(path, there)):
                kind: Kind = "differs" if here else self._kind(path)
                yield Difference(path, kind, _list_text(here, field), _list_text(there, field))
        elif not here and there and self._is_default(path, there):
            return
        elif field.message_type.name in _NAMED:
            yield from self._named(here, there, field, path)
        else:
            yield from self._numbered(here, there, field, path)

    def _named(
        self, here: Sequence[Any], there: Sequence[Any], field: Any, path: Path
    ) -> Iterator[Difference]:
        others = {one.name: one for one in there}
        for index, one in enumerate(here):
            if one.name in others:
                yield from self._message(one, others.pop(one.name), (*path, index))
            else:
                yield Difference((*path, index), "differs", _text(one, field), "")
        for one in others.values():
            # A file that lists some tensors is completed with those that it leaves out.
            yield Difference((*path, one.name), self._kind(path), "", _text(one, field))

    def _numbered(
        self, here: Sequence[Any], there: Sequence[Any], field: Any, path: Path
    ) -> Iterator[Difference]:
        for index in range(max(len(here), len(there))):
            at = (*path, index)
            if index >= len(there):
                yield Difference(at, "differs", _text(here[index], field), "")
            elif index >= len(here):
                yield Difference(at, self._kind(at), "", _text(there[index], field))
            else:
                yield from self._message(here[index], there[index], at)

    def _kind(self, path: Path) -> Kind:
        """Of something that only the server has."""
        completed = path[0] in _COMPLETED and len(path) == 1
        if path[0] in {"input", "output"}:
            completed = not path[2:] or path[2] in _TENSOR_FIELDS
        return "completed" if completed and self._completes else "differs"

    def _is_default(self, path: Path, value: Any) -> bool:
        """Whether Triton has filled this in, where the file says nothing."""
        for pattern, is_default in _DEFAULTS.items():
            if len(pattern) == len(path) and all(
                part in ("*", at) for part, at in zip(pattern, path, strict=True)
            ):
                return is_default(value, self._name, self._served)
        return False


def _text(value: Any, field: Any) -> str:
    """A value as one would write it, on one line."""
    if field.message_type is not None:
        inner = text_format.MessageToString(value, as_one_line=True, as_utf8=True)
        return f"{{ {inner} }}" if inner else "{ }"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number
        return str(known[value].name if value in known else value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list_text(values: Iterable[Any], field: Any) -> str:
    texts = [_text(value, field) for value in values]
    return f"[ {', '.join(texts)} ]" if texts else ""
