# SPDX-License-Identifier: Apache-2.0
"""Removes releases that nobody serves and nothing leads back to: lock, look, rename, delete."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tritonctl.host.files import exclusive, explained
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.store import (
    LINKS,
    LOCK,
    REMOVED,
    Stored,
    releases_folder,
    remove_tree,
    stored_releases,
)

_DEPLOYED = Path("deploy") / "compose.yaml"


@dataclass(frozen=True)
class Pruning:
    """What to remove, or what was; `freed` counts bytes of files that have no other name."""

    removed: tuple[Stored, ...]
    kept: tuple[Stored, ...]
    freed: int


def plan_pruning(project: Project, keep: int, needed: Collection[str]) -> Pruning:
    """Everything but the `keep` newest and what is `needed`: the names of what is served, and of
    what a rollback leads to. Raises HostError.
    """
    releases = stored_releases(project)
    stay = {*needed, *(one.name for one in releases[-keep:]), *_linked(project, releases)}
    removed = tuple(one for one in releases if one.name not in stay)
    kept = tuple(one for one in releases if one.name in stay)
    return Pruning(removed, kept, sum(_own_bytes(one.folder) for one in removed))


def prune(
    project: Project,
    chosen: Collection[str],
    keep: int,
    needed: Collection[str],
    progress: Progress,
) -> Pruning:
    """Remove those of the `chosen` that may still be removed. Raises HostError.

    The caller sees to it that meanwhile nobody begins to serve one.
    """
    folder = releases_folder(project)
    with exclusive(folder / LOCK, progress, "publish a release"), explained(folder):
        planned = plan_pruning(project, keep, needed)
        removed = tuple(one for one in planned.removed if one.name in chosen)
        freed = 0
        for one in removed:
            with progress.step(f"Removing release {one.name}"):
                freed += _own_bytes(one.folder)
                doomed = one.folder.with_name(f"{REMOVED}{one.name}")
                os.rename(one.folder, doomed)  # half of a release never looks like one
                remove_tree(doomed)
        return Pruning(removed, planned.kept, freed)


def _linked(project: Project, releases: Iterable[Stored]) -> set[str]:
    """What the links name, which a server that is down would load again, and its parent; what a
    deployment of its own mounts.
    """
    folder = releases_folder(project)
    last = set()
    for link in LINKS:
        with suppress(OSError):  # there is none
            last.add((folder / link).readlink().name)
    try:
        deployed = (project.root / _DEPLOYED).read_text(encoding="utf-8", errors="replace")
    except OSError:
        deployed = ""
    names = last | {one.name for one in releases if one.name in deployed}
    parents = [one.release.parent for one in releases if one.name in last and one.release]
    return names | {parent for parent in parents if parent}


def _own_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            status = (Path(parent) / name).lstat()
            total += status.st_size if status.st_nlink == 1 else 0
    return total
