# SPDX-License-Identifier: Apache-2.0
"""Staging, publishing and removing folders of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.store.folders import publish_folder, remove_folder, staging_folder


def _fill(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text(text, encoding="utf-8")
    return folder


def test_staging_starts_empty_and_leaves_nothing(tmp_path: Path) -> None:
    """The leftover of a killed command is removed; a failed one leaves no folder."""
    hidden = _fill(tmp_path / ".staging-1", "leftover")
    contents: list[Path] = []

    def fail() -> None:
        with staging_folder(hidden) as staging:
            contents.extend(staging.iterdir())
            _fill(staging, "partial")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert contents == []
    assert not hidden.exists()


def test_a_staged_folder_is_published(tmp_path: Path) -> None:
    """It appears under its final name, and the hidden one is gone."""
    with staging_folder(tmp_path / ".staging-1") as staging:
        publish_folder(_fill(staging, "new"), tmp_path / "store" / "1")
    assert (tmp_path / "store" / "1" / "file").read_text(encoding="utf-8") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_published_folder_replaces_the_older_one(tmp_path: Path) -> None:
    """Only the new content remains."""
    final = _fill(tmp_path / "1", "old")
    publish_folder(_fill(tmp_path / ".staging-1", "new"), final)
    assert (final / "file").read_text(encoding="utf-8") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_read_only_folder_is_removed_after_a_killed_removal(tmp_path: Path) -> None:
    """Sealed folders go; bytes with another hard link are not freed."""
    _fill(tmp_path / ".removed-1", "left by a killed command")
    folder = _fill(tmp_path / "1", "12345")
    (folder / "inner").mkdir()
    (tmp_path / "linked").write_text("shared", encoding="utf-8")
    (folder / "inner" / "linked").hardlink_to(tmp_path / "linked")
    for path in (folder / "inner", folder):
        path.chmod(0o555)
    assert remove_folder(folder) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["linked"]
