# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt as Triton's ModelConfig message, with the span of every value.

Triton reads the file with protobuf's C++ parser. The parser accepts a repeated key of a map, and a
second value after the default value (0, false, ""), which it cannot tell from an unset field. The
last value counts. This module judges values in the same way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from tritonctl.checks.config.textproto import Field, MessageBlock, Scalar
from tritonctl.checks.source_span import Span

Path = tuple[str | int, ...]
Mistake = Literal["unknown", "type", "again", "key-again", "overwritten"]
MAX_PROBLEMS = 1_000
# Mistakes that Triton accepts silently.
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
    """A mistake in one value."""

    mistake: Mistake
    text: str
    span: Span
    names: tuple[str, ...] = ()
    value: Scalar | MessageBlock | None = None
    # Of a wrong value: its field. Of an unknown field: the message that lacks it.
    descriptor: Any = None
    path: tuple[str, ...] = ()  # the names of the blocks around an unknown field


class UnreadValue(NamedTuple):
    """A value that could not be read and stays unset."""

    message: Any
    field: Any
    at: int


@dataclass
class ConfigMessage:
    """The message, the spans of its values and fields by path, and the problems.

    A path looks like `("input", 0, "dims", 1)`; map entries are addressed by key.
    """

    message: Any
    value_spans: dict[Path, Span] = field(default_factory=dict)
    name_spans: dict[Path, Span] = field(default_factory=dict)
    # At most MAX_PROBLEMS of a kind; a file of a megabyte may have a million.
    problems: list[Problem] = field(default_factory=list)
    problem_counts: Counter[Mistake] = field(default_factory=Counter)
    unread: list[UnreadValue] = field(default_factory=list)

    def add_problem(self, problem: Problem) -> None:
        """Keep a problem, or only count it if there are many of its kind."""
        self.problem_counts[problem.mistake] += 1
        if self.problem_counts[problem.mistake] <= MAX_PROBLEMS:
            self.problems.append(problem)

    def span(self, *path: str | int) -> Span:
        """Return the span of a value; if it is missing, of the nearest enclosing value."""
        while path and path not in self.value_spans:
            path = path[:-1]
        return self.value_spans[path]

    def name_span(self, *path: str | int) -> Span:
        """Return the span of a field's name; if it is missing, the result of `span`."""
        return self.name_spans.get(path) or self.span(*path)


def read(block: MessageBlock, message: Any) -> ConfigMessage:
    """Fill an empty message from a parsed text. Values with a problem stay unset."""
    result = ConfigMessage(message, {(): block.span})
    _fill(result, message, block, ())
    return result


def _fill(made: ConfigMessage, message: Any, block: MessageBlock, path: Path) -> None:
    fields_by_name = message.DESCRIPTOR.fields_by_name
    seen: Counter[str] = Counter()
    last_unknown = None
    for entry in block.fields:
        if entry.name not in fields_by_name:
            if entry.name_span != last_unknown:  # a list gives one entry for each value
                made.add_problem(_unknown_field(message.DESCRIPTOR, entry, path))
            last_unknown = entry.name_span
            continue
        descriptor = fields_by_name[entry.name]
        if _note_repetition(made, message, descriptor, entry, seen) == "overwritten":
            made.name_spans.pop((*path, entry.name), None)
            made.value_spans.pop((*path, entry.name), None)
        seen[entry.name] += 1
        made.name_spans.setdefault((*path, entry.name), entry.name_span)
        if entry.value is not None:
            made.value_spans.setdefault((*path, entry.name), entry.value.span)
            _set(made, message, descriptor, entry, entry.value, path)
        elif not entry.colon and descriptor.message_type is None:
            text = f"':' is missing after {entry.name}"
            made.add_problem(Problem("type", text, entry.name_span))


def _unknown_field(owner: Any, entry: Field, path: Path) -> Problem:
    text = f"{owner.name} has no field {entry.name}"
    blocks = tuple(part for part in path if isinstance(part, str))
    return Problem("unknown", text, entry.name_span, (), entry.value, owner, blocks)


def _note_repetition(
    made: ConfigMessage, message: Any, descriptor: Any, entry: Field, seen: Counter[str]
) -> Mistake | None:
    if descriptor.is_repeated:
        return None
    problem = _repetition_problem(message, descriptor, entry, seen)
    if problem is not None:
        made.add_problem(Problem(problem[0], problem[1], entry.name_span))
    return problem[0] if problem else None


def _repetition_problem(
    message: Any, descriptor: Any, entry: Field, seen: Counter[str]
) -> tuple[Mistake, str] | None:
    if entry.is_listed:
        return "type", f"{entry.name} takes one value, not a list"
    if seen[entry.name] and _is_set(message, descriptor):
        return "again", f"{entry.name} takes one value and is given again"
    if seen[entry.name]:
        return "overwritten", f"{entry.name} is given again: Triton takes this one"
    if oneof := descriptor.containing_oneof:
        excluded = [f.name for f in oneof.fields if f.name != entry.name and seen[f.name]]
        if excluded:
            return "again", f"{entry.name} excludes {excluded[0]}, which is given, too"
    return None


