# SPDX-License-Identifier: Apache-2.0
"""The manifest of an artefact: an engine's origin, request and properties."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tritonctl.engines.builds.contract import BuildRequest, BuildResult
from tritonctl.errors import BuildFailedError
from tritonctl.project.base import Frozen
from tritonctl.store import files

MANIFEST = "manifest.json"


class Manifest(Frozen):
    """`manifest.json`, the last file written into an artefact: it marks the artefact complete."""

    schema_: Literal["tritonctl.manifest/1"] = Field("tritonctl.manifest/1", alias="schema")
    tritonctl: str
    fingerprint: str
    builder: str
    task: str
    python_backend: str
    stage: str | None = None
    source: str | None = None  # fingerprint of the previous stage
    revision: str | None = None  # commit of the checkpoint: tritonctl.engines.builds.revision
    inputs: dict[str, str] = Field({})  # hex digests of the inputs by name: fingerprint.py
    request: BuildRequest
    result: BuildResult


def write_manifest(artefact: Path, manifest: Manifest) -> None:
    """Write an artefact's manifest atomically. Raises HostError when it cannot be written."""
    files.write_manifest(artefact / MANIFEST, manifest)


def read_manifest(artefact: Path) -> Manifest:
    """Read an artefact's manifest. Raises RepositoryError when it is missing or malformed."""
    return files.read_manifest(
        artefact / MANIFEST, Manifest, remedy="make the engine again: `tritonctl build --force`"
    )


def verify_files(artefact: Path, result: BuildResult, builder: str) -> None:
    """Compare the staged files with the builder's report. Raises BuildFailedError."""
    for file in result.files:
        if file.find_deviation(artefact):
            raise BuildFailedError(
                f"builder {builder} reported {file.path}, but the file is missing or different",
                remedy="run the build again; if it happens twice, report it with build.log",
            )
