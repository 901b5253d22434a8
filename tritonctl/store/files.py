# SPDX-License-Identifier: Apache-2.0
"""The files of an entry as its manifest lists them, and the manifest itself."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from tritonctl.errors import RepositoryError
from tritonctl.host.files import sha256, write_atomically
from tritonctl.project.base import Frozen
from tritonctl.project.expected import reason

_MAX_MANIFEST_BYTES = 64 << 20

ManifestT = TypeVar("ManifestT", bound=BaseModel)


def _relative_path(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("the path leads out of the folder")
    return path


@dataclass(frozen=True)
class IntegrityFinding:
    """A deviation of an entry from its manifest."""

    kind: str  # missing, different, mode, extra or manifest
    path: str
    detail: str


class StoredFile(Frozen):
    """A file of an entry."""

    path: Annotated[str, AfterValidator(_relative_path)]  # relative to the entry's folder
    size: Annotated[int, Field(ge=0)]  # bytes
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def find_deviation(self, folder: Path) -> IntegrityFinding | None:
        """Compare type, size and SHA-256 of the file below `folder` with this record."""
        path = folder / self.path
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                detail = "it is not a plain file"
            elif status.st_size != self.size:
                detail = f"{status.st_size} bytes instead of {self.size}"
            elif sha256(path) != self.sha256:
                detail = "its SHA-256 differs"
            else:
                return None
        except (FileNotFoundError, NotADirectoryError):
            return IntegrityFinding("missing", self.path, f"{self.size} bytes")
        except OSError as error:
            detail = f"it cannot be read: {error.strerror}"
        return IntegrityFinding("different", self.path, detail)


def write_manifest(file: Path, manifest: BaseModel) -> None:
    """Write a manifest atomically. Raises HostError."""
    record = manifest.model_dump(by_alias=True, mode="json")
    write_atomically(file, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_manifest(file: Path, schema: type[ManifestT], *, remedy: str) -> ManifestT:
    """Read a manifest. Raises RepositoryError when it is missing, too large or malformed."""
    try:
        if file.stat().st_size > _MAX_MANIFEST_BYTES:
            raise RepositoryError(f"{file} is too large for a manifest", remedy=remedy)
        return schema.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        cause = error.strerror if isinstance(error, OSError) else reason(error)
        raise RepositoryError(f"{file} cannot be read: {cause}", remedy=remedy) from error
