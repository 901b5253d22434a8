# SPDX-License-Identifier: Apache-2.0
"""The programs that draw the pages' pictures are run by hand and rarely: at least they start."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[3] / "docs" / "images"


@pytest.mark.parametrize("program", sorted(path.name for path in IMAGES.glob("*_picture.py")))
def test_a_program_finds_what_it_imports(program: str) -> None:
    """Each has a main(), and its picture lies beside it."""
    assert callable(runpy.run_path(str(IMAGES / program))["main"])
    assert (IMAGES / program.replace("_picture.py", ".svg")).is_file()
