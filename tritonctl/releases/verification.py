# SPDX-License-Identifier: Apache-2.0
"""Whether a release is as it was published, byte for byte."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines.build.fingerprint import sha256
from tritonctl.errors import RepositoryError
from tritonctl.host.files import explained
from tritonctl.host.progress import Progress
from tritonctl.host.resources import usable_cores
from tritonctl.releases.manifest import REPOSITORY, Release, ReleasedFile
from tritonctl.releases.staging import content, content_hash, neutral
from tritonctl.releases.store import Stored
from tritonctl.repository.contents import CONFIG, RELEASE


@dataclass(frozen=True)
class Finding:
    """What is not as it was published: `kind` is missing, different, extra, mode or manifest."""

    kind: str
    path: str
    detail: str


def verify_release(stored: Stored, progress: Progress) -> list[Finding]:
    """Compare every file with the manifest, and the manifest with the hash in the name.

    Raises HostError for what cannot be read.
    """
    if stored.release is None:
        return [Finding("manifest", RELEASE, stored.problem or "it cannot be read")]
    release = stored.release
    with (
        progress.step(f"Verifying release {stored.name}"),
        explained(stored.folder),
        ThreadPoolExecutor(usable_cores()) as threads,  # hashing holds no lock of Python's
    ):
        found = threads.map(lambda file: _verified(stored.folder, file), release.files)
        findings = [finding for finding in found if finding]
        known = {file.path for file in release.files}
        findings += [
            Finding("extra", path, "nothing of the release")
            for path in content(stored.folder)
            if path not in known
        ]
        if not findings and content_hash(release.files, release.models, _counted(stored)) != (
            release.hash
        ):
            findings.append(
                Finding("manifest", RELEASE, "its files have another hash than its name says")
            )
    return findings


def require_whole(stored: Stored, progress: Progress) -> Release:
    """The manifest of a release that is as it was published. Raises RepositoryError, HostError."""
    findings = verify_release(stored, progress)
    if findings:
        raise RepositoryError(
            f"release {stored.name} is not as it was published: {findings[0].path}: "
            f"{findings[0].detail}",
            remedy="serve another one (`tritonctl releases list`), or publish again: "
            "`tritonctl release`",
        )
    return stored.manifest()


def _counted(stored: Stored) -> dict[str, str]:
    """The configurations of rendered models as they count, wherever the release lies."""
    return dict(_neutral(stored))


def _neutral(stored: Stored) -> Iterator[tuple[str, str]]:
    for model in stored.manifest().models:
        if model.version is not None:
            file = stored.repository / model.name / CONFIG
            there = f"{stored.repository / model.name}/{model.version}/"
            text = file.read_text(encoding="utf-8")
            yield f"{REPOSITORY}/{model.name}/{CONFIG}", neutral(text, there)


def _verified(folder: Path, file: ReleasedFile) -> Finding | None:
    path = folder / file.path
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Finding("missing", file.path, f"{file.size} bytes")
    if not stat.S_ISREG(status.st_mode):
        return Finding("different", file.path, "it is not a plain file")
    if status.st_size != file.size:
        return Finding("different", file.path, f"{status.st_size} bytes instead of {file.size}")
    if sha256(path) != file.sha256:
        return Finding("different", file.path, "its SHA-256 is another")
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if mode != file.mode:
        return Finding("mode", file.path, f"its permissions are {mode} instead of {file.mode}")
    return None
