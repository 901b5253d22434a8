# SPDX-License-Identifier: Apache-2.0
"""Explains values that Triton's protobuf schema refuses in a model configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tritonctl.errors import choices

_Kind = FieldDescriptor
_RANGES = {
    _Kind.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _Kind.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _Kind.CPPTYPE_UINT32: (0, 2**32 - 1),
    _Kind.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class RefusedValue(NamedTuple):
    """A value that Triton does not accept."""

    path: str  # dotted keys
    problem: str
    remedy: str | None = None


def refused_values(
    value: Any, message: Descriptor, path: tuple[str | int, ...] = ()
) -> Iterator[RefusedValue]:
    """Yield the invalid values in protobuf's JSON form of a message, in the order of the keys."""
    dotted_path = _dotted(path)
    if not isinstance(value, Mapping):
        yield RefusedValue(
            dotted_path, _expected("a section of keys", value), _section_hint(message, value)
        )
        return
    fields = {**message.fields_by_camelcase_name, **message.fields_by_name}
    oneof_keys: dict[str, str] = {}
    for key, inner in value.items():
        if key not in fields:
            remedy = choices(str(key), list(message.fields_by_name), "valid keys:")
            yield RefusedValue(_dotted((*path, key)), "unknown key", remedy)
            continue
        field = fields[key]
        group = field.containing_oneof
        if group is not None and inner is not None:
            if previous_key := oneof_keys.get(group.name):
                problem = f"`{previous_key}` and `{key}` exclude each other"
                yield RefusedValue(dotted_path, problem, "keep one of them")
            oneof_keys[group.name] = key
        yield from _field(inner, field, (*path, key))


def _field(
    value: Any, field: FieldDescriptor, path: tuple[str | int, ...]
) -> Iterator[RefusedValue]:
    if value is None:  # equals a missing field
        return
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        yield from _map(value, inner, path)
    elif not field.is_repeated:
        yield from _value(value, field, path)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _value(item, field, (*path, number))
    else:
        yield RefusedValue(_dotted(path), _expected("a list", value), "write `[…]` around it")


def _map(value: Any, entry: Descriptor, path: tuple[str | int, ...]) -> Iterator[RefusedValue]:
    if not isinstance(value, Mapping):
        yield RefusedValue(_dotted(path), _expected("a section of keys", value))
        return
    for key, inner in value.items():
        if wrong := _scalar(key, entry.fields_by_name["key"]):
            yield RefusedValue(_dotted((*path, key)), f"as a key, {wrong[0]}", wrong[1])
        else:
            yield from _value(inner, entry.fields_by_name["value"], (*path, key))


def _value(
    value: Any, field: FieldDescriptor, path: tuple[str | int, ...]
) -> Iterator[RefusedValue]:
    if field.message_type is not None:
        yield from refused_values(value, field.message_type, path)
    elif wrong := _scalar(value, field):
        yield RefusedValue(_dotted(path), *wrong)


def _scalar(value: Any, field: FieldDescriptor) -> tuple[str, str | None] | None:
    """Return problem and remedy of an invalid value; None for a valid one."""
    kind = field.cpp_type
    if kind == _Kind.CPPTYPE_ENUM:
        names = list(field.enum_type.values_by_name)
        right = value in names or _whole_number(value) is not None
        remedy = choices(str(value), names, "expected one of")
        return None if right else (f"unknown value `{value}`", remedy)
    if kind in _RANGES:
        return _integer(value, *_RANGES[kind])
    if kind == _Kind.CPPTYPE_BOOL:
        return None if isinstance(value, bool) else (_expected("true or false", value), None)
    if kind == _Kind.CPPTYPE_STRING:
        return None if isinstance(value, str) else (_expected("text", value), "quote it")
    return None if _is_number(value) else (_expected("a number", value), None)


def _integer(value: Any, minimum: int, maximum: int) -> tuple[str, str | None] | None:
    number = _whole_number(value)
    if number is None:
        return _expected("a whole number", value), None
    if minimum <= number <= maximum:
        return None
    return _expected(f"a whole number from {minimum} to {maximum}", value), None


def _whole_number(value: Any) -> int | None:
    """Convert to an integer as protobuf does, also from quotes or with `.0`; None if invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value) if int(value) == float(value) else None
    except (ValueError, OverflowError):
        return None


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and float(value) is not None
    except (ValueError, TypeError):
        return False


def _section_hint(message: Descriptor, value: Any) -> str | None:
    """Return how to write a value that Triton expects in a section, such as `parameters`."""
    if "string_value" in message.fields_by_name and value is not None:
        return f'write `{{string_value: "{value}"}}`'
    return f"its keys: {', '.join(message.fields_by_name)}" if message.fields else None


def _expected(expectation: str, value: Any) -> str:
    held = isinstance(value, Mapping | list | tuple)
    return f"expected {expectation}, got {'a section' if held else f'`{value}`'}"


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path)
