# SPDX-License-Identifier: Apache-2.0
"""A repository as people have them is clean; each mistake planted in it is found in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.checks.planted.assembled import repository
from tests.unit.checks.planted.mistakes import MARK, MISTAKES, Planted
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import ExampleFile
from tritonctl.checks.repository import CheckTarget

TARGET = CheckTarget("2.51.0")

Place = tuple[str, str, int, int]


def reported(folder: Path) -> list[Place]:
    """Rule, file, line and column of each finding."""
    return [
        (f.rule, Path(f.path).relative_to(folder).as_posix(), f.line, f.column)
        for f in check_repository(folder, TARGET).findings
    ]


def planted(mistake: Planted) -> tuple[dict[str, str | ExampleFile], Place]:
    """The repository with the mistake in it, and the finding that there must be."""
    files = repository()
    marked = mistake.new or ""
    if mistake.link is not None:
        files[mistake.file] = ExampleFile(link=mistake.link)
    elif mistake.new is None:
        del files[mistake.file]
    elif not mistake.old:
        files[mistake.file] = marked
    else:
        text = files[mistake.file]
        assert isinstance(text, str)
        assert mistake.old in text
        files[mistake.file] = text.replace(mistake.old, marked, 1)
    if mistake.at is not None:
        return files, (mistake.rule, mistake.at, 1, 1)
    name, piece = mistake.seen or (mistake.file, MARK)
    text = files[name]
    assert isinstance(text, str)
    start = text.index(MARK if MARK in text else piece.replace(MARK, "")) + piece.index(MARK)
    files[name] = text.replace(MARK, "")
    before = text[:start]
    return files, (mistake.rule, name, before.count("\n") + 1, start - before.rfind("\n"))


def test_the_repository_is_clean(tmp_path: Path) -> None:
    """Nothing to say, not even advice."""
    assert reported(put(tmp_path, repository())) == []


def test_there_are_many() -> None:
    """At least sixty, of rules of every kind."""
    assert len(MISTAKES) >= 60
    assert len({mistake.rule for mistake in MISTAKES}) >= 45


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda n: f"{MISTAKES[n].rule}-{n}")
def test_each_mistake_is_found(number: int, tmp_path: Path) -> None:
    """It, and nothing else: rule, file, line and column."""
    files, expected = planted(MISTAKES[number])
    assert reported(put(tmp_path, files)) == [expected]
