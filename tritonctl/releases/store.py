# SPDX-License-Identifier: Apache-2.0
"""The releases of a project: `releases/<number>-<hash>/`, found, addressed, numbered."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import RepositoryError, UsageError
from tritonctl.host.files import explained, write_atomically
from tritonctl.project.schema import Project
from tritonctl.releases.manifest import REPOSITORY, Release, read_release

FOLDER = "releases"
LATEST = "latest"
# Names the release that a server loads; what Triton reads is behind it.
LINK = "current"
LINKS = (LINK, "current-b")  # two groups of servers may run
LOCK = ".lock"  # held while releases are published or removed
STAGING = ".staging-"
REMOVED = ".removed-"
_NUMBER = ".number"  # the last one given, also to what was pruned since
_NAME = re.compile(r"([1-9]\d{0,17})-[0-9a-f]{12}")


@dataclass(frozen=True)
class Stored:
    """A folder of releases/. Without a readable manifest `problem` says why."""

    folder: Path
    release: Release | None
    problem: str | None = None

    @property
    def name(self) -> str:
        """`3-0d5f2a7c91be`."""
        return self.folder.name

    @property
    def number(self) -> int:
        """What comes before the hash."""
        return int(self.name.partition("-")[0])

    @property
    def repository(self) -> Path:
        """The model repository in it."""
        return self.folder / REPOSITORY

    def manifest(self) -> Release:
        """The manifest. Raises RepositoryError when it cannot be read."""
        return self.release or read_release(self.folder)


def releases_folder(project: Project) -> Path:
    """Where a project's releases are."""
    return project.root / FOLDER


def stored_releases(project: Project) -> list[Stored]:
    """Every release of a project, by number. Raises HostError."""
    folder = releases_folder(project)
    if not folder.is_dir():
        return []
    with explained(folder):
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(map(_stored, found), key=lambda stored: (stored.number, stored.name))


def _stored(folder: Path) -> Stored:
    try:
        return Stored(folder, read_release(folder))
    except RepositoryError as error:
        return Stored(folder, None, error.problem)


def find_release(releases: Sequence[Stored], address: str) -> Stored:
    """The release that `address` names: a number, a name or its beginning, or `latest`.

    Raises UsageError when none or several match.
    """
    if address == LATEST and releases:
        return releases[-1]
    number, dash, _ = address.partition("-")
    matching = [
        stored
        for stored in releases
        if str(stored.number) == number and (not dash or stored.name.startswith(address))
    ]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(stored.name for stored in (matching or releases))
    if matching:
        raise UsageError(f"`{address}` may be any of {names}", remedy=f"name one: {names}")
    raise UsageError(
        f"no release `{address}`",
        remedy=f"expected one of: {names}" if names else "publish one: `tritonctl release`",
    )


def already_served(stored: Stored) -> UsageError:
    """The error of a command that changes what is served, for the release that is."""
    return UsageError(
        f"release {stored.name} is already served",
        remedy="name another one: `tritonctl releases list`",
    )


def next_number(folder: Path, releases: Sequence[Stored]) -> int:
    """A number that no release has had. The caller holds the lock."""
    try:
        last = int((folder / _NUMBER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = 0
    return max([last, *(stored.number for stored in releases)]) + 1


def keep_number(folder: Path, number: int) -> None:
    """Never give this number again. Raises HostError."""
    write_atomically(folder / _NUMBER, f"{number}\n")


def point(link: Path, folder: Path) -> None:
    """Let the link name this release from now on, in one step. Raises HostError."""
    with explained(link):
        temporary = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}")
        # Relative: it holds in a container, too, where the folder has another place.
        temporary.symlink_to(folder.name, target_is_directory=True)
        try:
            os.replace(temporary, link)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def remove_tree(folder: Path) -> None:
    """Remove a release's folder, or half of one: nobody else may write there. Raises OSError."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o700)
    shutil.rmtree(folder)
