# SPDX-License-Identifier: Apache-2.0
"""Paths that reach a shell: one word each, or a link to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.runtimes.embedded.shell_safe_paths import ShellSafePaths

AWKWARD = ["a b", "a;b", "$(b)", "a&b", "a'b", 'a"b', "a(b)", "a*", "größe", "a\nb", "~b"]


@pytest.mark.parametrize("name", AWKWARD)
def test_an_awkward_path_gets_a_link(tmp_path: Path, name: str) -> None:
    """It leads to the same folder, from the folder where the server runs; also the next time."""
    place = tmp_path / name
    place.mkdir()
    for _ in range(2):
        assert ShellSafePaths(tmp_path / "paths").shell_safe(place, "repository") == "repository"
        assert (tmp_path / "paths" / "repository").samefile(place)


def test_any_other_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing is linked that need not be."""
    place = tmp_path / "model_repository-2.0"
    assert ShellSafePaths(tmp_path / "paths").shell_safe(place, "repository") == str(place)
    assert list((tmp_path / "paths").iterdir()) == []
