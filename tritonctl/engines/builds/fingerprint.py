# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a build: a hash of all its inputs. Equal fingerprints mean equal engines."""

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
from typing import Any, Self

from tritonctl.engines.builds.catalog import Builder, BuilderStage
from tritonctl.engines.builds.contract import BuildRequest
from tritonctl.engines.builds.option_files import option_files
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import as_host_error, read_record, sha256, write_atomically
from tritonctl.host.progress import Progress, Silent
from tritonctl.host.requirements import LOCK_SUFFIX, lock_digest, lock_of
from tritonctl.host.units import human_bytes
from tritonctl.project.schema import Project

_SHOWN_BYTES = 1 << 30  # reading this takes a second or more
# onnx.proto: TensorProto.external_data is a StringStringEntryProto {key: "location", value: PATH}.
_LOCATION_KEY = re.compile(rb"\x0a\x08location\x12")
_MAX_PATH_BYTES = 4096


class FileHashes:
    """SHA-256 of files, cached by size, inode, mtime and ctime (ns).

    A checkpoint of 100 GB is read once instead of at every command. ctime is set by the kernel,
    while `cp -p` and archives preserve old mtimes.
    """

    def __init__(self, cache_file: Path, progress: Progress | None = None) -> None:
        """cache_file: keeps digests between commands. progress: shows large files."""
        self._cache_file = cache_file
        self._progress = progress or Silent()
        self._digests: dict[str, str] = read_record(cache_file)
        self._changed = False

    @classmethod
    def of_project(cls, project: Project, progress: Progress | None = None) -> Self:
        """The hashes that a project caches."""
        return cls(project.state / "hashes.json", progress)

    def of(self, file: Path) -> str:
        """Return the hex digest of a file's content."""
        status = file.stat()
        times = f"{status.st_mtime_ns}|{status.st_ctime_ns}"
        key = f"{file.resolve()}|{status.st_size}|{status.st_ino}|{times}"
        if key not in self._digests:
            self._digests[key] = self._hash(file, status.st_size)
            self._changed = True
        return self._digests[key]

    def _hash(self, file: Path, size: int) -> str:
        if size < _SHOWN_BYTES:
            return sha256(file)
        with self._progress.step(f"Hashing {file.name} ({human_bytes(size)})"):
            return sha256(file)

    def save(self) -> None:
        """Write new digests to the cache file."""
        if self._changed:
            write_atomically(self._cache_file, json.dumps(self._digests, indent=0))


