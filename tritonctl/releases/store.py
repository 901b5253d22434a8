# SPDX-License-Identifier: Apache-2.0
"""The releases of a project in `releases/<number>-<hash>/`: list, find, number, link."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import RepositoryError, UsageError
from tritonctl.host.files import as_host_error, write_atomically
from tritonctl.project.schema import Project
from tritonctl.releases.manifest import (
    REPAIR,
    REPOSITORY,
    ReleasedFile,
    ReleaseManifest,
    read_release,
)
from tritonctl.releases.staging import content_hash, content_paths, location_independent_digest
from tritonctl.repository.contents import CONFIG, RELEASE
from tritonctl.store.entries import StoredEntry, find_entry

FOLDER = "releases"
LATEST = "latest"
# Link to the release that a server loads; Triton reads the repository through it.
LINK = "current"
LINKS = (LINK, "current-b")  # one per slot
LOCK = ".lock"  # held while publishing or removing releases
_NUMBER = ".number"  # the last number used, also by a pruned release
_NAME = re.compile(r"([1-9]\d{0,17})-[0-9a-f]{12}")


@dataclass(frozen=True)
class StoredRelease(StoredEntry[ReleaseManifest]):
    """A folder of releases/."""

    noun = "release"
    creation = "publish one: `tritonctl releases publish`"
    manifest_name = RELEASE

    @property
    def number(self) -> int:
        """The release number."""
        return int(self.name.partition("-")[0])

    @property
    def repository(self) -> Path:
        """The model repository of the release."""
        return self.folder / REPOSITORY

    @property
    def files(self) -> Sequence[ReleasedFile]:
        """The files of the release."""
        return self.record.files if self.record else ()

    @property
    def repair(self) -> str:
        """The remedy for a damaged release."""
        return REPAIR

    def is_addressed_by(self, address: str) -> bool:
        """Whether `address` is the number, the name, or a prefix of the name with the number."""
        number, dash, _ = address.partition("-")
        return str(self.number) == number and (not dash or self.name.startswith(address))

    def content_paths(self) -> Iterator[str]:
        """Yield the paths of the released files."""
        return content_paths(self.folder)

    def identity_problem(self) -> str | None:
        """Compare the hash of the files with the hash in the name. Raises OSError."""
        release = self.manifest()
        # Rendered configurations count without the release's location.
        digests = {}
        for model in release.models:
            if model.version is not None:
                folder = self.repository / model.name
                text = (folder / CONFIG).read_text(encoding="utf-8")
                digests[f"{REPOSITORY}/{model.name}/{CONFIG}"] = location_independent_digest(
                    text, f"{folder}/{model.version}/"
                )
        if content_hash(release.files, release.models, digests) == release.hash:
            return None
        return "the hash of its files differs from its name"


def releases_folder(project: Project) -> Path:
    """Return the folder of a project's releases."""
    return project.root / FOLDER


def stored_releases(project: Project) -> list[StoredRelease]:
    """List every release of a project by number. Raises HostError."""
    folder = releases_folder(project)
    if not folder.is_dir():
        return []
    with as_host_error(folder):
        folders = [
            path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()
        ]
    return sorted(map(_read_entry, folders), key=lambda stored: (stored.number, stored.name))


def _read_entry(folder: Path) -> StoredRelease:
    try:
        return StoredRelease(folder, read_release(folder))
    except RepositoryError as error:
        return StoredRelease(folder, None, error.problem.removeprefix(f"{folder}/"))


def find_release(releases: Sequence[StoredRelease], address: str) -> StoredRelease:
    """Find the release that `address` names: a number, a name or its prefix, or `latest`.

    Raises UsageError when none or several match.
    """
    if address == LATEST and releases:
        return releases[-1]
    return find_entry(StoredRelease, releases, address)


def already_served_error(stored: StoredRelease) -> UsageError:
    """Return the error of a command that was to make this release live."""
    return UsageError(
        f"release {stored.name} is already live",
        remedy="name another one: `tritonctl releases list`",
    )


def next_number(folder: Path, releases: Sequence[StoredRelease]) -> int:
    """Return a number that no release has used. The caller holds the lock."""
    try:
        last = int((folder / _NUMBER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = 0
    return max([last, *(stored.number for stored in releases)]) + 1


def record_number(folder: Path, number: int) -> None:
    """Record this number as used. Raises HostError."""
    write_atomically(folder / _NUMBER, f"{number}\n")


def point_link(link: Path, folder: Path) -> None:
    """Point the link to this release atomically. Raises HostError."""
    with as_host_error(link):
        temporary = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}")
        # Relative: it also works in a container, where the folder has another path.
        temporary.symlink_to(folder.name, target_is_directory=True)
        try:
            os.replace(temporary, link)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
