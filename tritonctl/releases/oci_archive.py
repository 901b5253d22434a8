# SPDX-License-Identifier: Apache-2.0
"""An OCI image layout in one tar file, written from its beginning to its end in one pass.

https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md: `oci-layout`, `index.json`
and each blob as `blobs/sha256/DIGEST`. Beside them `manifest.json` of `docker save`, for every
`docker load`; other readers skip it. Equal content, equal bytes: no time, no name of a user.
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
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"  # not packed: weights hardly get smaller
USER = 1000  # whom the chart's pods run as
_BLOCK = tarfile.BLOCKSIZE  # bytes
_END = 2 * _BLOCK
_BLOBS = "blobs/sha256"


@dataclass(frozen=True)
class Blob:
    """What a manifest says of one: `digest` with its algorithm, `size` in bytes."""

    media_type: str
    digest: str
    size: int

    def described(self) -> dict[str, Any]:
        """A descriptor of the specification."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}

    @property
    def place(self) -> str:
        """Its path in the archive."""
        return f"{_BLOBS}/{self.digest.partition(':')[2]}"


@dataclass(frozen=True)
class Entry:
    """A file in a layer, or a link where `link` says to what; mode: its permissions.

    content: reads the file's `size` bytes.
    """

    path: str
    size: int = 0
    mode: int = 0o444
    content: Callable[[], Iterable[bytes]] = tuple
    link: str | None = None


class Layer:
    """A tar of entries and of the folders above them; `size` in bytes, known before writing."""

    def __init__(self, entries: Iterable[Entry], empty_folders: Iterable[str] = ()) -> None:
        ordered = sorted(entries, key=lambda entry: PurePosixPath(entry.path).parts)
        self._parts: list[tuple[bytes, Entry | None]] = [
            (_folder(path), None) for path in _folders(ordered, empty_folders)
        ]
        self._parts += [(_header(entry), entry) for entry in ordered]
        self.size = _END + sum(
            len(header) + (_padded(entry.size) if entry else 0) for header, entry in self._parts
        )

    def chunks(self) -> Iterator[bytes]:
        """The whole tar; each file is read when its turn has come."""
        for header, entry in self._parts:
            yield header
            if entry is not None:
                yield from entry.content()
                yield bytes(_padded(entry.size) - entry.size)
        yield bytes(_END)


class Archive:
    """Writes the layout into `file`, which is new, can seek and stays the caller's to close."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        for folder in ("blobs", _BLOBS):
            file.write(_folder(folder))
        self._member("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')

    def add(self, media_type: str, size: int, chunks: Iterable[bytes]) -> Blob:
        """A blob of `size` bytes, read once: its name, the digest, is written last.

        Raises ValueError where the chunks are more or fewer, OSError.
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
        self._file.write(_outer(blob.place, size))
        self._file.seek(end)
        return blob

    def finish(
        self,
        layers: Sequence[Blob],
        config: Mapping[str, Any],
        annotations: Mapping[str, str],
        name: str,
    ) -> Blob:
        """Write what holds the layers together; returns the manifest, whose digest is the image's.

        config: without `rootfs`. name: of the image, `NAME:TAG`. Raises OSError.
        """
        roots = {"type": "layers", "diff_ids": [layer.digest for layer in layers]}
        configured = self._json(CONFIG_TYPE, {**config, "rootfs": roots})
        manifest = self._json(
            MANIFEST_TYPE,
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": configured.described(),
                "layers": [layer.described() for layer in layers],
                "annotations": dict(annotations),
            },
        )
        tag = {"org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "manifests": [{**manifest.described(), "annotations": tag}],
        }
        self._member("index.json", _text(index))
        saved = {
            "Config": configured.place,
            "RepoTags": [name],
            "Layers": [layer.place for layer in layers],
        }
        self._member("manifest.json", _text([saved]))
        self._file.write(bytes(_END))
        return manifest

    def _json(self, media_type: str, value: Any) -> Blob:
        content = _text(value)
        return self.add(media_type, len(content), [content])

    def _member(self, path: str, content: bytes) -> None:
        padding = bytes(_padded(len(content)) - len(content))
        self._file.write(_outer(path, len(content)) + content + padding)


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _folders(entries: Sequence[Entry], empty: Iterable[str]) -> list[str]:
    """Above the entries, and empty ones; each before what is in it."""
    paths = [PurePosixPath(entry.path) for entry in entries]
    alone = [PurePosixPath(folder) for folder in empty]
    found = {parent for path in [*paths, *alone] for parent in path.parents} | set(alone)
    return [str(path) for path in sorted(found, key=lambda path: path.parts) if path.parts]


def _header(entry: Entry) -> bytes:
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


def _outer(path: str, size: int) -> bytes:
    """One block, whatever the size: of a blob it is written after the content."""
    member = _member_of(path, 0o644)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def _member_of(path: str, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.uid = member.gid = USER
    member.mode, member.mtime = mode, 0
    return member
