# SPDX-License-Identifier: Apache-2.0
"""The manifest of an artefact: where an engine came from and what it can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from tritonctl.engines.build.contract import BuildRequest, BuildResult
from tritonctl.engines.build.fingerprint import sha256
from tritonctl.errors import BuildFailedError, RepositoryError
from tritonctl.host.files import write_atomically
from tritonctl.project.base import Frozen
from tritonctl.project.expected import reason

MANIFEST = "manifest.json"


class Manifest(Frozen):
    """`manifest.json`, the last file written into an artefact: with it the artefact is whole."""

    schema_: Literal["tritonctl.manifest/1"] = Field("tritonctl.manifest/1", alias="schema")
    tritonctl: str
    fingerprint: str
    builder: str
    task: str
    python_backend: str
    stage: str | None = None
    source: str | None = None  # fingerprint of the stage before
    revision: str | None = None  # of the checkpoint: tritonctl.engines.build.revision
    inputs: dict[str, str] = Field({})  # what was hashed, by name: as fingerprint.py does
    request: BuildRequest
    result: BuildResult


def write_manifest(artefact: Path, manifest: Manifest) -> None:
    """Write an artefact's manifest."""
    record = manifest.model_dump(by_alias=True, mode="json")
    write_atomically(artefact / MANIFEST, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_manifest(artefact: Path) -> Manifest:
    """Read an artefact's manifest. Raises RepositoryError when it is missing or malformed."""
    try:
        return Manifest.model_validate_json((artefact / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else reason(error)
        raise RepositoryError(
            f"{artefact / MANIFEST} cannot be read: {why}",
            remedy="make the engine again: `tritonctl build --force`",
        ) from error


def verify_files(artefact: Path, result: BuildResult, builder: str) -> None:
    """Compare the staged files with what the builder reported. Raises BuildFailedError."""
    for file in result.files:
        path = artefact / file.path
        whole = path.is_file() and path.stat().st_size == file.size and sha256(path) == file.sha256
        if not whole:
            raise BuildFailedError(
                f"builder {builder} reported {file.path}, but the file is missing or different",
                remedy="run the build again; if it happens twice, report it with build.log",
            )
