# SPDX-License-Identifier: Apache-2.0
"""The repository with stand-in values for unreadable fields.

A hit that appears for only one stand-in depends on an unreadable value. Another rule already
reports that value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from google.protobuf.descriptor import FieldDescriptor

from tritonctl.checks.config.message import UnreadValue
from tritonctl.checks.repository import Repository

PlaceholderChoice = Literal[0, 1]
PLACEHOLDER_CHOICES: tuple[PlaceholderChoice, ...] = (0, 1)
_VALUES: dict[int, tuple[Any, Any]] = {
    FieldDescriptor.CPPTYPE_STRING: ("one", "another"),
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
    FieldDescriptor.CPPTYPE_FLOAT: (0.25, 1.0),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.25, 1.0),
}
_NUMBERS = (1, 64)


@contextmanager
def with_placeholders(repository: Repository, choice: PlaceholderChoice) -> Iterator[Repository]:
    """Yield the repository, read again, with one of two stand-ins for each unreadable value."""
    substituted = Repository.read(repository.path, repository.display_path, repository.target)
    unread = []
    for name, model in repository.models.items():
        if model.config.unread and name in substituted.models:
            vars(substituted.models[name])["file"] = model.file
            unread += model.config.unread
    previous_values = [_substitute(unread_value, choice) for unread_value in unread]
    try:
        yield substituted
    finally:
        for unread_value, values in reversed(list(zip(unread, previous_values, strict=True))):
            _restore(unread_value, values)


def _substitute(unread_value: UnreadValue, choice: PlaceholderChoice) -> list[Any]:
    message, field, index = unread_value
    value = _placeholder(field, choice)
    if not field.is_repeated:
        setattr(message, field.name, value)
        return []
    values = list(getattr(message, field.name))
    _replace_list(unread_value, [*values[:index], value, *values[index:]])
    return values


def _restore(unread_value: UnreadValue, values: list[Any]) -> None:
    if unread_value.field.is_repeated:
        _replace_list(unread_value, values)
    else:
        unread_value.message.ClearField(unread_value.field.name)


def _replace_list(unread_value: UnreadValue, values: list[Any]) -> None:
    unread_value.message.ClearField(unread_value.field.name)
    getattr(unread_value.message, unread_value.field.name).extend(values)


def _placeholder(field: Any, choice: PlaceholderChoice) -> Any:
    if field.enum_type is not None:
        numbers = sorted(value.number for value in field.enum_type.values)
        return numbers[-1 - choice] if len(numbers) > 1 else numbers[0]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return (b"one", b"another")[choice]
    return _VALUES.get(field.cpp_type, _NUMBERS)[choice]
