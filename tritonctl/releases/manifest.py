# SPDX-License-Identifier: Apache-2.0
"""`release.json`: what a release is made of, and what was asked of it before it was published."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tritonctl.errors import RepositoryError
from tritonctl.project.expected import reason
from tritonctl.repository.contents import RELEASE

# Beside release.json.
REPOSITORY = "repository"
REQUIREMENTS = "requirements"
_LARGEST = 64 << 20  # bytes of a manifest that is read


def _inside(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("the path leads out of the release")
    return path


class _Record(BaseModel):
    # Additive: a rollback may meet what a newer tritonctl has published.
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class ReleasedFile(_Record):
    """A file of the release: its path in it, bytes, SHA-256 in hex, permissions in octal.

    `linked`: it shares its bytes with the engine store.
    """

    path: Annotated[str, AfterValidator(_inside)]
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    mode: Literal["0444", "0555"]
    linked: bool = False


class ReleasedModel(_Record):
    """A folder of its repository.

    `owner`: the public model whose step it is. `version`: its version folder; null of a model that
    was written by hand, whose folders keep their own numbers.
    """

    name: str
    owner: str
    version: str | None


class ReleasedEngine(_Record):
    """Where a model's engine came from, and how it answered when it was built."""

    builder: str
    precision: str
    fingerprint: str
    revision: str | None
    limits: dict[str, Any]
    versions: dict[str, Any]
    evaluation: dict[str, Any] | None


class Checked(_Record):
    """What `tritonctl check` said: a release has no errors."""

    warnings: int


class Smoked(_Record):
    """Whether a server has answered from it. `reason`: why none was asked.

    `ready_seconds`: how long that server took until every model was ready.
    """

    status: Literal["passed", "not run"]
    reason: str | None = None
    passed: int = 0
    skipped: int = 0
    ready_seconds: float | None = None


class Release(_Record):
    """The whole manifest, the last file written into a release.

    `hash` is over the paths, digests and permissions of `files`, whatever its number: equal
    content, equal hash. `parent`: the newest release there was.
    """

    schema_: Literal["tritonctl.release/1"] = Field("tritonctl.release/1", alias="schema")
    number: Annotated[int, Field(ge=1)]
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    parent: str | None
    created: str  # ISO 8601, UTC
    versions: dict[str, str]  # of tritonctl, and of the server where the project decides it
    project: dict[str, Any]  # as it was read, without secrets
    lock: dict[str, Any] | None  # tritonctl.lock
    models: list[ReleasedModel]
    native: list[str]  # Triton's own backends that a server must have
    engines: dict[str, ReleasedEngine]
    files: list[ReleasedFile]
    check: Checked
    smoke: Smoked

    @property
    def name(self) -> str:
        """Number and the beginning of the hash: what its folder is called."""
        return release_name(self.number, self.hash)

    @property
    def requirements(self) -> list[str]:
        """Its files of Python packages, in the order of their numbers."""
        return sorted(f.path for f in self.files if f.path.startswith(f"{REQUIREMENTS}/"))


def release_name(number: int, content: str) -> str:
    """`3-0d5f2a7c91be`."""
    return f"{number}-{content[:12]}"


def write_release(folder: Path, release: Release) -> None:
    """Write the manifest of a release that is being made. Raises OSError."""
    record = release.model_dump(by_alias=True, mode="json")
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (folder / RELEASE).write_text(text, encoding="utf-8")


def read_release(folder: Path) -> Release:
    """The manifest of a release. Raises RepositoryError when it is missing or malformed."""
    file = folder / RELEASE
    try:
        if file.stat().st_size > _LARGEST:
            raise RepositoryError(f"{file} is no manifest: it is too large", remedy=_REMEDY)
        release = Release.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else reason(error)
        raise RepositoryError(f"{file} cannot be read: {why}", remedy=_REMEDY) from error
    if release.name != folder.name and not folder.name.startswith("."):
        raise RepositoryError(f"{file} is that of release {release.name}", remedy=_REMEDY)
    return release


_REMEDY = "serve another release (`tritonctl releases list`), or publish again: `tritonctl release`"
