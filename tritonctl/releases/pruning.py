# SPDX-License-Identifier: Apache-2.0
"""Remove releases that are not live and that no rollback needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from tritonctl.host.files import as_host_error, exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.store import LINKS, LOCK, StoredRelease, releases_folder, stored_releases
from tritonctl.store.pruning import PruningPlan, plan_removal, remove_chosen

_DEPLOYED = Path("deploy") / "compose.yaml"

ReleasePruning = PruningPlan[StoredRelease]


def plan_pruning(project: Project, keep: int, required: Collection[str]) -> ReleasePruning:
    """Plan to remove all but the `keep` newest and the `required` releases. Raises HostError.

    required: names of live releases and of rollback targets.
    """
    releases = stored_releases(project)
    staying_names = {
        *required,
        *(release.name for release in releases[-keep:]),
        *_linked_releases(project, releases),
    }
    folder = releases_folder(project)
    return plan_removal(releases, {folder / name for name in staying_names})


def prune(
    project: Project,
    chosen: Collection[Path],
    keep: int,
    required: Collection[str],
    progress: Progress,
) -> ReleasePruning:
    """Remove those of the `chosen` folders that may still be removed. Raises HostError.

    The caller ensures that no server starts with one meanwhile.
    """
    folder = releases_folder(project)
    with exclusive(folder / LOCK, progress, "publish a release"), as_host_error(folder):
        return remove_chosen(plan_pruning(project, keep, required), chosen, progress)


def _linked_releases(project: Project, releases: Iterable[StoredRelease]) -> set[str]:
    """Releases that the links name (a stopped server would load them), their parents, and those
    that a separate deployment mounts.
    """
    folder = releases_folder(project)
    last = set()
    for link in LINKS:
        with suppress(OSError):  # no such link
            last.add((folder / link).readlink().name)
    try:
        deployed = (project.root / _DEPLOYED).read_text(encoding="utf-8", errors="replace")
    except OSError:
        deployed = ""
    names = last | {release.name for release in releases if release.name in deployed}
    parents = [
        release.record.parent for release in releases if release.name in last and release.record
    ]
    return names | {parent for parent in parents if parent}
