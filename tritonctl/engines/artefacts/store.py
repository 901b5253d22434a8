# SPDX-License-Identifier: Apache-2.0
"""The engine store `.tritonctl/engines/<model>/<fingerprint>/`: list and address artefacts.

It also reads manifests of other tritonctl versions, so that artefacts which can no longer be
served are still listed and removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tritonctl.engines.artefacts.manifest import MANIFEST
from tritonctl.errors import RepositoryError
from tritonctl.project.schema import Project
from tritonctl.store.entries import StoredEntry, find_entry
from tritonctl.store.files import StoredFile, read_manifest

# Files that the host adds to an artefact.
HOUSEKEEPING = frozenset({MANIFEST, "build.log", "request.json", "result.json", "reproduce.sh"})
# Number of fingerprint digits at the end of a folder's name; a stage's folder starts with its name.
_DIGITS = 16


class _LenientRecord(BaseModel):
    # A newer tritonctl may have written more fields, an older one fewer.
    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())


class RecordedResult(_LenientRecord):
    """Fields of a builder's result that this module reads."""

    files: list[StoredFile]
    durations_seconds: dict[str, float] = {}


class ManifestRecord(_LenientRecord):
    """Fields of a manifest that this module reads."""

    fingerprint: str
    builder: str
    task: str
    stage: str | None = None
    source: str | None = None
    inputs: dict[str, str] = {}
    request: dict[str, Any]
    result: RecordedResult


@dataclass(frozen=True)
class StoredArtefact(StoredEntry[ManifestRecord]):
    """A folder of the engine store."""

    noun = "artefact"
    creation = "make one: `tritonctl build`"
    manifest_name = MANIFEST

    # mtime of the manifest, the last file of a build (epoch seconds; 0: no manifest)
    made_at: float = 0.0

    @property
    def model(self) -> str:
        """The model that the artefact was built for."""
        return self.folder.parent.name

    @property
    def name(self) -> str:
        """The address on the command line: `speller/0dad2d7f5a2a46d0`."""
        return f"{self.model}/{self.folder.name}"

    @property
    def label(self) -> str:
        """The name with the requested precision."""
        return f"{self.name} ({self.precision or '?'})"

    @property
    def files(self) -> Sequence[StoredFile]:
        """The files that the builder reported."""
        return self.record.result.files if self.record else ()

    @property
    def repair(self) -> str:
        """The remedy for a damaged artefact."""
        return f"make it again: `tritonctl build --force {self.model}`"

    @property
    def is_foreign(self) -> bool:
        """Whether no build made this folder: it has no manifest, not even an unreadable one."""
        return self.record is None and not self.made_at

    @property
    def precision(self) -> str | None:
        """The requested precision."""
        precision = self.record.request.get("precision") if self.record else None
        return precision if isinstance(precision, str) else None

    def is_addressed_by(self, address: str) -> bool:
        """Whether `address` is the model, `MODEL/FINGERPRINT` or a fingerprint's beginning."""
        if address == self.model:
            return True
        model, slash, prefix = address.rpartition("/")
        if slash and model != self.model:
            return False
        fingerprint = self.record.fingerprint if self.record else self._fingerprint_prefix
        return bool(prefix) and (fingerprint.startswith(prefix) or self.folder.name == prefix)

    def content_paths(self) -> Iterator[str]:
        """Yield the paths of all files, except those that the host adds."""
        for path in sorted(self.folder.rglob("*")):
            relative = path.relative_to(self.folder).as_posix()
            if relative not in HOUSEKEEPING and (path.is_symlink() or not path.is_dir()):
                yield relative

    def identity_problem(self) -> str | None:
        """Compare the fingerprint of the manifest with the folder's name."""
        fingerprint = self.manifest().fingerprint
        if fingerprint.startswith(self._fingerprint_prefix):
            return None
        return f"the manifest belongs to {fingerprint[:_DIGITS]}, not this folder"

    @property
    def _fingerprint_prefix(self) -> str:
        return self.folder.name[-_DIGITS:]


def stored_artefacts(project: Project) -> list[StoredArtefact]:
    """Return every artefact of a project by model, the newest first."""
    store = project.state / "engines"
    artefacts = [read_artefact(folder) for folder in store.glob("[!.]*/[!.]*") if folder.is_dir()]
    return sorted(artefacts, key=lambda stored: (stored.model, -stored.made_at, stored.folder.name))


def read_artefact(folder: Path) -> StoredArtefact:
    """Read the artefact in a folder; `problem` describes an unreadable manifest."""
    file = folder / MANIFEST
    try:
        made_at = file.stat().st_mtime
    except OSError:
        made_at = 0.0
    try:
        record = read_manifest(file, ManifestRecord, remedy="")
    except RepositoryError as error:
        problem = error.problem.removeprefix(f"{folder}/")
        return StoredArtefact(folder, None, problem, made_at)
    return StoredArtefact(folder, record, made_at=made_at)


def find_artefact(artefacts: Sequence[StoredArtefact], address: str) -> StoredArtefact:
    """Return the artefact at `address`: a model, `MODEL/FINGERPRINT` or a fingerprint prefix.

    Raises UsageError, naming the candidates, unless exactly one matches.
    """
    of_model = [stored for stored in artefacts if stored.model == address]
    return find_entry(StoredArtefact, of_model or artefacts, address)
