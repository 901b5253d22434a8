# SPDX-License-Identifier: Apache-2.0
"""Equal fingerprint, same engine: the hash of everything a build depends on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path

from tritonctl.engines.catalog import Builder
from tritonctl.engines.contract import BuildRequest
from tritonctl.host import explained, write_atomically

_BLOCK = 1 << 20


class FileHashes:
    """SHA-256 of files, remembered by size, inode and times of modification and of change (ns).

    A checkpoint of 100 GB is then read once, not at every command. The time of change is the
    kernel's own: `cp -p` and archives bring old modification times with them.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._known: dict[str, str] = _read_memory(memory)
        self._changed = False

    def of(self, file: Path) -> str:
        """Hex digest of a file's content."""
        status = file.stat()
        times = f"{status.st_mtime_ns}|{status.st_ctime_ns}"
        key = f"{file.resolve()}|{status.st_size}|{status.st_ino}|{times}"
        if key not in self._known:
            self._known[key] = sha256(file)
            self._changed = True
        return self._known[key]

    def save(self) -> None:
        """Keep what was learned for the next command."""
        if self._changed:
            write_atomically(self._memory, json.dumps(self._known, indent=0))


def _read_memory(memory: Path) -> dict[str, str]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent or damaged: everything is hashed again
        return {}
    return known if isinstance(known, dict) else {}


def sha256(file: Path) -> str:
    """Hex SHA-256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def folder_hash(folder: Path, hashes: FileHashes) -> str:
    """Hex digest over names and contents of all files, bytecode and hidden files left out."""
    digest = hashlib.sha256()
    for file in sorted(_content(folder)):
        digest.update(f"{file.relative_to(folder).as_posix()}\0{hashes.of(file)}\n".encode())
    return digest.hexdigest()


def _content(folder: Path) -> list[Path]:
    files = []
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = [n for n in subfolders if not n.startswith((".", "__pycache__"))]
        files += [Path(parent) / name for name in names if not name.startswith(".")]
    return files


def build_fingerprint(request: BuildRequest, builder: Builder, memory: Path) -> str:
    """Hex digest: request, builder files, checkpoint, prompts, machine. Paths do not count.

    Raises HostError when a file cannot be read.
    """
    hashes = FileHashes(memory)
    parts = request.model_dump(by_alias=True, mode="json")
    with explained(Path(request.checkpoint)):
        parts["checkpoint"] = folder_hash(Path(request.checkpoint), hashes)
        if request.evaluation:
            parts["evaluation"]["prompts"] = hashes.of(Path(request.evaluation.prompts))
        parts["builder"] = [folder_hash(folder, hashes) for folder in builder.folders]
    parts["machine"] = platform.machine()
    hashes.save()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
