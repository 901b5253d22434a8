# SPDX-License-Identifier: Apache-2.0
"""The folders that a build leaves in its working directory. Standard library only."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError

TOKENIZER = Path("tokenizer")
TASK = Path("task")
PROOF = Path("proof")

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def create_folders(folders: Sequence[Path]) -> None:
    """Make the artefact's folders in the working directory.

    Raises:
        BuildError: a folder exists already. Results of two builds must not mix.
    """
    for folder in folders:
        if folder.exists():
            raise BuildError(
                f"the working directory {Path.cwd()} already holds {folder}",
                remedy="Start the build in an empty folder.",
            )
        folder.mkdir()


def copy_tokenizer(source: Path) -> None:
    """Copy the tokenizer files of a checkpoint into tokenizer/."""
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, TOKENIZER / name)


def grant_read_access(folder: Path) -> None:
    """Let everyone who may read `folder` read its files.

    safetensors creates files that only their owner reads. A server in a container runs as another
    user.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode | (path.parent.stat().st_mode & 0o444))


def list_files(parts: Sequence[Path]) -> list[dict[str, Any]]:
    """Return path, size in bytes and SHA-256 of every file of the artefact, sorted by path.

    `parts`: the folders of the artefact and its single files.
    """
    files = (path for part in parts for path in (part, *part.rglob("*")) if path.is_file())
    return [
        {"path": path.as_posix(), "size": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(files)
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
