# SPDX-License-Identifier: Apache-2.0
"""The hub cache on this machine, in the layout of huggingface_hub, which other tools share.

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

MAIN_BRANCH = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
# Valid names of owners and models on the hub; never a path such as ../name.
_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}(?<![.-])")
_WEIGHTS = {".safetensors", ".onnx", ".bin"}


@dataclass(frozen=True)
class HubModel:
    """A model on the hub: `Qwen/Qwen2.5-0.5B-Instruct` at a branch, tag or commit."""

    repo: str
    revision: str = MAIN_BRANCH

    def __str__(self) -> str:
        """Repository and revision for messages; the branch `main` is omitted."""
        return self.repo if self.revision == MAIN_BRANCH else f"{self.repo} at {self.revision}"

    @property
    def lock_key(self) -> str:
        """Key in tritonctl.lock."""
        return self.repo if self.revision == MAIN_BRANCH else f"{self.repo}@{self.revision}"

    @property
    def folder(self) -> Path:
        """The model's folder in the hub cache."""
        return hub_cache() / f"models--{self.repo.replace('/', '--')}"

    def snapshot(self, commit: str) -> Path:
        """Return the folder of the files at a commit; it may not exist yet."""
        return self.folder / "snapshots" / commit

    @property
    def records(self) -> Path:
        """Folder with the expected file sizes of each fetched commit."""
        return cache_folder() / "hub" / self.folder.name

    def known_commit(self) -> str | None:
        """Return the revision's commit from local data, without asking the hub."""
        if COMMIT.fullmatch(self.revision):
            return self.revision
        try:
            commit = (self.folder / "refs" / self.revision).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            commit = self._latest_fetched_commit() or ""
        return commit if COMMIT.fullmatch(commit) else None

    def _latest_fetched_commit(self) -> str | None:
        """Return the commit whose fetch of this revision started last; it may be incomplete."""
        fetch_records = [
            file
            for file in self.records.glob("*.json")
            if read_record(file).get("revision") == self.revision
        ]
        return (
            max(fetch_records, key=lambda file: file.stat().st_mtime).stem
            if fetch_records
            else None
        )

    def has_any_file(self, commit: str) -> bool:
        """Whether any file of a commit has been fetched, even partially."""
        parts = (self.folder / "blobs").glob("*.incomplete")
        return self.snapshot(commit).is_dir() or any(map(_size, parts))

    def missing_files(self, commit: str) -> list[str]:
        """Return the names of a commit's files that are known to be missing or incomplete."""
        snapshot, record = self.snapshot(commit), read_record(self.records / f"{commit}.json")
        expected = record.get("files")
        if isinstance(expected, dict):
            return [name for name, size in expected.items() if _size(snapshot / name) != size]
        # Another tool downloaded it: infer the expected files from the existing ones.
        return [
            name
            for name in dict.fromkeys(_expected_files(snapshot))
            if _size(snapshot / name) is None
        ]


def hub_cache() -> Path:
    """Return the hub cache: from HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME, in this order."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if chosen := os.environ.get(name):
            return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or Path(caches, "huggingface")
    return Path(home).expanduser() / "hub"


def is_hub_id(text: str) -> bool:
    """Whether a text has the form OWNER/NAME."""
    return _ID.fullmatch(text) is not None


def _expected_files(snapshot: Path) -> Iterator[str]:
    """Yield the expected files of a snapshot: its entries, weights, and the shards of an index."""
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
