# SPDX-License-Identifier: Apache-2.0
"""An OCI image layout in one tar file, written in one pass.

https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md: `oci-layout`, `index.json`
and each blob as `blobs/sha256/DIGEST`. It also has `manifest.json` of `docker save`, which every
`docker load` reads; other readers skip it. Equal content gives equal bytes: no time, no user name.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"  # uncompressed: weights hardly shrink
USER = 1000  # the user id of the chart's pods
_BLOCK = tarfile.BLOCKSIZE  # bytes
_END = 2 * _BLOCK
_BLOBS = "blobs/sha256"


@dataclass(frozen=True)
class Blob:
    """A blob as a manifest names it: `digest` with its algorithm, `size` in bytes."""

    media_type: str
    digest: str
    size: int

    def descriptor(self) -> dict[str, Any]:
        """Return the OCI descriptor."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}

    @property
    def path(self) -> str:
        """The path in the archive."""
        return f"{_BLOBS}/{self.digest.partition(':')[2]}"


@dataclass(frozen=True)
class LayerEntry:
    """A file or a link in a layer."""

    path: str
    size: int = 0  # bytes
    mode: int = 0o444  # permissions
    content: Callable[[], Iterable[bytes]] = tuple  # reads the file's `size` bytes
    link: str | None = None  # the target of a link


class ImageLayer:
    """A tar of entries and their parent folders; `size` in bytes is known before writing."""

    def __init__(self, entries: Iterable[LayerEntry], empty_folders: Iterable[str] = ()) -> None:
        ordered = sorted(entries, key=lambda entry: PurePosixPath(entry.path).parts)
        self._parts: list[tuple[bytes, LayerEntry | None]] = [
            (_folder(path), None) for path in _folders(ordered, empty_folders)
        ]
        self._parts += [(_header(entry), entry) for entry in ordered]
        self.size = _END + sum(
            len(header) + (_padded(entry.size) if entry else 0) for header, entry in self._parts
        )

    def chunks(self) -> Iterator[bytes]:
        """Yield the tar; reads each file only when its turn comes."""
        for header, entry in self._parts:
            yield header
            if entry is not None:
                yield from entry.content()
                yield bytes(_padded(entry.size) - entry.size)
        yield bytes(_END)


class ImageArchive:
    """Write the layout into `file`, which must be new and seekable; the caller closes it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        for folder in ("blobs", _BLOBS):
            file.write(_folder(folder))
        self._member("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')

    def add(self, media_type: str, size: int, chunks: Iterable[bytes]) -> Blob:
        """Add a blob of `size` bytes, read once; its header with the digest is written last.

        Raises ValueError if the chunks have another size, OSError.
        """
        start = self._file.tell()
        self._file.write(bytes(_BLOCK))
        digest, written = hashlib.sha256(), 0
        for chunk in chunks:
            digest.update(chunk)
            written += self._file.write(chunk)
        if written != size:
            raise ValueError(f"{written} bytes instead of {size}")
        self._file.write(bytes(_padded(size) - size))
        blob = Blob(media_type, f"sha256:{digest.hexdigest()}", size)
        end = self._file.tell()
        self._file.seek(start)
        self._file.write(_blob_header(blob.path, size))
        self._file.seek(end)
        return blob

    def finish(
        self,
        layers: Sequence[Blob],
        config: Mapping[str, Any],
        annotations: Mapping[str, str],
        name: str,
    ) -> Blob:
        """Write configuration, manifest and index; return the manifest, which names the image.

        `config` has no `rootfs`; `name` is the image's `NAME:TAG`. Raises OSError.
        """
        roots = {"type": "layers", "diff_ids": [layer.digest for layer in layers]}
        configured = self._json(CONFIG_TYPE, {**config, "rootfs": roots})
        manifest = self._json(
            MANIFEST_TYPE,
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": configured.descriptor(),
                "layers": [layer.descriptor() for layer in layers],
                "annotations": dict(annotations),
            },
        )
        tag = {"org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "manifests": [{**manifest.descriptor(), "annotations": tag}],
        }
        self._member("index.json", _text(index))
        saved = {
            "Config": configured.path,
            "RepoTags": [name],
            "Layers": [layer.path for layer in layers],
        }
        self._member("manifest.json", _text([saved]))
        self._file.write(bytes(_END))
        return manifest

    def _json(self, media_type: str, value: Any) -> Blob:
        content = _text(value)
        return self.add(media_type, len(content), [content])

    def _member(self, path: str, content: bytes) -> None:
        padding = bytes(_padded(len(content)) - len(content))
        self._file.write(_blob_header(path, len(content)) + content + padding)


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _folders(entries: Sequence[LayerEntry], empty: Iterable[str]) -> list[str]:
    """Parent folders of the entries, and empty folders; each before its content."""
    paths = [PurePosixPath(entry.path) for entry in entries]
    empty_paths = [PurePosixPath(folder) for folder in empty]
    folders = {parent for path in [*paths, *empty_paths] for parent in path.parents} | set(
        empty_paths
    )
    return [str(path) for path in sorted(folders, key=lambda path: path.parts) if path.parts]


def _header(entry: LayerEntry) -> bytes:
    member = _member_of(entry.path, entry.mode)
    if entry.link is None:
        member.size = entry.size
    else:
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.link, 0o777
    return member.tobuf(tarfile.PAX_FORMAT)


def _folder(path: str) -> bytes:
    member = _member_of(path, 0o755)
    member.type = tarfile.DIRTYPE
    return member.tobuf(tarfile.PAX_FORMAT)


def _blob_header(path: str, size: int) -> bytes:
    """A header of one block for any size: a blob's is written after its content."""
    member = _member_of(path, 0o644)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def _member_of(path: str, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.uid = member.gid = USER
    member.mode, member.mtime = mode, 0
    return member
