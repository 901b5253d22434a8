# SPDX-License-Identifier: Apache-2.0
"""Pack a release as an OCI image without Docker: for pods to mount, to push, or to copy by hand.

The image holds `<number>-<hash>/`, the release as in releases/, and `parts/`. Each large version
folder is a separate part and layer, named by its content, and the release links to it. So later
releases share the layers of every unchanged engine: they are pushed, pulled and stored once.
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
from tritonctl.host.files import as_host_error
from tritonctl.host.progress import Progress, ProgressStep
from tritonctl.host.units import human_bytes
from tritonctl.releases.manifest import REPOSITORY, ReleasedFile, ReleaseManifest
from tritonctl.releases.oci_archive import LAYER_TYPE, Blob, ImageArchive, ImageLayer, LayerEntry
from tritonctl.releases.store import StoredRelease
from tritonctl.repository.contents import RELEASE

PARTS = "parts"
_MIN_PART_BYTES = 1 << 20  # smaller version folders get no separate layer
_MAX_PARTS = 100  # container runtimes take 127 layers or so
_CHUNK = 1 << 20
_ARCHITECTURES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}
_LAYOUT_BYTES = 1 << 20  # upper bound for everything but the layers


@dataclass(frozen=True)
class ReleaseImage:
    """An image archive at `path`."""

    path: Path
    digest: str  # of the manifest; pods name the image by it
    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        """Bytes of its layers."""
        return sum(layer.size for layer in self.layers)


def require_unused_path(path: Path) -> None:
    """Raise UsageError if `path` exists: packing never overwrites."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists", remedy="name a new file, or remove that one")


def pack(stored: StoredRelease, path: Path, name: str, progress: Progress) -> ReleaseImage:
    """Write the image archive of a release to the new file `path` and verify every byte.

    `name` is the image's, without registry and tag. On failure `path` does not exist.

    Raises UsageError if `path` exists, RepositoryError if the release changed since it was
    published, HostError for a full or read-only disk.
    """
    require_unused_path(path)
    release = stored.manifest()
    with progress.step(f"Packing release {stored.name}") as step, as_host_error(path):
        layers = _LayerPlan(stored, release, step).layers()
        path.parent.mkdir(parents=True, exist_ok=True)
        _require_free_space(path.parent, sum(layer.size for layer in layers) + _LAYOUT_BYTES)
        staged = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            with staged.open("xb") as file:
                archive = ImageArchive(file)
                blobs = [archive.add(LAYER_TYPE, each.size, each.chunks()) for each in layers]
                manifest = archive.finish(
                    blobs, _config(stored, release), _annotations(release), f"{name}:{stored.name}"
                )
                file.flush()
                os.fsync(file.fileno())
            os.replace(staged, path)
        finally:
            staged.unlink(missing_ok=True)
    return ReleaseImage(path, manifest.digest, tuple(blobs))


class _LayerPlan:
    """The assignment of a release's files to layers."""

    def __init__(self, stored: StoredRelease, release: ReleaseManifest, step: ProgressStep) -> None:
        self._stored, self._release, self._step = stored, release, step
        folders: dict[str, list[ReleasedFile]] = {}
        for file in release.files:
            if folder := _version_folder(file):
                folders.setdefault(folder, []).append(file)
        sizes = {folder: sum(file.size for file in files) for folder, files in folders.items()}
        large = [folder for folder, size in sizes.items() if size >= _MIN_PART_BYTES]
        largest = sorted(large, key=sizes.__getitem__)[-_MAX_PARTS:]
        self._links = {folder: _content_key(folder, folders[folder]) for folder in largest}
        # Two models with equal content share one part.
        self._parts = {key: folders[folder] for folder, key in self._links.items()}

    def layers(self) -> list[ImageLayer]:
        """Return the parts by name, then the layer with everything else."""
        parts = [ImageLayer(self._part_entries(key)) for key in sorted(self._parts)]
        return [*parts, ImageLayer(self._remaining_entries(), self._empty_folders())]

    def _empty_folders(self) -> Iterator[str]:
        """An ensemble's version folder is empty, but Triton needs it to load the model."""
        for path in self._stored.repository.rglob("*"):
            if path.is_dir() and not any(path.iterdir()):
                yield f"{self._stored.name}/{path.relative_to(self._stored.folder).as_posix()}"

    def _part_entries(self, key: str) -> Iterator[LayerEntry]:
        for file in self._parts[key]:
            yield self._entry(f"{PARTS}/{key}/{file.path.split('/', 3)[3]}", file)

    def _remaining_entries(self) -> Iterator[LayerEntry]:
        for folder, key in self._links.items():
            up = "../" * (folder.count("/") + 1)
            yield LayerEntry(f"{self._stored.name}/{folder}", link=f"{up}{PARTS}/{key}")
        for file in self._release.files:
            if _version_folder(file) not in self._links:
                yield self._entry(f"{self._stored.name}/{file.path}", file)
        manifest = (self._stored.folder / RELEASE).read_bytes()
        manifest_path = f"{self._stored.name}/{RELEASE}"
        yield LayerEntry(manifest_path, len(manifest), content=lambda: [manifest])

    def _entry(self, archive_path: str, file: ReleasedFile) -> LayerEntry:
        return LayerEntry(archive_path, file.size, int(file.mode, 8), partial(self._read, file))

    def _read(self, file: ReleasedFile) -> Iterator[bytes]:
        """Read at most the file's size. Raises RepositoryError if its content changed."""
        digest, remaining = hashlib.sha256(), file.size
        with (self._stored.folder / file.path).open("rb") as stream:
            while chunk := stream.read(min(_CHUNK, remaining)):
                digest.update(chunk)
                remaining -= len(chunk)
                self._step.update(f"{file.path}, {human_bytes(file.size - remaining)}")
                yield chunk
        if digest.hexdigest() != file.sha256:
            raise RepositoryError(
                f"release {self._stored.name} is not as it was published: {file.path}",
                remedy="pack another one, or publish again: `tritonctl releases publish`",
            )


def _version_folder(file: ReleasedFile) -> str | None:
    """Return `repository/MODEL/VERSION` for a file in a version folder."""
    match = re.match(rf"{REPOSITORY}/[^/]+/[^/]+(?=/)", file.path)
    return match[0] if match else None


def _content_key(folder: str, files: list[ReleasedFile]) -> str:
    """Name the content of a version folder, independent of model and number."""
    listed = sorted([file.path.removeprefix(folder), file.sha256, file.mode] for file in files)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:32]


def _require_free_space(folder: Path, required_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < required_bytes:
        raise HostError(
            f"the image needs {human_bytes(required_bytes)}, "
            f"and {folder} has {human_bytes(free)} free",
            remedy=f"free space there (`df -h {folder}`), or name a file on another disk",
        )


def _config(stored: StoredRelease, release: ReleaseManifest) -> dict[str, Any]:
    """The image configuration, for machines like this one, which built the engines."""
    machine = platform.machine()
    return {
        "created": release.created,
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Labels": {"tritonctl.release": stored.name}},
    }


def _annotations(release: ReleaseManifest) -> dict[str, str]:
    return {
        "org.opencontainers.image.created": release.created,
        "org.opencontainers.image.version": release.name,
    }
