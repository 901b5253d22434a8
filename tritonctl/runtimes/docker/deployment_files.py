# SPDX-License-Identifier: Apache-2.0
"""Write a rendered deployment into a folder of the user.

`.rendered.json` records the digest of every written file. A file with another digest was edited by
the user and is only overwritten with `force`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import as_host_error, write_atomically

RECORD = ".rendered.json"
# For a folder of manifests, as `kubectl apply --filename FOLDER` reads every .json file.
MANIFESTS_RECORD = ".rendered"
COMPOSE_REMEDY = (
    "keep your changes in compose.override.yaml next to it; see what would change with "
    "`tritonctl deploy compose --output OTHER` and diff; or overwrite with "
    "`tritonctl deploy compose --force`"
)


@dataclass(frozen=True)
class WriteResult:
    """The written, unchanged and removed files, by relative path."""

    folder: Path
    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


def update_files(files: Mapping[str, str], folder: Path) -> WriteResult:
    """Like `write_files`, but keep an edited file while its rendering is unchanged."""
    recorded = _read_record(folder)
    unchanged = {n for n, text in files.items() if _digest(text.encode()) in recorded.get(n, [])}
    return write_files(files, folder, keep=unchanged.intersection(edited_files(folder)))


def write_files(
    files: Mapping[str, str],
    folder: Path,
    *,
    force: bool = False,
    keep: Collection[str] = (),
    remedy: str = COMPOSE_REMEDY,
    record: str = RECORD,
) -> WriteResult:
    """Write `files` into `folder`, all or none; remove files of an earlier rendering.

    keep: files to leave as they are. record: name of the file with the digests. force: overwrite
    files that the user edited; otherwise raise ConfigurationError with `remedy` before any write.
    """
    recorded = _read_record(folder, record)
    current = {name: _digest_of(folder / name) for name in {*files, *recorded}}
    rendered = {name: _digest(text.encode()) for name, text in files.items()}
    written = [
        name for name in sorted(files) if current[name] != rendered[name] and name not in keep
    ]
    removed = [
        name for name in sorted(set(recorded) - set(files)) if current[name] in recorded[name]
    ]
    if not force:
        changed = [n for n in written if current[n] and current[n] not in recorded.get(n, [])]
        _refuse_edited(folder, changed, remedy)
    # Both digests: after a kill in between, neither the old nor the new file counts as edited.
    recorded_or_new = {name: [*recorded.get(name, []), digest] for name, digest in rendered.items()}
    if written:
        _write_record(folder, recorded_or_new, record)
    for name in written:
        write_atomically(folder / name, files[name])
    for name in removed:
        with as_host_error(folder / name):
            (folder / name).unlink()
    _write_record(folder, {name: [digest] for name, digest in rendered.items()}, record)
    unchanged = tuple(name for name in sorted(files) if name not in written)
    return WriteResult(folder, tuple(written), unchanged, tuple(removed))


def edited_files(folder: Path) -> list[str]:
    """Return the files of an earlier rendering that the user has edited."""
    recorded = _read_record(folder)
    return [
        name
        for name in sorted(recorded)
        if (digest := _digest_of(folder / name)) and digest not in recorded[name]
    ]


def _refuse_edited(folder: Path, names: list[str], remedy: str) -> None:
    if names:
        raise ConfigurationError(
            f"{', '.join(str(folder / name) for name in names)}: edited since tritonctl wrote "
            "it, or not written by tritonctl",
            remedy=remedy,
        )


def _read_record(folder: Path, name: str = RECORD) -> dict[str, list[str]]:
    try:
        record = json.loads((folder / name).read_text(encoding="utf-8"))
        return {str(file): list(digests) for file, digests in record["files"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # missing or damaged
        return {}


def _write_record(folder: Path, files: Mapping[str, list[str]], name: str) -> None:
    text = json.dumps({"files": dict(sorted(files.items()))}, indent=1)
    if _digest_of(folder / name) != _digest(text.encode()):
        write_atomically(folder / name, text)


def _digest_of(file: Path) -> str | None:
    try:
        return _digest(file.read_bytes())
    except OSError:
        return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
