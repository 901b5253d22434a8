# SPDX-License-Identifier: Apache-2.0
"""The artefacts on disk: `.tritonctl/engines/<model>/<fingerprint>/`, found, addressed, verified.

Reads the manifests of other versions of tritonctl, too, so that artefacts which cannot be served
any more are still listed and removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tritonctl.engines.artefacts.manifest import MANIFEST
from tritonctl.engines.build.contract import BuiltFile
from tritonctl.engines.build.fingerprint import sha256
from tritonctl.errors import RepositoryError, UsageError
from tritonctl.host.progress import Progress
from tritonctl.project.expected import reason
from tritonctl.project.schema import Project

# What the host leaves in an artefact beside the files that the builder reported.
HOUSEKEEPING = frozenset({MANIFEST, "build.log", "request.json", "result.json", "reproduce.sh"})
# A folder's name ends in as many digits of its fingerprint; a stage's own begins with its name.
_DIGITS = 16


class _Read(BaseModel):
    # Additive: a newer tritonctl may have written more, an older one less.
    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())


class RecordedResult(_Read):
    """The parts of a builder's result that this module reads."""

    files: list[BuiltFile]
    durations_seconds: dict[str, float] = {}


class Record(_Read):
    """The parts of a manifest that this module reads."""

    fingerprint: str
    builder: str
    task: str
    stage: str | None = None
    source: str | None = None
    request: dict[str, Any]
    result: RecordedResult


@dataclass(frozen=True)
class Stored:
    """A folder of the engine store. Without a readable manifest `problem` says why.

    `made` is when its manifest, the last file of a build, was written (seconds since the epoch; 0:
    it has none).
    """

    model: str
    folder: Path
    made: float
    record: Record | None
    problem: str | None = None

    @property
    def name(self) -> str:
        """What a user may type: `speller/0dad2d7f5a2a46d0`."""
        return f"{self.model}/{self.folder.name}"

    @property
    def digits(self) -> str:
        """The beginning of the fingerprint that the folder's name ends in."""
        return self.folder.name[-_DIGITS:]

    @property
    def foreign(self) -> bool:
        """Whether no build left this folder: those have a manifest, readable or not."""
        return self.record is None and not self.made

    @property
    def precision(self) -> str | None:
        """Of the request."""
        precision = self.record.request.get("precision") if self.record else None
        return precision if isinstance(precision, str) else None

    def manifest(self) -> dict[str, Any]:
        """The whole manifest. Raises RepositoryError when it cannot be read."""
        if self.record is None:
            raise RepositoryError(
                f"{self.name}: {self.problem}",
                remedy=f"make it again: `tritonctl build --force {self.model}`",
            )
        return self.record.model_dump(mode="json")

    @property
    def size(self) -> int:
        """Bytes that the builder reported."""
        return sum(file.size for file in self.record.result.files) if self.record else 0


def stored_artefacts(project: Project) -> list[Stored]:
    """Every artefact of a project: by model, the newest first."""
    store = project.state / "engines"
    artefacts = [read_stored(folder) for folder in store.glob("[!.]*/[!.]*") if folder.is_dir()]
    return sorted(artefacts, key=lambda stored: (stored.model, -stored.made, stored.folder.name))


def read_stored(folder: Path) -> Stored:
    """The artefact in a folder; what is wrong with its manifest is in `problem`."""
    manifest = folder / MANIFEST
    try:
        made = manifest.stat().st_mtime
        record = Record.model_validate_json(manifest.read_bytes())
    except FileNotFoundError:
        return Stored(folder.parent.name, folder, 0.0, None, f"it has no {MANIFEST}")
    except OSError as error:
        return Stored(folder.parent.name, folder, 0.0, None, f"{MANIFEST}: {error.strerror}")
    except ValidationError as error:
        problem = f"{MANIFEST} is malformed: {reason(error)}"
        return Stored(folder.parent.name, folder, made, None, problem)
    return Stored(folder.parent.name, folder, made, record)


def find_artefact(artefacts: Iterable[Stored], address: str) -> Stored:
    """The artefact that `address` names: a model, or `model/` and the beginning of a fingerprint,
    or that beginning alone.

    Raises UsageError when none or several match, naming the candidates.
    """
    everything = list(artefacts)
    matching = [stored for stored in everything if stored.model == address]
    matching = matching or [stored for stored in everything if _matches(stored, address)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(stored.name for stored in matching)
        raise UsageError(
            f"`{address}` may be any of {len(matching)} artefacts: {names}",
            remedy=f"name one: `{matching[0].name}`",
        )
    names = ", ".join(stored.name for stored in everything)
    raise UsageError(
        f"no artefact `{address}`",
        remedy=f"expected one of: {names}" if names else "make one: `tritonctl build`",
    )


def _matches(stored: Stored, address: str) -> bool:
    model, slash, rest = address.rpartition("/")
    if slash and model != stored.model:
        return False
    fingerprint = stored.record.fingerprint if stored.record else stored.digits
    return bool(rest) and (fingerprint.startswith(rest) or stored.folder.name == rest)


@dataclass(frozen=True)
class Finding:
    """Something about an artefact that is not as it was built: `kind` is missing, different,
    extra or manifest, `detail` what about it.
    """

    kind: str
    path: str
    detail: str


def verify_artefact(stored: Stored, progress: Progress) -> list[Finding]:
    """Compare every file of an artefact with its manifest: size and SHA-256, and nothing else."""
    if stored.record is None:
        return [Finding("manifest", MANIFEST, stored.problem or "it cannot be read")]
    findings = []
    if not stored.record.fingerprint.startswith(stored.digits):
        detail = f"it is the manifest of {stored.record.fingerprint[:_DIGITS]}, not of this folder"
        findings.append(Finding("manifest", MANIFEST, detail))
    with progress.step(f"Verifying {stored.name}") as step:
        for file in stored.record.result.files:
            step.update(file.path)
            findings += _verified(stored.folder / file.path, file)
    return findings + list(_extra(stored.folder, stored.record))


def _verified(path: Path, file: BuiltFile) -> Iterator[Finding]:
    try:
        size = path.lstat().st_size
        if path.is_symlink() or not path.is_file():
            yield Finding("different", file.path, "it is not a plain file")
        elif size != file.size:
            yield Finding("different", file.path, f"{size} bytes instead of {file.size}")
        elif sha256(path) != file.sha256:
            yield Finding("different", file.path, "its SHA-256 is another")
    except (FileNotFoundError, NotADirectoryError):
        yield Finding("missing", file.path, f"{file.size} bytes")
    except OSError as error:
        yield Finding("different", file.path, f"it cannot be read: {error.strerror}")


def _extra(folder: Path, record: Record) -> Iterator[Finding]:
    known = HOUSEKEEPING | {file.path for file in record.result.files}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if relative not in known and (path.is_symlink() or not path.is_dir()):
            yield Finding("extra", relative, f"{path.lstat().st_size} bytes")
