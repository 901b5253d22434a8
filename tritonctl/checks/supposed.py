# SPDX-License-Identifier: Apache-2.0
"""What a repository would be if the values that could not be read were this or that.

What a rule finds for one of them and not for another depends on such a value, which has a finding
of its own already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from google.protobuf.descriptor import FieldDescriptor

from tritonctl.checks.config.message import Unread
from tritonctl.checks.repository import Repository

Supposition = Literal[0, 1]
SUPPOSITIONS: tuple[Supposition, ...] = (0, 1)
_VALUES: dict[int, tuple[Any, Any]] = {
    FieldDescriptor.CPPTYPE_STRING: ("one", "another"),
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
    FieldDescriptor.CPPTYPE_FLOAT: (0.25, 1.0),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.25, 1.0),
}
_NUMBERS = (1, 64)


@contextmanager
def supposing(repository: Repository, which: Supposition) -> Iterator[Repository]:
    """The repository read anew, with one of two values in place of each that could not be read."""
    again = Repository.at(repository.path, repository.shown, repository.target)
    unread = []
    for name, model in repository.models.items():
        if model.config.unread and name in again.models:
            vars(again.models[name])["file"] = model.file
            unread += model.config.unread
    before = [_set(one, which) for one in unread]
    try:
        yield again
    finally:
        for one, values in reversed(list(zip(unread, before, strict=True))):
            _restore(one, values)


def _set(one: Unread, which: Supposition) -> list[Any]:
    message, field, at = one
    value = _value(field, which)
    if not field.is_repeated:
        setattr(message, field.name, value)
        return []
    values = list(getattr(message, field.name))
    _fill(one, [*values[:at], value, *values[at:]])
    return values


def _restore(one: Unread, values: list[Any]) -> None:
    if one.field.is_repeated:
        _fill(one, values)
    else:
        one.message.ClearField(one.field.name)


def _fill(one: Unread, values: list[Any]) -> None:
    one.message.ClearField(one.field.name)
    getattr(one.message, one.field.name).extend(values)


def _value(field: Any, which: Supposition) -> Any:
    if field.enum_type is not None:
        numbers = sorted(value.number for value in field.enum_type.values)
        return numbers[-1 - which] if len(numbers) > 1 else numbers[0]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return (b"one", b"another")[which]
    return _VALUES.get(field.cpp_type, _NUMBERS)[which]
