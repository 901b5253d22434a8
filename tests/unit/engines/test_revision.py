# SPDX-License-Identifier: Apache-2.0
"""The commit that a checkpoint was fetched at, wherever the folder tells."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tritonctl.engines.builds.revision import revision_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = COMMIT[::-1]


def note(folder: Path, name: str, commit: str) -> None:
    file = folder / ".cache" / "huggingface" / "download" / f"{name}.metadata"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{commit}\netag\n1700000000.0\n", encoding="utf-8")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_folder_of_the_hub_s_cache(tmp_path: Path) -> None:
    """The folder's own name."""
    folder = tmp_path / "models--org--name" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    assert revision_of(folder) == COMMIT


def test_a_local_download(tmp_path: Path) -> None:
    """What `hf download` notes; for a single file, too."""
    note(tmp_path, "config.json", COMMIT)
    note(tmp_path, "model.safetensors", COMMIT)
    assert revision_of(tmp_path) == COMMIT
    assert revision_of(tmp_path / "model.onnx") == COMMIT


def test_files_of_two_revisions_are_of_none(tmp_path: Path) -> None:
    """A folder that was updated halfway."""
    note(tmp_path, "config.json", COMMIT)
    note(tmp_path, "model.safetensors", OTHER)
    assert revision_of(tmp_path) is None


def test_a_clone(tmp_path: Path) -> None:
    """A branch, the same with packed references, a detached head."""
    git(tmp_path, "init", "--quiet")
    assert revision_of(tmp_path) is None
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "x")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert revision_of(tmp_path) == commit
    git(tmp_path, "pack-refs", "--all")
    assert revision_of(tmp_path) == commit
    git(tmp_path, "checkout", "--quiet", "--detach")
    assert revision_of(tmp_path) == commit


def test_nothing_says_so(tmp_path: Path) -> None:
    """A branch's name is no commit, an absent folder has none."""
    note(tmp_path, "config.json", "main")
    assert revision_of(tmp_path) is None
    assert revision_of(tmp_path / "absent") is None
