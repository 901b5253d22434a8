# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt as Triton's ModelConfig message, with the place of every value.

Judged as protobuf's C++ parser does, with which Triton reads the file: it takes the key of a map
twice, and a value behind one that is the default (0, false, ""), for it cannot tell such a field
from one that was not given. The last one counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from tritonctl.checks.config.textproto import Block, Field, Scalar
from tritonctl.checks.places import Span

Path = tuple[str | int, ...]
Mistake = Literal["unknown", "type", "again", "key-again", "overwritten"]
# What Triton accepts silently.
HARMLESS: frozenset[Mistake] = frozenset({"key-again", "overwritten"})

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_BOOLS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}
_FLOATS = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}


class Problem(NamedTuple):
    """Something wrong with one value. `names`: what could have been meant instead."""

    mistake: Mistake
    text: str
    span: Span
    names: tuple[str, ...] = ()


class Unread(NamedTuple):
    """A value that could not be read and stays unset: of which message, where in a list."""

    message: Any
    field: Any
    at: int


@dataclass
class ConfigMessage:
    """The message, the place of each value by its path, and what is wrong.

    Paths are as in `("input", 0, "dims", 1)`; entries of maps by their key.
    """

    message: Any
    values: dict[Path, Span] = field(default_factory=dict)
    names: dict[Path, Span] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    def span(self, *path: str | int) -> Span:
        """Where a value stands; where it is absent, the nearest thing around it."""
        while path and path not in self.values:
            path = path[:-1]
        return self.values[path]

    def name_span(self, *path: str | int) -> Span:
        """Where a field's name stands; where it is absent, as `span`."""
        return self.names.get(path) or self.span(*path)


def read(block: Block, message: Any) -> ConfigMessage:
    """Fill an empty message from a parsed text. Values with a problem stay unset."""
    made = ConfigMessage(message, {(): block.span})
    _fill(made, message, block, ())
    return made


def _fill(made: ConfigMessage, message: Any, block: Block, path: Path) -> None:
    known = message.DESCRIPTOR.fields_by_name
    seen: Counter[str] = Counter()
    for one in block.fields:
        if one.name not in known:
            text = f"{message.DESCRIPTOR.name} has no field {one.name}"
            made.problems.append(Problem("unknown", text, one.name_span, tuple(known)))
            continue
        descriptor = known[one.name]
        if _note_again(made, message, descriptor, one, seen) == "overwritten":
            made.names.pop((*path, one.name), None)
            made.values.pop((*path, one.name), None)
        seen[one.name] += 1
        made.names.setdefault((*path, one.name), one.name_span)
        if one.value is not None:
            made.values.setdefault((*path, one.name), one.value.span)
            _set(made, message, descriptor, one, one.value, path)
        elif not one.colon and descriptor.message_type is None:
            text = f"':' is missing after {one.name}"
            made.problems.append(Problem("type", text, one.name_span))


def _note_again(
    made: ConfigMessage, message: Any, descriptor: Any, one: Field, seen: Counter[str]
) -> Mistake | None:
    if descriptor.is_repeated:
        return None
    problem = _again(message, descriptor, one, seen)
    if problem is not None:
        made.problems.append(Problem(problem[0], problem[1], one.name_span))
    return problem[0] if problem else None


def _again(
    message: Any, descriptor: Any, one: Field, seen: Counter[str]
) -> tuple[Mistake, str] | None:
    if one.listed:
        return "type", f"{one.name} takes one value, not a list"
    if seen[one.name] and _is_set(message, descriptor):
        return "again", f"{one.name} takes one value and is given again"
    if seen[one.name]:
        return "overwritten", f"{one.name} is given again: Triton takes this one"
    if oneof := descriptor.containing_oneof:
        others = [f.name for f in oneof.fields if f.name != one.name and seen[f.name]]
        if others:
            return "again", f"{one.name} excludes {others[0]}, which is given, too"
    return None


def _is_set(message: Any, descriptor: Any) -> bool:
    """As the parser asks: a plain field with its default value is not."""
    if descriptor.has_presence:
        return bool(message.HasField(descriptor.name))
    return bool(getattr(message, descriptor.name) != descriptor.default_value)


def _set(
    made: ConfigMessage,
    message: Any,
    descriptor: Any,
    one: Field,
    value: Scalar | Block,
    path: Path,
) -> None:
    path = (*path, one.name)
    if isinstance(value, Scalar):
        if descriptor.message_type is None:
            _set_scalar(made, message, descriptor, value, path)
        else:
            text = f"{one.name} takes a message in braces, {{ }}"
            made.problems.append(Problem("type", text, value.span))
    elif is_map(descriptor):
        _set_entry(made, message, descriptor, one, value, path)
    elif descriptor.message_type is not None:
        _set_message(made, message, descriptor, one, value, path)
    else:
        text = f"{one.name} takes {_wanted(descriptor)}, not a message in braces"
        made.problems.append(Problem("type", text, value.span))