def _is_set(message: Any, descriptor: Any) -> bool:
    """Whether the parser considers a field set; a scalar with its default value is not."""
    if descriptor.has_presence:
        return bool(message.HasField(descriptor.name))
    return bool(getattr(message, descriptor.name) != descriptor.default_value)


def _set(
    made: ConfigMessage,
    message: Any,
    descriptor: Any,
    entry: Field,
    value: Scalar | MessageBlock,
    path: Path,
) -> None:
    path = (*path, entry.name)
    if isinstance(value, Scalar):
        if descriptor.message_type is None:
            _set_scalar(made, message, descriptor, value, path)
        else:
            text = f"{entry.name} takes a message in braces, {{ }}"
            made.add_problem(Problem("type", text, value.span, (), value, descriptor))
    elif is_map(descriptor):
        _set_entry(made, message, descriptor, entry, value, path)
    elif descriptor.message_type is not None:
        _set_message(made, message, descriptor, entry, value, path)
    else:
        text = f"{entry.name} takes {_expected_value(descriptor)}, not a message in braces"
        made.add_problem(Problem("type", text, value.span))


def is_map(descriptor: Any) -> bool:
    """Whether a field is a map. The schema declares maps as lists of entries."""
    kind = descriptor.message_type
    return bool(kind is not None and kind.GetOptions().map_entry)


def _set_message(
    made: ConfigMessage,
    message: Any,
    descriptor: Any,
    entry: Field,
    block: MessageBlock,
    path: Path,
) -> None:
    if descriptor.is_repeated:
        entries = getattr(message, entry.name)
        path = (*path, len(entries))
        inner = entries.add()
        made.value_spans[path] = block.span
        made.name_spans[path] = entry.name_span
    else:
        inner = getattr(message, entry.name)
        inner.SetInParent()
    _fill(made, inner, block, path)


def _set_entry(
    made: ConfigMessage,
    message: Any,
    descriptor: Any,
    entry: Field,
    block: MessageBlock,
    path: Path,
) -> None:
    """Set a map entry; a later entry replaces an earlier one with the same key.

    Example: `parameters { key: "a" value { string_value: "b" } }`.
    """
    map_entry = ConfigMessage(descriptor.message_type._concrete_class())
    _fill(map_entry, map_entry.message, block, ())
    key, map_field = map_entry.message.key, getattr(message, entry.name)
    path = (*path, key)
    if key in map_field:
        text = f"{entry.name} has {key!r} twice: Triton takes the last one"
        made.add_problem(Problem("key-again", text, block.span))
    if descriptor.message_type.fields_by_name["value"].message_type is None:
        map_field[key] = map_entry.message.value
    else:
        map_field[key].CopyFrom(map_entry.message.value)
    made.value_spans[path] = map_entry.value_spans.get(("value",), block.span)
    made.name_spans[path] = map_entry.value_spans.get(("key",), entry.name_span)
    # Paths inside the entry's value omit the field `value` itself.
    made.value_spans |= {
        (*path, *inner[1:]): s for inner, s in map_entry.value_spans.items() if len(inner) > 1
    }
    made.name_spans |= {
        (*path, *inner[1:]): s for inner, s in map_entry.name_spans.items() if len(inner) > 1
    }
    blocks = tuple(part for part in path[:-1] if isinstance(part, str))
    for problem in map_entry.problems:
        made.add_problem(problem._replace(path=(*blocks, *problem.path)))
    retained = Counter(problem.mistake for problem in map_entry.problems)
    made.problem_counts.update(map_entry.problem_counts - retained)


def _set_scalar(
    made: ConfigMessage, message: Any, descriptor: Any, value: Scalar, path: Path
) -> None:
    converted = _convert(descriptor, value)
    if converted is None:
        text = f"{descriptor.name} takes {_expected_value(descriptor)}"
        kinds = descriptor.enum_type if value.kind == "identifier" else None
        names = tuple(kinds.values_by_name) if kinds else ()
        made.add_problem(Problem("type", text, value.span, names, value, descriptor))
        index = len(getattr(message, descriptor.name)) if descriptor.is_repeated else 0
        if len(made.unread) < MAX_PROBLEMS:
            made.unread.append(UnreadValue(message, descriptor, index))
    elif descriptor.is_repeated:
        values = getattr(message, descriptor.name)
        made.value_spans[(*path, len(values))] = value.span
        values.append(converted)
    else:
        made.value_spans[path] = value.span
        setattr(message, descriptor.name, converted)


def _convert(descriptor: Any, value: Scalar) -> Any:
    """Return the value converted to the field's type; None if that is impossible."""
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
        except OverflowError:  # only for integers; large floats become infinity too
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
    if value.kind != "identifier":  # protobuf accepts strings too, but Triton rejects quotes
        return None
    enum_value = descriptor.enum_type.values_by_name.get(value.value)
    return None if enum_value is None else int(enum_value.number)


_CONVERSIONS: dict[int, Callable[[Any, Scalar], Any]] = {
    FieldDescriptor.CPPTYPE_STRING: _text,
    FieldDescriptor.CPPTYPE_BOOL: _bool,
    FieldDescriptor.CPPTYPE_ENUM: _enum,
}


def _expected_value(descriptor: Any) -> str:
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
