# SPDX-License-Identifier: Apache-2.0
"""Writes a rendered deployment into a folder that belongs to the user.

`.rendered.json` in it records the digest of every file as written. A file with another digest
was changed by hand, and is not overwritten unless asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import explained, write_atomically

RECORD = ".rendered.json"
# In a folder of manifests: `kubectl apply --filename FOLDER` takes every .json for one.
MANIFESTS_RECORD = ".rendered"
COMPOSE_REMEDY = (
    "keep your changes in compose.override.yaml beside it; see what would change with "
    "`tritonctl deploy compose --output OTHER` and diff; or overwrite with "
    "`tritonctl deploy compose --force`"
)


@dataclass(frozen=True)
class Published:
    """What was done with each file, by relative path."""

    folder: Path
    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


def bring_up_to_date(files: Mapping[str, str], folder: Path) -> Published:
    """As `publish`, but a change by hand stays as long as its file would be rendered as before."""
    known = _read_record(folder)
    as_before = {n for n, text in files.items() if _digest(text.encode()) in known.get(n, [])}
    return publish(files, folder, keep=as_before.intersection(edited(folder)))


def publish(
    files: Mapping[str, str],
    folder: Path,
    *,
    force: bool = False,
    keep: Collection[str] = (),
    remedy: str = COMPOSE_REMEDY,
    record: str = RECORD,
) -> Published:
    """Write `files` into `folder`, whole or not at all; remove what an earlier rendering left.

    `keep`: these stay as they are. `record`: the name of the file with the digests.

    Raises ConfigurationError with `remedy`, before anything is written, when that would overwrite
    the user's own work; `force` does so.
    """
    known = _read_record(folder, record)
    now = {name: _digest_of(folder / name) for name in {*files, *known}}
    wanted = {name: _digest(text.encode()) for name, text in files.items()}
    written = [name for name in sorted(files) if now[name] != wanted[name] and name not in keep]
    removed = [name for name in sorted(set(known) - set(files)) if now[name] in known[name]]
    if not force:
        changed = [n for n in written if now[n] and now[n] not in known.get(n, [])]
        _refuse_edited(folder, changed, remedy)
    # Both digests: killed in between, neither the old nor the new file counts as the user's.
    both = {name: [*known.get(name, []), digest] for name, digest in wanted.items()}
    if written:
        _write_record(folder, both, record)
    for name in written:
        write_atomically(folder / name, files[name])
    for name in removed:
        with explained(folder / name):
            (folder / name).unlink()
    _write_record(folder, {name: [digest] for name, digest in wanted.items()}, record)
    unchanged = tuple(name for name in sorted(files) if name not in written)
    return Published(folder, tuple(written), unchanged, tuple(removed))


def edited(folder: Path) -> list[str]:
    """The files of an earlier rendering that were changed by hand since."""
    known = _read_record(folder)
    return [
        name
        for name in sorted(known)
        if (digest := _digest_of(folder / name)) and digest not in known[name]
    ]


def _refuse_edited(folder: Path, names: list[str], remedy: str) -> None:
    if names:
        raise ConfigurationError(
            f"{', '.join(str(folder / name) for name in names)}: changed by hand since tritonctl "
            "wrote it, or not written by tritonctl",
            remedy=remedy,
        )


def _read_record(folder: Path, name: str = RECORD) -> dict[str, list[str]]:
    try:
        record = json.loads((folder / name).read_text(encoding="utf-8"))
        return {str(file): list(digests) for file, digests in record["files"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # none, or damaged
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
