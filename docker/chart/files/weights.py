# SPDX-License-Identifier: Apache-2.0
"""Verify a release before a server starts with it, and copy it to the server's folder if asked.

Usage: weights.py --release NAME@sha256:DIGEST --source FOLDER [--target FOLDER] [--only PATTERN]

DIGEST is the digest of the release's file list, release.json, which has the digest of every other
file: the pod's template thus pins the deployed content. Without --target the release is verified in
place. With it, the release is copied into a staging folder, which is renamed once it is complete:
pods of a node that share the target copy once. --only: files whose path matches. Standard library
only.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

MANIFEST = "release.json"
STAGING = ".staging-"
CHUNK = 1 << 20
LARGEST_MANIFEST = 64 << 20
SPARE_BYTES = 64 << 20
BYTECODE = "__pycache__"

File = Mapping[str, Any]  # of release.json: path, size, sha256, mode


class WeightsError(Exception):
    """A problem with the release, including a remedy."""


def main(arguments: Sequence[str]) -> int:
    """Verify, or copy and verify; return 1 after a line on standard error on failure."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--release", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--only", default="*")
    options = parser.parse_args(arguments)
    name, _, digest = options.release.partition("@sha256:")
    start_time = time.monotonic()
    try:
        count, size = provide(name, digest, options.source, options.target, options.only)
    except WeightsError as error:
        sys.stderr.write(f"weights: {error}\n")
        return 1
    except OSError as error:
        path = error.filename or options.target or options.source
        sys.stderr.write(f"weights: {path}: {error.strerror or error}\n")
        return 1
    seconds = time.monotonic() - start_time
    sys.stdout.write(
        f"weights: release {name} is complete: {count} files, {size} bytes, {seconds:.1f} s\n"
    )
    return 0


def provide(
    name: str, digest: str, source: Path, target: Path | None, pattern: str
) -> tuple[int, int]:
    """Provide the verified release in the server's folder; return its file count and bytes.

    Raises WeightsError, OSError.
    """
    if target is None:
        return verified(source / name, read_manifest(source / name, digest), pattern)
    with locked(target, name):
        if (target / name).is_dir():
            try:
                return verified(target / name, read_manifest(target / name, digest), pattern)
            except WeightsError as error:
                sys.stderr.write(f"weights: copied again: {error}\n")
                remove(target / name)
        return copied(source / name, target, read_manifest(source / name, digest), pattern)


def read_manifest(folder: Path, digest: str) -> list[File]:
    """Read the release's file list. Raises WeightsError if it is missing or has another digest."""
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_MANIFEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise WeightsError(
            f"there is no release at {folder}: copy its folder of releases/ into the volume"
        ) from None
    actual = hashlib.sha256(content).hexdigest()
    if actual != digest:
        raise WeightsError(
            f"{path} belongs to another release: its SHA-256 is {actual}, not {digest}"
        )
    files: list[File] = json.loads(content)["files"]
    for file in files:
        path = PurePosixPath(file["path"])
        if path.is_absolute() or ".." in path.parts:
            raise WeightsError(f"{MANIFEST} names {path}, which is outside the release")
    return files


def verified(folder: Path, files: Sequence[File], pattern: str) -> tuple[int, int]:
    """Compare every file with the list, and reject files that are not on it."""
    selected = chosen(files, pattern)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:  # hashing releases Python's GIL
        list(threads.map(lambda file: verify(folder / file["path"], file), selected))
    expected = {file["path"] for file in files} | {MANIFEST}
    for path in content(folder):
        if path not in expected:
            raise WeightsError(f"{folder / path} is not part of the release: remove it")
    return len(selected), sum(file["size"] for file in selected)


def copied(folder: Path, target: Path, files: Sequence[File], pattern: str) -> tuple[int, int]:
    """Copy the release into a staging folder, verify every byte, then rename the folder."""
    selected = chosen(files, pattern)
    required = sum(file["size"] for file in selected)
    free = shutil.disk_usage(target).free
    if free < required + SPARE_BYTES:
        raise WeightsError(f"the release takes {required} bytes, and {target} has {free} free")
    staging = target / f"{STAGING}{folder.name}"
    if staging.exists():  # left by a killed pod; we hold the lock
        remove(staging)
    # Also empty folders: Triton does not load an ensemble without its version folder.
    for parent, folders, _ in os.walk(folder, followlinks=True):
        folders[:] = [folder_name for folder_name in folders if folder_name != BYTECODE]
        (staging / Path(parent).relative_to(folder)).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda file: copy(folder, staging, file), selected))
    shutil.copyfile(folder / MANIFEST, staging / MANIFEST)
    staging.rename(target / folder.name)
    return len(selected), required


def chosen(files: Sequence[File], pattern: str) -> list[File]:
    """Return the files whose path matches."""
    return [file for file in files if fnmatch.fnmatchcase(file["path"], pattern)]


def verify(path: Path, file: File) -> None:
    """Verify one file. Raises WeightsError."""
    try:
        with path.open("rb") as read:
            differ(path, file, hashed(read))
    except (FileNotFoundError, NotADirectoryError):
        raise WeightsError(f"{path} is missing: copy the release again") from None


def copy(folder: Path, staging: Path, file: File) -> None:
    """Copy and verify one file with its permissions. Raises WeightsError."""
    source, target = folder / file["path"], staging / file["path"]
    try:
        with source.open("rb") as read, target.open("xb") as write:
            digest = hashed(read, write)
            write.flush()
            os.fsync(write.fileno())
    except (FileNotFoundError, NotADirectoryError):
        raise WeightsError(f"{source} is missing: copy the release again") from None
    differ(source, file, digest)
    target.chmod(int(file["mode"], 8))


def hashed(read: BinaryIO, write: BinaryIO | None = None) -> str:
    """Return the SHA-256 of a stream, and copy the stream to `write` if given."""
    digest = hashlib.sha256()
    while chunk := read.read(CHUNK):
        digest.update(chunk)
        if write is not None:
            write.write(chunk)
    return digest.hexdigest()


def differ(path: Path, file: File, digest: str) -> None:
    """Raise WeightsError if the digest is not the released file's."""
    if digest != file["sha256"]:
        raise WeightsError(f"{path} was modified after the release: copy the release again")


def content(folder: Path) -> Iterator[str]:
    """Yield every file of the folder without bytecode, which each Python version writes.

    Follows links: in an image, large folders are links to a separate layer.
    """
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(folder_name for folder_name in folders if folder_name != BYTECODE)
        for name in sorted(names):
            yield (Path(parent) / name).relative_to(folder).as_posix()


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Lock the release against other pods of the node; a dead pod's lock is released.

    Raises WeightsError.
    """
    try:
        file = (folder / f".lock-{name}").open("w", encoding="utf-8")
    except PermissionError:
        raise WeightsError(
            f"user {os.getuid()} cannot write to {folder}: run `install -d -o {os.getuid()} PATH` "
            "on each node with the path of weights.cachePath"
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove(folder: Path) -> None:
    """Remove a release, whose folders are read-only."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o700)
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