def is_map(descriptor: Any) -> bool:
    """Whether a field is a map, which the schema has as a list of entries."""
    kind = descriptor.message_type
    return bool(kind is not None and kind.GetOptions().map_entry)


def _set_message(
    made: ConfigMessage, message: Any, descriptor: Any, one: Field, block: Block, path: Path
) -> None:
    if descriptor.is_repeated:
        entries = getattr(message, one.name)
        path = (*path, len(entries))
        inner = entries.add()
        made.values[path] = block.span
        made.names[path] = one.name_span
    else:
        inner = getattr(message, one.name)
        inner.SetInParent()
    _fill(made, inner, block, path)


def _set_entry(
    made: ConfigMessage, message: Any, descriptor: Any, one: Field, block: Block, path: Path
) -> None:
    """`parameters { key: "a" value { string_value: "b" } }`; a later entry replaces an earlier."""
    entry = ConfigMessage(descriptor.message_type._concrete_class())
    _fill(entry, entry.message, block, ())
    key, whole = entry.message.key, getattr(message, one.name)
    path = (*path, key)
    if key in whole:
        text = f"{one.name} has {key!r} twice: Triton takes the last one"
        made.problems.append(Problem("key-again", text, block.span))
    if descriptor.message_type.fields_by_name["value"].message_type is None:
        whole[key] = entry.message.value
    else:
        whole[key].CopyFrom(entry.message.value)
    made.values[path] = entry.values.get(("value",), block.span)
    made.names[path] = entry.values.get(("key",), one.name_span)
    # What stands inside the value keeps its place, without the entry's own `value`.
    made.values |= {(*path, *inner[1:]): s for inner, s in entry.values.items() if len(inner) > 1}
    made.names |= {(*path, *inner[1:]): s for inner, s in entry.names.items() if len(inner) > 1}
    made.problems += entry.problems


def _set_scalar(
    made: ConfigMessage, message: Any, descriptor: Any, value: Scalar, path: Path
) -> None:
    converted = _converted(descriptor, value)
    if converted is None:
        text = f"{descriptor.name} takes {_wanted(descriptor)}"
        kinds = descriptor.enum_type if value.kind == "identifier" else None
        names = tuple(kinds.values_by_name) if kinds else ()
        made.problems.append(Problem("type", text, value.span, names))
        at = len(getattr(message, descriptor.name)) if descriptor.is_repeated else 0
        made.unread.append(Unread(message, descriptor, at))
    elif descriptor.is_repeated:
        values = getattr(message, descriptor.name)
        made.values[(*path, len(values))] = value.span
        values.append(converted)
    else:
        made.values[path] = value.span
        setattr(message, descriptor.name, converted)


def _converted(descriptor: Any, value: Scalar) -> Any:
    """The value as the field's type has it; None when it cannot be."""
    kind = descriptor.cpp_type
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        fits = isinstance(value.value, int) and low <= value.value <= high
        return value.value if value.kind == "integer" and fits else None
    convert: Callable[[Any, Scalar], Any] = _CONVERSIONS.get(kind, _number)
    return convert(descriptor, value)


def _bool(_: Any, value: Scalar) -> bool | None:
    if value.kind == "integer":
        return {0: False, 1: True}.get(int(value.value))
    return _BOOLS.get(value.value) if isinstance(value.value, str) else None


def _number(_: Any, value: Scalar) -> float | None:
    if value.kind in ("integer", "float"):
        try:
            return float(value.value)
        except OverflowError:  # of whole numbers; of others it is infinity as well
            return math.inf if int(value.value) > 0 else -math.inf
    return _FLOATS.get(value.value.lower()) if isinstance(value.value, str) else None


def _text(descriptor: Any, value: Scalar) -> str | bytes | None:
    if not isinstance(value.value, bytes):
        return None
    if descriptor.type == FieldDescriptor.TYPE_BYTES:
        return value.value
    try:
        return value.value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _enum(descriptor: Any, value: Scalar) -> int | None:
    if value.kind == "integer":
        return int(value.value)
    if value.kind != "identifier":  # protobuf looks bytes up, too, but Triton takes no quotes
        return None
    known = descriptor.enum_type.values_by_name.get(value.value)
    return None if known is None else int(known.number)


_CONVERSIONS: dict[int, Callable[[Any, Scalar], Any]] = {
    FieldDescriptor.CPPTYPE_STRING: _text,
    FieldDescriptor.CPPTYPE_BOOL: _bool,
    FieldDescriptor.CPPTYPE_ENUM: _enum,
}


def _wanted(descriptor: Any) -> str:
    kind = descriptor.cpp_type
    if kind in _INTEGERS:
        low, _ = _INTEGERS[kind]
        size = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
        return f"an integer of {size} bits" + (", 0 or more" if low == 0 else "")
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return "a string of valid UTF-8 in quotes"
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return "true or false"
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return f"a {descriptor.enum_type.name}, without quotes"
    return "a number"
