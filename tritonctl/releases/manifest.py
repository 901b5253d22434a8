# SPDX-License-Identifier: Apache-2.0
"""`release.json`: the content of a release, and the results of its checks before publication."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tritonctl.errors import RepositoryError
from tritonctl.repository.contents import RELEASE
from tritonctl.store.files import IntegrityFinding, StoredFile, read_manifest, write_manifest

# Folders next to release.json.
REPOSITORY = "repository"
REQUIREMENTS = "requirements"
REPAIR = (
    "serve another release (`tritonctl releases list`), or publish again: "
    "`tritonctl releases publish`"
)


class _Record(BaseModel):
    # Unknown fields are ignored: a rollback may read a manifest from a newer tritonctl.
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class ReleasedFile(StoredFile):
    """A file of the release: relative path, bytes, SHA-256 in hex, permissions in octal."""

    model_config = _Record.model_config

    mode: Literal["0444", "0555"]
    linked: bool = False  # a hard link into the engine store

    def find_deviation(self, folder: Path) -> IntegrityFinding | None:
        """Compare the file's content, then its permissions, with this record."""
        if finding := super().find_deviation(folder):
            return finding
        mode = f"{stat.S_IMODE((folder / self.path).lstat().st_mode):04o}"
        if mode == self.mode:
            return None
        detail = f"its permissions are {mode} instead of {self.mode}"
        return IntegrityFinding("mode", self.path, detail)


class ReleasedModel(_Record):
    """A model folder of the release's repository."""

    name: str
    owner: str  # the public model whose step it is
    version: str | None  # the version folder; null for a handwritten model, which keeps its own


class ReleasedEngine(_Record):
    """The origin of a model's engine, and its evaluation at build time."""

    builder: str
    precision: str
    fingerprint: str
    revision: str | None
    limits: dict[str, Any]
    versions: dict[str, Any]
    evaluation: dict[str, Any] | None


class CheckSummary(_Record):
    """The result of `tritonctl check`; a release has no errors."""

    warnings: int


class SmokeTestSummary(_Record):
    """The result of the smoke test."""

    status: Literal["passed", "not run"]
    reason: str | None = None  # why it did not run
    passed: int = 0
    skipped: int = 0
    ready_seconds: float | None = None  # from the server's start until every model was ready


class ReleaseManifest(_Record):
    """The manifest, the last file written into a release."""

    schema_: Literal["tritonctl.release/1"] = Field("tritonctl.release/1", alias="schema")
    number: Annotated[int, Field(ge=1)]
    # Over the paths, digests and permissions of `files`, not the number: equal content, equal hash.
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    parent: str | None  # the newest release at the time of publication
    created: str  # ISO 8601, UTC
    versions: dict[str, str]  # of tritonctl, and of the server if the project pins it
    project: dict[str, Any]  # as it was read, without secrets
    lock: dict[str, Any] | None  # tritonctl.lock
    models: list[ReleasedModel]
    native: list[str]  # Triton's own backends that a server must have
    engines: dict[str, ReleasedEngine]
    files: list[ReleasedFile]
    check: CheckSummary
    smoke: SmokeTestSummary

    @property
    def name(self) -> str:
        """The folder's name: number and start of the hash."""
        return release_name(self.number, self.hash)

    @property
    def requirements(self) -> list[str]:
        """The requirements files without their locks, in the order of their numbers."""
        paths = (file.path for file in self.files)
        return sorted(p for p in paths if p.startswith(f"{REQUIREMENTS}/") and p.endswith(".txt"))


def release_name(number: int, content: str) -> str:
    """Return a name such as `3-0d5f2a7c91be`."""
    return f"{number}-{content[:12]}"


def write_release(folder: Path, release: ReleaseManifest) -> None:
    """Write the manifest of a staged release. Raises HostError."""
    write_manifest(folder / RELEASE, release)


def read_release(folder: Path) -> ReleaseManifest:
    """Read the manifest of a release. Raises RepositoryError if it is missing or malformed."""
    file = folder / RELEASE
    release = read_manifest(file, ReleaseManifest, remedy=REPAIR)
    if release.name != folder.name and not folder.name.startswith("."):
        raise RepositoryError(f"{file} belongs to release {release.name}", remedy=REPAIR)
    return release
