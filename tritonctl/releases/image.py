# SPDX-License-Identifier: Apache-2.0
"""A release as an OCI image, packed without Docker: to be mounted by pods, pushed, copied by hand.

In the image lie `<number>-<hash>/`, the release as it is in releases/, and `parts/`. A version
folder that is large is a part and a layer of its own, named by its content, and the release has a
link to it. So the next release, whatever its number, shares the layers of every engine that it
keeps: they are pushed, pulled and stored once.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tritonctl.errors import HostError, RepositoryError, UsageError
from tritonctl.host.files import explained
from tritonctl.host.progress import Progress, Step
from tritonctl.host.units import human_bytes
from tritonctl.releases.manifest import REPOSITORY, Release, ReleasedFile
from tritonctl.releases.oci_archive import LAYER_TYPE, Archive, Blob, Entry, Layer
from tritonctl.releases.store import Stored
from tritonctl.repository.contents import RELEASE

PARTS = "parts"
_LARGE = 1 << 20  # bytes of a version folder that is worth a layer
_MOST_PARTS = 100  # container runtimes take 127 layers or so
_CHUNK = 1 << 20
_ARCHITECTURES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}
_LAYOUT_BYTES = 1 << 20  # what is no layer takes less


@dataclass(frozen=True)
class Image:
    """An archive at `path`. `digest`: of its manifest, by which pods name the image."""

    path: Path
    digest: str
    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        """Bytes of its layers."""
        return sum(layer.size for layer in self.layers)


def refuse_taken(path: Path) -> None:
    """Raise UsageError where something is at `path`: an archive never overwrites."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists", remedy="name a new file, or remove that one")


def pack(stored: Stored, path: Path, name: str, progress: Progress) -> Image:
    """Write the image archive of a release to the new file `path`; every byte is verified.

    name: of the image, without registry and tag. Whatever ends it, `path` is whole or is not there.

    Raises UsageError for a path that is taken, RepositoryError for a release that is not as it was
    published, HostError for a disk that is full or may not be written to.
    """
    refuse_taken(path)
    release = stored.manifest()
    with progress.step(f"Packing release {stored.name}") as step, explained(path):
        layers = _Packing(stored, release, step).layers()
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_full(path.parent, sum(layer.size for layer in layers) + _LAYOUT_BYTES)
        staged = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            with staged.open("xb") as file:
                archive = Archive(file)
                blobs = [archive.add(LAYER_TYPE, each.size, each.chunks()) for each in layers]
                manifest = archive.finish(
                    blobs, _config(stored, release), _annotations(release), f"{name}:{stored.name}"
                )
                file.flush()
                os.fsync(file.fileno())
            os.replace(staged, path)
        finally:
            staged.unlink(missing_ok=True)
    return Image(path, manifest.digest, tuple(blobs))


class _Packing:
    """Which file of a release goes into which layer."""

    def __init__(self, stored: Stored, release: Release, step: Step) -> None:
        self._stored, self._release, self._step = stored, release, step
        folders: dict[str, list[ReleasedFile]] = {}
        for file in release.files:
            if folder := _version_folder(file):
                folders.setdefault(folder, []).append(file)
        sizes = {folder: sum(file.size for file in files) for folder, files in folders.items()}
        large = [folder for folder, size in sizes.items() if size >= _LARGE]
        largest = sorted(large, key=sizes.__getitem__)[-_MOST_PARTS:]
        self._links = {folder: _key(folder, folders[folder]) for folder in largest}
        # Of two models with the same content there is one part.
        self._parts = {key: folders[folder] for folder, key in self._links.items()}

    def layers(self) -> list[Layer]:
        """The parts by their names, then the rest, which every release has for itself."""
        parts = [Layer(self._part(key)) for key in sorted(self._parts)]
        return [*parts, Layer(self._rest(), self._empty_folders())]

    def _empty_folders(self) -> Iterator[str]:
        """An ensemble has a version folder without a file, and Triton does not load it without."""
        for path in self._stored.repository.rglob("*"):
            if path.is_dir() and not any(path.iterdir()):
                yield f"{self._stored.name}/{path.relative_to(self._stored.folder).as_posix()}"

    def _part(self, key: str) -> Iterator[Entry]:
        for file in self._parts[key]:
            yield self._entry(f"{PARTS}/{key}/{file.path.split('/', 3)[3]}", file)

    def _rest(self) -> Iterator[Entry]:
        for folder, key in self._links.items():
            up = "../" * (folder.count("/") + 1)
            yield Entry(f"{self._stored.name}/{folder}", link=f"{up}{PARTS}/{key}")
        for file in self._release.files:
            if _version_folder(file) not in self._links:
                yield self._entry(f"{self._stored.name}/{file.path}", file)
        manifest = (self._stored.folder / RELEASE).read_bytes()
        place = f"{self._stored.name}/{RELEASE}"
        yield Entry(place, len(manifest), content=lambda: [manifest])

    def _entry(self, place: str, file: ReleasedFile) -> Entry:
        return Entry(place, file.size, int(file.mode, 8), partial(self._read, file))

    def _read(self, file: ReleasedFile) -> Iterator[bytes]:
        """The file, never more than its size. Raises RepositoryError for another content."""
        digest, left = hashlib.sha256(), file.size
        with (self._stored.folder / file.path).open("rb") as stream:
            while chunk := stream.read(min(_CHUNK, left)):
                digest.update(chunk)
                left -= len(chunk)
                self._step.update(f"{file.path}, {human_bytes(file.size - left)}")
                yield chunk
        if digest.hexdigest() != file.sha256:
            raise RepositoryError(
                f"release {self._stored.name} is not as it was published: {file.path}",
                remedy="pack another one, or publish again: `tritonctl release`",
            )


def _version_folder(file: ReleasedFile) -> str | None:
    """`repository/MODEL/VERSION` of a file in one."""
    match = re.match(rf"{REPOSITORY}/[^/]+/[^/]+(?=/)", file.path)
    return match[0] if match else None


def _key(folder: str, files: list[ReleasedFile]) -> str:
    """A name for what is in a version folder, whatever its model and number are."""
    listed = sorted([file.path.removeprefix(folder), file.sha256, file.mode] for file in files)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:32]


def _refuse_full(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise HostError(
            f"the image takes {human_bytes(needed)}, and {folder} has {human_bytes(free)} free",
            remedy=f"free space there (`df -h {folder}`), or name a file on another disk",
        )


def _config(stored: Stored, release: Release) -> dict[str, Any]:
    """For machines like this one, on which its engines were built."""
    machine = platform.machine()
    return {
        "created": release.created,
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Labels": {"tritonctl.release": stored.name}},
    }


def _annotations(release: Release) -> dict[str, str]:
    return {
        "org.opencontainers.image.created": release.created,
        "org.opencontainers.image.version": release.name,
    }
