# SPDX-License-Identifier: Apache-2.0
"""Verifies a release before a server starts with it, and copies it where the server reads it.

Usage: weights.py --release NAME@sha256:DIGEST --source FOLDER [--target FOLDER] [--only PATTERN]

DIGEST is that of the release's own list of files, release.json, which has the digest of every other
one: so what the pod's template names is what is served. Without --target the release is verified
where it is. With one it is copied there first, in a folder that gets its name when it is whole:
pods of a node that share the target copy once. --only: of files whose path matches. Standard
library only.
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
    """What is wrong, and what to do about it."""


def main(arguments: Sequence[str]) -> int:
    """Verify, or copy and verify; 1 with a line on standard error where that fails."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--release", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--only", default="*")
    given = parser.parse_args(arguments)
    name, _, digest = given.release.partition("@sha256:")
    started = time.monotonic()
    try:
        count, size = provide(name, digest, given.source, given.target, given.only)
    except WeightsError as error:
        sys.stderr.write(f"weights: {error}\n")
        return 1
    except OSError as error:
        place = error.filename or given.target or given.source
        sys.stderr.write(f"weights: {place}: {error.strerror or error}\n")
        return 1
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"weights: release {name} is whole: {count} files, {size} bytes, {seconds:.1f} s\n"
    )
    return 0


def provide(
    name: str, digest: str, source: Path, target: Path | None, pattern: str
) -> tuple[int, int]:
    """Number and bytes of the files that are as they were released, where the server reads them.

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
    """The release's list of files. Raises WeightsError where it is missing or another one."""
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_MANIFEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise WeightsError(
            f"there is no release at {folder}: copy its folder of releases/ into the volume"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise WeightsError(
            f"{path} is another release's than asked for: its SHA-256 is {found}, not {digest}"
        )
    files: list[File] = json.loads(content)["files"]
    for file in files:
        path = PurePosixPath(file["path"])
        if path.is_absolute() or ".." in path.parts:
            raise WeightsError(f"{MANIFEST} names {path}, which leads out of the release")
    return files


def verified(folder: Path, files: Sequence[File], pattern: str) -> tuple[int, int]:
    """Compare every file with the list, and see that there is no other one."""
    wanted = chosen(files, pattern)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:  # hashing holds no lock of Python's
        list(threads.map(lambda file: verify(folder / file["path"], file), wanted))
    known = {file["path"] for file in files} | {MANIFEST}
    for path in content(folder):
        if path not in known:
            raise WeightsError(f"{folder / path} is nothing of the release: remove it")
    return len(wanted), sum(file["size"] for file in wanted)


def copied(folder: Path, target: Path, files: Sequence[File], pattern: str) -> tuple[int, int]:
    """Copy the release beside its name, verify every byte on the way, give it its name."""
    wanted = chosen(files, pattern)
    needed = sum(file["size"] for file in wanted)
    free = shutil.disk_usage(target).free
    if free < needed + SPARE_BYTES:
        raise WeightsError(f"the release takes {needed} bytes, and {target} has {free} free")
    staging = target / f"{STAGING}{folder.name}"
    if staging.exists():  # of a pod that was killed: the lock is ours
        remove(staging)
    # Empty ones, too: Triton does not load an ensemble without its version folder.
    for parent, folders, _ in os.walk(folder, followlinks=True):
        folders[:] = [each for each in folders if each != BYTECODE]
        (staging / Path(parent).relative_to(folder)).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda file: copy(folder, staging, file), wanted))
    shutil.copyfile(folder / MANIFEST, staging / MANIFEST)
    staging.rename(target / folder.name)
    return len(wanted), needed


def chosen(files: Sequence[File], pattern: str) -> list[File]:
    """The files whose path matches."""
    return [file for file in files if fnmatch.fnmatchcase(file["path"], pattern)]


def verify(path: Path, file: File) -> None:
    """One file. Raises WeightsError."""
    try:
        with path.open("rb") as read:
            differ(path, file, hashed(read))
    except (FileNotFoundError, NotADirectoryError):
        raise WeightsError(f"{path} is missing: copy the release again") from None


def copy(folder: Path, staging: Path, file: File) -> None:
    """One file, with its permissions. Raises WeightsError."""
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
    """The SHA-256 of what is read, which may be written elsewhere on the way."""
    digest = hashlib.sha256()
    while chunk := read.read(CHUNK):
        digest.update(chunk)
        if write is not None:
            write.write(chunk)
    return digest.hexdigest()


def differ(path: Path, file: File, digest: str) -> None:
    """Raise WeightsError for content that is another one than was released."""
    if digest != file["sha256"]:
        raise WeightsError(f"{path} is not as it was released: copy the release again")


def content(folder: Path) -> Iterator[str]:
    """Every file of the folder, bytecode apart: each version of Python writes its own.

    Links are followed: of an image, large folders are links to a layer of their own.
    """
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(each for each in folders if each != BYTECODE)
        for name in sorted(names):
            yield (Path(parent) / name).relative_to(folder).as_posix()


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """One pod of a node at a time; a pod that dies lets go. Raises WeightsError."""
    try:
        file = (folder / f".lock-{name}").open("w", encoding="utf-8")
    except PermissionError:
        raise WeightsError(
            f"{folder} cannot be written to by user {os.getuid()}: on each node, "
            f"`install -d -o {os.getuid()} PATH` with the path of weights.cachePath"
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove(folder: Path) -> None:
    """Remove a release: nobody may write in its folders."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o700)
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
