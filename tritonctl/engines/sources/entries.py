# SPDX-License-Identifier: Apache-2.0
"""Refuse entries of a checkpoint that are no files of it, before anything reads them.

Opening a FIFO waits for ever, and a link may name any file of this user, whose content a build
would copy into the artefact.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tritonctl.engines.sources.cache import hub_cache
from tritonctl.errors import ConfigurationError

# Files that builds copy or read as text. Weights may be links: their content goes nowhere as it is.
_TEXTS = {".jinja", ".json", ".model", ".tiktoken", ".txt"}
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_foreign_entries(checkpoint: Path) -> None:
    """Check a checkpoint's folder, or its one file. Raises ConfigurationError."""
    roots = [os.path.realpath(root) for root in (checkpoint, _blobs(checkpoint), hub_cache())]
    for path in _entries(checkpoint):
        try:
            mode = path.stat().st_mode
        except OSError:  # a broken link: whoever needs the file reports it
            continue
        if kind := _KINDS.get(stat.S_IFMT(mode)):
            raise ConfigurationError(
                f"{path} is {kind}, not a file",
                remedy="remove it, or download the checkpoint again",
            )
        if path.suffix in _TEXTS and not _is_below(os.path.realpath(path), roots):
            raise ConfigurationError(
                f"{path} is a link out of the checkpoint, to {os.path.realpath(path)}",
                remedy="if that file belongs to the model, put a copy in place of the link: "
                f"`cp --remove-destination {os.path.realpath(path)} {path}`",
            )


def _blobs(checkpoint: Path) -> Path:
    """Return the folder to which the files of a snapshot of the hub link."""
    is_snapshot = checkpoint.parent.name == "snapshots"
    return checkpoint.parent.parent / "blobs" if is_snapshot else checkpoint


def _entries(checkpoint: Path) -> Iterator[Path]:
    if not checkpoint.is_dir():
        yield checkpoint
        return
    for folder, folders, names in os.walk(checkpoint):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names)


def _is_below(path: str, roots: list[str]) -> bool:
    return any(path == root or path.startswith(f"{root}{os.sep}") for root in roots)
