# SPDX-License-Identifier: Apache-2.0
"""The folders a build leaves in its working directory. Standard library only."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from checkpoint import Checkpoint
from problems import BuildError

ENGINE = Path("engine")
TOKENIZER = Path("tokenizer")

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def prepare() -> None:
    """Make the artefact's folders in the working directory.

    Raises:
        BuildError: one is there already: results of two builds must not mix.
    """
    for folder in (ENGINE, TOKENIZER):
        if folder.exists():
            raise BuildError(
                f"the working directory {Path.cwd()} holds a {folder} already",
                remedy="Start the build in an empty folder.",
            )
        folder.mkdir()


def write_companions(checkpoint: Checkpoint) -> None:
    """Write the configuration files beside the engine, and the tokenizer's folder."""
    shutil.copyfile(checkpoint.folder / "config.json", ENGINE / "config.json")
    for name in _TOKENIZER_FILES:
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, TOKENIZER / name)
    # Always written, and only ids: without an eos_token_id here the pipeline adds -1 to every
    # request's stop tokens and refuses it, and a penalty or temperature meant for chat would
    # otherwise creep into requests that ask for greedy decoding.
    ids = {
        "bos_token_id": checkpoint.bos_token_id,
        "eos_token_id": list(checkpoint.eos_token_ids),
        "pad_token_id": checkpoint.pad_token_id,
    }
    text = json.dumps({name: value for name, value in ids.items() if value is not None}, indent=2)
    (ENGINE / "generation_config.json").write_text(text + "\n", encoding="utf-8")


def files() -> list[dict[str, Any]]:
    """Return path, size in bytes and SHA-256 of every file of the artefact, sorted by path."""
    found = (path for folder in (ENGINE, TOKENIZER) for path in folder.rglob("*") if path.is_file())
    return [
        {"path": path.as_posix(), "size": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(found)
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