def folder_hash(folder: Path, hashes: FileHashes) -> str:
    """Return a hex digest over names and contents of all files except bytecode and hidden files.

    A lock of requirements counts by its versions: other hashes of these versions repeat no build.
    """
    digest = hashlib.sha256()
    for file in sorted(_content_files(folder)):
        content = lock_digest(file) if _is_lock(file) else hashes.of(file)
        digest.update(f"{file.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def _is_lock(file: Path) -> bool:
    requirements = file.with_suffix(".txt")
    return file.suffix == LOCK_SUFFIX and requirements.is_file() and lock_of(requirements) == file


def _content_files(folder: Path) -> list[Path]:
    files = []
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = [n for n in subfolders if not n.startswith((".", "__pycache__"))]
        files += [Path(parent) / name for name in names if not name.startswith(".")]
    return [file for file in files if _is_content(file)]


def _is_content(file: Path) -> bool:
    """Whether it is a regular file. Raises ConfigurationError for a broken link."""
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except FileNotFoundError as error:  # a hub cache consists of links
        raise ConfigurationError(
            f"{file} is a link to {file.readlink()}, which does not exist",
            remedy="download the folder again and let it finish, or remove the link",
        ) from error


@dataclass(frozen=True)
class Fingerprint:
    """The digest of a build and of its inputs (hex SHA-256)."""

    digest: str
    inputs: dict[str, str]  # by name


def build_fingerprint(
    request: BuildRequest,
    builder: Builder,
    stage: BuilderStage,
    hashes: FileHashes,
    source: str | None = None,
) -> Fingerprint:
    """Hash request, builder files, checkpoint, prompts, samples and machine, but no paths.

    `source` is the previous stage's fingerprint, which covers the checkpoint. Fields that the
    stage ignores are left out. Raises HostError when a file cannot be read, ConfigurationError
    for an option that names a missing file.
    """
    inputs = _inputs(request, builder, stage, hashes)
    if source:
        inputs["source"] = source
    parts = {
        "request": settings_of(request, stage),
        "inputs": inputs,
        "machine": platform.machine(),
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return Fingerprint(digest, inputs)


def _inputs(
    request: BuildRequest, builder: Builder, stage: BuilderStage, hashes: FileHashes
) -> dict[str, str]:
    checkpoint = Path(request.checkpoint)
    inputs = {}
    with as_host_error(checkpoint):
        inputs["checkpoint"] = content_hash(checkpoint, hashes)
        if (tokenizer := checkpoint / "tokenizer.json").is_file():
            inputs["tokenizer"] = hashes.of(tokenizer)
        if request.evaluation:
            inputs["prompts"] = hashes.of(Path(request.evaluation.prompts))
        if request.calibration:
            inputs["calibration"] = content_hash(Path(request.calibration.data), hashes)
        for option, path in option_files(stage, request.options).items():
            inputs[f"options.{option}"] = content_hash(path, hashes)
        for folder in builder.owner(stage).folders:
            inputs[f"builder.{folder.name}"] = folder_hash(folder, hashes)
    return {name: digest for name, digest in inputs.items() if name not in stage.ignores}


def content_hash(path: Path, hashes: FileHashes) -> str:
    """Return the hex digest of a folder, or of a file and its external data files."""
    if path.is_dir():
        return folder_hash(path, hashes)
    digest = hashlib.sha256(hashes.of(path).encode())
    for data_file in external_data_files(path):
        name = data_file.relative_to(path.parent).as_posix()
        digest.update(f"{name}\0{hashes.of(data_file)}\n".encode())
    return digest.hexdigest() if path.suffix == ".onnx" else hashes.of(path)


def external_data_files(file: Path) -> list[Path]:
    """Return the external data files of an ONNX file: files below its folder that tensors name.

    Other files there are ignored: the folder may be a home folder.
    """
    if file.suffix != ".onnx" or not file.stat().st_size:
        return []
    with (
        file.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        names = {
            _string_at(content, position)
            for position in [match.end() for match in _LOCATION_KEY.finditer(content)]
        }
    relative_paths = [PurePosixPath(name) for name in names if name]
    data_files = {
        file.parent / path
        for path in relative_paths
        if not path.is_absolute() and ".." not in path.parts
    }
    return sorted(
        data_file
        for data_file in data_files
        if os.path.lexists(data_file) and _is_content(data_file)
    )


def _string_at(content: mmap.mmap, position: int) -> str | None:
    """Read a length-prefixed protobuf string; None if it cannot be a path."""
    head = content[position : position + 2]
    if len(head) < 2:  # noqa: PLR2004 - two bytes hold 14 bits, longer than a path may be
        return None
    has_second_byte = head[0] & 0x80
    size = head[0] & 0x7F | (head[1] << 7 if has_second_byte else 0)
    start = position + (2 if has_second_byte else 1)
    text = content[start : start + size]
    if not text or size > _MAX_PATH_BYTES or b"\0" in text:
        return None
    return text.decode("utf-8", errors="surrogateescape")


def settings_of(request: BuildRequest, stage: BuilderStage) -> dict[str, Any]:
    """Return the request without paths (their content is hashed) and without ignored fields."""
    settings = request.model_dump(by_alias=True, mode="json")
    paths = ("checkpoint", "source", "evaluation.prompts", "calibration.data")
    for dotted in (*paths, *stage.ignores):
        *parents, last = dotted.split(".")
        holder: Any = settings
        for parent in parents:
            holder = holder.get(parent) or {}
        holder.pop(last, None)
    return settings
