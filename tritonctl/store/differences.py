# SPDX-License-Identifier: Apache-2.0
"""Differences between two entries, field by field. A missing field counts as null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.store.files import StoredFile

Change = tuple[str, Any, Any]  # dotted name, old value, new value


@dataclass(frozen=True)
class FieldDifference:
    """One field whose values differ between two entries."""

    field: str  # dotted name
    old: Any  # None: missing or null
    new: Any  # None: missing or null

    @property
    def label(self) -> str:
        """The field as a table shows it."""
        return self.field

    @property
    def change(self) -> float | None:
        """`new - old`; None unless both are numbers."""
        values = (self.old, self.new)
        if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
            return None
        return float(self.new - self.old)

    @property
    def remark(self) -> str:
        """The last column of a table: the signed change of a number."""
        return "" if self.change is None else f"{self.change:+.6g}"


def compare_fields(name: str, first: Any, second: Any) -> Iterator[Change]:
    """Yield the values that differ, by dotted name below `name`."""
    if first == second:
        return
    first_fields, second_fields = _fields(first), _fields(second)
    if first_fields is None and second_fields is None:
        yield name, first, second
        return
    if first_fields is None and first not in (None, []):
        yield name, first, None
    if second_fields is None and second not in (None, []):
        yield name, None, second
    first_fields, second_fields = first_fields or {}, second_fields or {}
    for key in dict.fromkeys([*first_fields, *second_fields]):
        field = f"{name}.{key}" if name else key
        yield from compare_fields(field, first_fields.get(key), second_fields.get(key))


def flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Flatten `value` into (dotted name, scalar or list) pairs."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value


def compare_files(
    first: Mapping[str, StoredFile], second: Mapping[str, StoredFile]
) -> Iterator[Change]:
    """Compare files by size, and by SHA-256 where the sizes are equal."""
    for path in dict.fromkeys([*first, *second]):
        pair = (first.get(path), second.get(path))
        sizes = [file and file.size for file in pair]
        digests = [file and file.sha256 for file in pair]
        if sizes[0] != sizes[1]:
            yield f"{path}.size", sizes[0], sizes[1]
        elif digests[0] != digests[1]:
            yield f"{path}.sha256", digests[0], digests[1]


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a mapping, or a list of records by name or position; else None."""
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return {str(record.get("name", at)): record for at, record in enumerate(value)}
    return None
