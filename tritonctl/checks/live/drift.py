# SPDX-License-Identifier: Apache-2.0
"""Compare a config.pbtxt with the configuration that a server runs with.

Triton silently fills in defaults, and backends complete fields that a file omits. These are not
differences. The tables of such fields follow Triton's NormalizeModelConfig and
NormalizeInstanceGroup (core, src/model_config_utils.cc) and the answers of a 2.51 server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from tritonctl.checks.config.message import ConfigMessage, Path, is_map

# Entries of these lists match by name; their order is irrelevant.
_MATCHED_BY_NAME = {"ModelInput", "ModelOutput", "ModelWarmup", "ControlInput"}
_SEQUENCE_IDLE_MICROSECONDS = 1_000_000
_BY_FILE_NAMES = ("backend", "platform", "default_model_filename", "runtime")
# The server replaces this value with the path of the unpacked environment.
_REWRITTEN = ("parameters", "EXECUTION_ENV_PATH")
# Fields that a backend may complete if the file omits them (auto-complete).
_COMPLETED = {"input", "output", "max_batch_size", "dynamic_batching", "model_transaction_policy"}
# Fields that auto-complete may add to an input or output of the file.
_TENSOR_FIELDS = {"data_type", "dims", "optional", "format"}

# Whether Triton fills in a value; takes the value, the model's name and the live configuration.
_DefaultTest = Callable[[Any, str, Any], bool]


def _largest_batch(value: Any, _: str, live: Any) -> bool:
    return list(value) == [live.max_batch_size]


_DEFAULTS: dict[tuple[str, ...], _DefaultTest] = {
    ("name",): lambda value, name, _: value == name,
    **{(field,): lambda *_: True for field in _BY_FILE_NAMES},
    # An ensemble is decoupled if one of its steps is.
    ("model_transaction_policy",): lambda _, __, live: live.HasField("ensemble_scheduling"),
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
class ConfigDifference:
    """A setting that differs between file and server."""

    path: Path
    kind: Kind
    local: str  # the file's value as text; "" if missing
    remote: str  # the server's value as text; "" if missing

    @property
    def dotted(self) -> str:
        """The path as text: instance_group[0].count."""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}"
        return text.removeprefix(".")


def differences(
    name: str, file: ConfigMessage, live: Any, *, completes: bool = True
) -> list[ConfigDifference]:
    """Return the settings in which the server differs from the file, without Triton's defaults.

    The live configuration is a ModelConfig of the file's schema. `completes` tells whether the
    backend may complete fields that the file omits.
    """
    return list(_Comparison(name, file, live, completes).find_all())


class _Comparison:
    def __init__(self, name: str, file: ConfigMessage, live: Any, completes: bool) -> None:
        self._name = name
        self._file = file
        self._live = live
        self._completes = completes

    def find_all(self) -> Iterator[ConfigDifference]:
        """Yield the differences field by field, from the top."""
        yield from self._compare_messages(self._file.message, self._live, ())

    def _compare_messages(self, local: Any, remote: Any, path: Path) -> Iterator[ConfigDifference]:
        for field in local.DESCRIPTOR.fields:
            local_value, remote_value = getattr(local, field.name), getattr(remote, field.name)
            field_path = (*path, field.name)
            if field_path[:2] == _REWRITTEN:
                continue
            if is_map(field):
                yield from self._compare_map_entries(
                    dict(local_value), dict(remote_value), field, field_path
                )
            elif field.is_repeated:
                yield from self._compare_lists(
                    list(local_value), list(remote_value), field, field_path
                )
            elif field.message_type is not None:
                yield from self._compare_inner(local, remote, field, field_path)
            elif local_value != remote_value:
                yield from self._compare_values(local_value, remote_value, field, field_path)

    def _compare_values(
        self, local_value: Any, remote_value: Any, field: Any, path: Path
    ) -> Iterator[ConfigDifference]:
        """Compare two scalars; a default value counts as set only if the file contains it."""
        is_default_value = local_value == field.default_value
        if is_default_value and self._is_default(path, remote_value):
            return
        if is_default_value and path not in self._file.value_spans:
            yield ConfigDifference(path, self._kind(path), "", _text(remote_value, field))
        else:
            yield ConfigDifference(
                path, "differs", _text(local_value, field), _text(remote_value, field)
            )

    def _compare_inner(
        self, local: Any, remote: Any, field: Any, path: Path
    ) -> Iterator[ConfigDifference]:
        local_value, remote_value = getattr(local, field.name), getattr(remote, field.name)
        if local.HasField(field.name) and remote.HasField(field.name):
            yield from self._compare_messages(local_value, remote_value, path)
        elif local.HasField(field.name):
            yield ConfigDifference(path, "differs", _text(local_value, field), "")
        elif remote.HasField(field.name) and not self._is_default(path, remote_value):
            yield from self._compare_remote_only(remote_value, field, path)

    def _compare_remote_only(
        self, remote_value: Any, field: Any, path: Path
    ) -> Iterator[ConfigDifference]:
        """Report a message that only the server has; for `optimization`, omit default fields."""
        if path == ("optimization",):
            empty = type(remote_value)()
            yield from self._compare_messages(empty, remote_value, path)
        else:
            yield ConfigDifference(path, self._kind(path), "", _text(remote_value, field))

    def _compare_map_entries(
        self, local: Mapping[str, Any], remote: Mapping[str, Any], field: Any, path: Path
    ) -> Iterator[ConfigDifference]:
        value = field.message_type.fields_by_name["value"]
        for key in sorted({*local, *remote}, key=str):
            entry_path = (*path, key)
            if entry_path == _REWRITTEN:
                continue
            local_text = _text(local[key], value) if key in local else ""
            remote_text = _text(remote[key], value) if key in remote else ""
            if local_text != remote_text or (key in local) != (key in remote):
                yield ConfigDifference(entry_path, "differs", local_text, remote_text)

    def _compare_lists(
        self, local: Sequence[Any], remote: Sequence[Any], field: Any, path: Path
    ) -> Iterator[ConfigDifference]:
        if field.message_type is None:
            if local != remote and not (not local and self._is_default(path, remote)):
                kind: Kind = "differs" if local else self._kind(path)
                yield ConfigDifference(
                    path, kind, _list_text(local, field), _list_text(remote, field)
                )
        elif not local and remote and self._is_default(path, remote):
            return
        elif field.message_type.name in _MATCHED_BY_NAME:
            yield from self._compare_by_name(local, remote, field, path)
        else:
            yield from self._compare_by_index(local, remote, field, path)

    def _compare_by_name(
        self, local: Sequence[Any], remote: Sequence[Any], field: Any, path: Path
    ) -> Iterator[ConfigDifference]:
        remaining_by_name = {entry.name: entry for entry in remote}
        for index, entry in enumerate(local):
            if entry.name in remaining_by_name:
                yield from self._compare_messages(
                    entry, remaining_by_name.pop(entry.name), (*path, index)
                )
            else:
                yield ConfigDifference((*path, index), "differs", _text(entry, field), "")
        for entry in remaining_by_name.values():
            # The backend completes a file that lists only some tensors.
            yield ConfigDifference((*path, entry.name), self._kind(path), "", _text(entry, field))

    def _compare_by_index(
        self, local: Sequence[Any], remote: Sequence[Any], field: Any, path: Path
    ) -> Iterator[ConfigDifference]:
        for index in range(max(len(local), len(remote))):
            entry_path = (*path, index)
            if index >= len(remote):
                yield ConfigDifference(entry_path, "differs", _text(local[index], field), "")
            elif index >= len(local):
                yield ConfigDifference(
                    entry_path, self._kind(entry_path), "", _text(remote[index], field)
                )
            else:
                yield from self._compare_messages(local[index], remote[index], entry_path)

    def _kind(self, path: Path) -> Kind:
        """Return the kind of a difference in something that only the server has."""
        completed = path[0] in _COMPLETED and len(path) == 1
        if path[0] in {"input", "output"}:
            completed = not path[2:] or path[2] in _TENSOR_FIELDS
        return "completed" if completed and self._completes else "differs"

    def _is_default(self, path: Path, value: Any) -> bool:
        """Whether Triton fills in this value if the file omits it."""
        for pattern, is_default in _DEFAULTS.items():
            if len(pattern) == len(path) and all(
                part in ("*", at) for part, at in zip(pattern, path, strict=True)
            ):
                return is_default(value, self._name, self._live)
        return False


def _text(value: Any, field: Any) -> str:
    """Return a value in text format on one line."""
    if field.message_type is not None:
        inner = text_format.MessageToString(value, as_one_line=True, as_utf8=True)
        return f"{{ {inner} }}" if inner else "{ }"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        enum_values = field.enum_type.values_by_number
        return str(enum_values[value].name if value in enum_values else value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list_text(values: Iterable[Any], field: Any) -> str:
    texts = [_text(value, field) for value in values]
    return f"[ {', '.join(texts)} ]" if texts else ""
