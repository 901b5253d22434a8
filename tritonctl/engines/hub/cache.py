# SPDX-License-Identifier: Apache-2.0
"""The hub's cache on this machine, as huggingface_hub lays it out and other tools share it.

`models--OWNER--NAME/` holds `refs/REVISION` (a commit), `snapshots/COMMIT/` (links) and `blobs/`.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonctl.host.files import cache_folder, read_record

MAIN = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
# What the hub lets people call themselves and their models; never a path such as ../name.
_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}(?<![.-])")
_WEIGHTS = {".safetensors", ".onnx", ".bin"}


@dataclass(frozen=True)
class HubModel:
    """A model of the hub: `Qwen/Qwen2.5-0.5B-Instruct` at a branch, tag or commit."""

    repo: str
    revision: str = MAIN

    def __str__(self) -> str:
        """As people write it; the branch that everything is on is left out."""
        return self.repo if self.revision == MAIN else f"{self.repo} at {self.revision}"

    @property
    def key(self) -> str:
        """What it is called in tritonctl.lock."""
        return self.repo if self.revision == MAIN else f"{self.repo}@{self.revision}"

    @property
    def folder(self) -> Path:
        """Everything that this machine has of it, in the hub's cache."""
        return hub_cache() / f"models--{self.repo.replace('/', '--')}"

    def snapshot(self, commit: str) -> Path:
        """Its files at a commit, where they are once they have been fetched."""
        return self.folder / "snapshots" / commit

    @property
    def records(self) -> Path:
        """Where it is written down what the fetch of a commit has to bring: sizes by file name."""
        return cache_folder() / "hub" / self.folder.name

    def known_commit(self) -> str | None:
        """The commit of its revision, as far as this machine knows without asking the hub."""
        if COMMIT.fullmatch(self.revision):
            return self.revision
        try:
            text = (self.folder / "refs" / self.revision).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            text = self._asked_last() or ""
        return text if COMMIT.fullmatch(text) else None

    def _asked_last(self) -> str | None:
        """The commit whose fetch began last: that of its revision, but not all is here."""
        begun = [
            file
            for file in self.records.glob("*.json")
            if read_record(file).get("revision") == self.revision
        ]
        return max(begun, key=lambda file: file.stat().st_mtime).stem if begun else None

    def begun(self, commit: str) -> bool:
        """Whether some of that commit is here: its files, or the beginning of one."""
        parts = (self.folder / "blobs").glob("*.incomplete")
        return self.snapshot(commit).is_dir() or any(map(_size, parts))

    def lacks(self, commit: str) -> list[str]:
        """Names of the files that a fetch of that commit has yet to bring, as far as is known."""
        snapshot, record = self.snapshot(commit), read_record(self.records / f"{commit}.json")
        expected = record.get("files")
        if isinstance(expected, dict):
            return [name for name, size in expected.items() if _size(snapshot / name) != size]
        # Downloaded by another tool: what the files say of each other.
        return [
            name for name in dict.fromkeys(_promised(snapshot)) if _size(snapshot / name) is None
        ]


def hub_cache() -> Path:
    """Where huggingface_hub keeps models: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, in this order."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if chosen := os.environ.get(name):
            return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or Path(caches, "huggingface")
    return Path(home).expanduser() / "hub"


def is_hub_id(text: str) -> bool:
    """Whether a text is OWNER/NAME."""
    return _ID.fullmatch(text) is not None


def _promised(snapshot: Path) -> Iterator[str]:
    """Files that a snapshot's own files tell of: what links name, the shards of an index."""
    files = [file for file in snapshot.rglob("*") if file.is_symlink() or file.is_file()]
    yield from (file.relative_to(snapshot).as_posix() for file in files)
    if not any(file.suffix in _WEIGHTS for file in files):
        yield "model.safetensors"
    for index in snapshot.glob("*.safetensors.index.json"):
        shards = read_record(index).get("weight_map")
        yield from map(str, shards.values() if isinstance(shards, dict) else ())


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None
