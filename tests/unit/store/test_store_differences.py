# SPDX-License-Identifier: Apache-2.0
"""Fields and files that differ between two entries of a store."""

from __future__ import annotations

from typing import Any

import pytest

from tritonctl.store.differences import Change, FieldDifference, compare_fields, compare_files
from tritonctl.store.files import StoredFile


@pytest.mark.parametrize(
    ("left", "right", "changes"),
    [
        ({"a": 1, "b": None}, {"a": 1}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [("x.a.b", 1, 2)]),
        ({"a": {"b": 1}}, None, [("x.a.b", 1, None)]),
        ({"a": 5}, {"a": {"b": 1}}, [("x.a", 5, None), ("x.a.b", None, 1)]),
        ({"a": [1, 2]}, {"a": [2]}, [("x.a", [1, 2], [2])]),
        (
            [{"name": "ids", "dims": [1]}, {"name": "mask"}],
            [{"name": "mask"}, {"name": "ids", "dims": [2]}],
            [("x.ids.dims", [1], [2])],
        ),
        ([], [{"value": 1}], [("x.0.value", None, 1)]),
    ],
)
def test_fields(left: Any, right: Any, changes: list[Change]) -> None:
    """Absent equals null; records of a list are compared by name, else by position."""
    assert list(compare_fields("x", left, right)) == changes


def test_files() -> None:
    """Sizes differ, digests differ, or one side lacks the file."""

    def file(size: int, digit: str) -> StoredFile:
        return StoredFile(path="f", size=size, sha256=digit * 64)

    left = {"same": file(1, "a"), "size": file(1, "a"), "hash": file(1, "a"), "gone": file(1, "a")}
    right = {"same": file(1, "a"), "size": file(3, "b"), "hash": file(1, "b"), "new": file(2, "a")}
    assert list(compare_files(left, right)) == [
        ("size.size", 1, 3),
        ("hash.sha256", "a" * 64, "b" * 64),
        ("gone.size", 1, None),
        ("new.size", None, 2),
    ]


def test_change_of_numbers() -> None:
    """Numbers have a signed change; booleans and text do not."""
    assert FieldDifference("a", 1, 3.5).remark == "+2.5"
    assert FieldDifference("a", True, 2).change is None
    assert FieldDifference("a", "1", 2).remark == ""
