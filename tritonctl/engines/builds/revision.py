# SPDX-License-Identifier: Apache-2.0
"""Finds the commit that a checkpoint was downloaded or checked out at."""

from __future__ import annotations

import re
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_REF_CHAIN = 3


def revision_of(checkpoint: Path) -> str | None:
    """Return the commit of a downloaded or checked-out checkpoint; None if unknown.

    Sources: a hub cache (`snapshots/<commit>`), the first line of
    `.cache/huggingface/download/*.metadata` from `hf download --local-dir`, or a git clone whose
    top is the folder. The commit is informative; the fingerprint hashes the content.
    """
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        return folder.name
    return _downloaded_commit(folder) or _checked_out_commit(folder / ".git")


def _downloaded_commit(folder: Path) -> str | None:
    notes = sorted((folder / ".cache" / "huggingface" / "download").glob("**/*.metadata"))
    commits = {
        commit for note in notes if (commit := _commit_or_none(_read_text(note).split("\n", 1)[0]))
    }
    return commits.pop() if len(commits) == 1 else None  # files of several commits: unknown


def _checked_out_commit(git: Path) -> str | None:
    """Follow HEAD, through packed references too."""
    name = "HEAD"
    for _ in range(_MAX_REF_CHAIN):
        text = _read_text(git / name).strip()
        if not text.startswith("ref: "):
            return _commit_or_none(text) or _packed_commit(git, name)
        name = text.removeprefix("ref: ")
    return None


def _packed_commit(git: Path, name: str) -> str | None:
    for line in _read_text(git / "packed-refs").splitlines():
        commit, _, reference = line.partition(" ")
        if reference == name:
            return _commit_or_none(commit)
    return None


def _commit_or_none(text: str) -> str | None:
    return text if _COMMIT.fullmatch(text) else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
