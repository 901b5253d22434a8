# SPDX-License-Identifier: Apache-2.0
"""Finds the commit that a checkpoint was downloaded or checked out at."""

from __future__ import annotations

import re
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_CHAIN = 3


def revision_of(checkpoint: Path) -> str | None:
    """The commit that a checkpoint was downloaded or checked out at; None if nothing says so.

    Read from a hub's cache (`snapshots/<commit>`), from what `hf download --local-dir` leaves
    beside the files (`.cache/huggingface/download/*.metadata`, its first line), or from a git
    clone whose top is the folder. Content counts by its hash; this is for people.
    """
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        return folder.name
    return _downloaded(folder) or _checked_out(folder / ".git")


def _downloaded(folder: Path) -> str | None:
    notes = sorted((folder / ".cache" / "huggingface" / "download").glob("**/*.metadata"))
    commits = {commit for note in notes if (commit := _commit(_text(note).split("\n", 1)[0]))}
    return commits.pop() if len(commits) == 1 else None  # files of several are of none


def _checked_out(git: Path) -> str | None:
    """Follow HEAD; packed references too."""
    name = "HEAD"
    for _ in range(_LONGEST_CHAIN):
        text = _text(git / name).strip()
        if not text.startswith("ref: "):
            return _commit(text) or _packed(git, name)
        name = text.removeprefix("ref: ")
    return None


def _packed(git: Path, name: str) -> str | None:
    for line in _text(git / "packed-refs").splitlines():
        commit, _, reference = line.partition(" ")
        if reference == name:
            return _commit(commit)
    return None


def _commit(text: str) -> str | None:
    return text if _COMMIT.fullmatch(text) else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
