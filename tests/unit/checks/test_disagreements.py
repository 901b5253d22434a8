# SPDX-License-Identifier: Apache-2.0
"""Repositories over which server and checker once disagreed: what the server did stays found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.agreement import TARGET, Verdict, load_errors
from tests.differential.drafts import MAIN, PYTHON, Case
from tests.differential.pinned import Pinned, as_pinned, pinned
from tests.differential.pool import pool_files
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import ExampleFile

ALL = pinned()


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_the_same_verdict(one: Pinned) -> None:
    """An error if it was refused, none if it was loaded."""
    errors = load_errors(one.case)
    assert bool(errors) == bool(one.refusal), one.refusal or errors


def test_the_pool_is_clean(tmp_path: Path) -> None:
    """What random ensembles are made of has no errors: these would be told of each of them."""
    folder = put(tmp_path, pool_files())
    assert not check_repository(folder, TARGET).failed


def test_written_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict that is pinned comes back as it was, bytes that are no text, too."""
    files: dict[str, str | ExampleFile] = {
        f"{MAIN}/config.pbtxt": ExampleFile(b'name: "case_m" # \xff\n'),
        f"{MAIN}/1/model.py": PYTHON,
    }
    case = Case(("x",), files)
    monkeypatch.setattr("tests.differential.pinned.FOLDER", tmp_path)
    (tmp_path / "x.txt").write_bytes(as_pinned(Verdict(case.numbered(3), "case3_m: no", ()), 3))
    assert pinned() == [Pinned("x", case, "case_m: no")]
