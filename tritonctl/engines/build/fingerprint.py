# SPDX-License-Identifier: Apache-2.0
"""Equal fingerprint, same engine: the hash of everything a build depends on."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import platform
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tritonctl.engines.build.catalog import Builder, Stage
from tritonctl.engines.build.contract import BuildRequest
from tritonctl.engines.build.given_files import given_files
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import explained, read_record, write_atomically

_BLOCK = 1 << 20
# onnx.proto: TensorProto.external_data is a StringStringEntryProto {key: "location", value: PATH}.
_LOCATION = re.compile(rb"\x0a\x08location\x12")
_LONGEST_PATH = 4096


class FileHashes:
    """SHA-256 of files, remembered by size, inode and times of modification and of change (ns).

    A checkpoint of 100 GB is then read once, not at every command. The time of change is the
    kernel's own: `cp -p` and archives bring old modification times with them.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._known: dict[str, str] = read_record(memory)
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
    return [file for file in files if _is_content(file)]


def _is_content(file: Path) -> bool:
    """Whether it is a file that can be read to its end. Raises ConfigurationError."""
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except FileNotFoundError as error:  # a hub's cache is made of links
        raise ConfigurationError(
            f"{file} is a link to {file.readlink()}, which does not exist",
            remedy="download the folder again and let it finish, or remove the link",
        ) from error


@dataclass(frozen=True)
class Fingerprint:
    """The digest of a build, and the digests of what went into it (hex SHA-256, by name)."""

    digest: str
    inputs: dict[str, str]


def build_fingerprint(
    request: BuildRequest, builder: Builder, stage: Stage, memory: Path, source: str | None = None
) -> Fingerprint:
    """Of request, builder files, checkpoint, prompts, samples, machine. Paths do not count.

    `source`: fingerprint of the stage before, which stands for the checkpoint, too. What the stage
    ignores does not count. Raises HostError when a file cannot be read, ConfigurationError for
    an option that names none.
    """
    hashes = FileHashes(memory)
    inputs = _inputs(request, builder, stage, hashes)
    if source:
        inputs["source"] = source
    hashes.save()
    parts = {
        "request": settings_of(request, stage),
        "inputs": inputs,
        "machine": platform.machine(),
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return Fingerprint(digest, inputs)


def _inputs(
    request: BuildRequest, builder: Builder, stage: Stage, hashes: FileHashes
) -> dict[str, str]:
    checkpoint = Path(request.checkpoint)
    inputs = {}
    with explained(checkpoint):
        inputs["checkpoint"] = content_hash(checkpoint, hashes)
        if (tokenizer := checkpoint / "tokenizer.json").is_file():
            inputs["tokenizer"] = hashes.of(tokenizer)
        if request.evaluation:
            inputs["prompts"] = hashes.of(Path(request.evaluation.prompts))
        if request.calibration:
            inputs["calibration"] = content_hash(Path(request.calibration.data), hashes)
        for option, path in given_files(stage, request.options).items():
            inputs[f"options.{option}"] = content_hash(path, hashes)
        for folder in builder.owner(stage).folders:
            inputs[f"builder.{folder.name}"] = folder_hash(folder, hashes)
    return {name: digest for name, digest in inputs.items() if name not in stage.ignores}


def content_hash(path: Path, hashes: FileHashes) -> str:
    """Hex digest of a folder, or of a file and of the files beside it that it names."""
    if path.is_dir():
        return folder_hash(path, hashes)
    digest = hashlib.sha256(hashes.of(path).encode())
    for other in named_in(path):
        name = other.relative_to(path.parent).as_posix()
        digest.update(f"{name}\0{hashes.of(other)}\n".encode())
    return digest.hexdigest() if path.suffix == ".onnx" else hashes.of(path)


def named_in(file: Path) -> list[Path]:
    """Where an ONNX file keeps its weights outside: files below its folder that its tensors name.

    What else is below the folder is not looked at: it may be a home folder.
    """
    if file.suffix != ".onnx" or not file.stat().st_size:
        return []
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
        names = {_text_at(text, at) for at in [one.end() for one in _LOCATION.finditer(text)]}
    below = [PurePosixPath(name) for name in names if name]
    others = {
        file.parent / path for path in below if not path.is_absolute() and ".." not in path.parts
    }
    return sorted(other for other in others if os.path.lexists(other) and _is_content(other))


def _text_at(content: mmap.mmap, at: int) -> str | None:
    """A protobuf string with its length in front; None for none that could be a path."""
    head = content[at : at + 2]
    if len(head) < 2:  # noqa: PLR2004 - two bytes hold 14 bits, longer than a path may be
        return None
    long = head[0] & 0x80
    size = head[0] & 0x7F | (head[1] << 7 if long else 0)
    start = at + (2 if long else 1)
    text = content[start : start + size]
    if not text or size > _LONGEST_PATH or b"\0" in text:
        return None
    return text.decode("utf-8", errors="surrogateescape")


def settings_of(request: BuildRequest, stage: Stage) -> dict[str, Any]:
    """The request without paths, whose content counts, and without what the stage ignores."""
    settings = request.model_dump(by_alias=True, mode="json")
    paths = ("checkpoint", "source", "evaluation.prompts", "calibration.data")
    for dotted in (*paths, *stage.ignores):
        *parents, last = dotted.split(".")
        holder: Any = settings
        for parent in parents:
            holder = holder.get(parent) or {}
        holder.pop(last, None)
    return settings
