# SPDX-License-Identifier: Apache-2.0
"""Remove entries that nothing needs. The kind of entry decides what stays, and holds the locks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

from tritonctl.host.progress import Progress
from tritonctl.store.entries import EntryT
from tritonctl.store.folders import remove_folder, unlinked_bytes


@dataclass(frozen=True)
class PruningPlan(Generic[EntryT]):
    """Entries to remove (or removed) and entries that stay."""

    removed: tuple[EntryT, ...]
    retained: tuple[EntryT, ...]
    leftovers: tuple[Path, ...]  # folders to remove that killed commands left behind
    freed_bytes: int  # bytes of files without another hard link
    busy_models: tuple[str, ...] = ()  # models that are being built: their artefacts stay

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders to remove."""
        return (*(entry.folder for entry in self.removed), *self.leftovers)


def plan_removal(
    entries: Sequence[EntryT], staying_folders: Collection[Path], leftovers: Sequence[Path] = ()
) -> PruningPlan[EntryT]:
    """Plan to remove the leftovers, and all entries but those in `staying_folders`."""
    removed = tuple(entry for entry in entries if entry.folder not in staying_folders)
    retained = tuple(entry for entry in entries if entry.folder in staying_folders)
    folders = (*(entry.folder for entry in removed), *leftovers)
    return PruningPlan(removed, retained, tuple(leftovers), sum(map(unlinked_bytes, folders)))


def remove_chosen(
    plan: PruningPlan[EntryT], chosen: Collection[Path], progress: Progress
) -> PruningPlan[EntryT]:
    """Remove those of the `chosen` folders that the plan still removes. Raises HostError.

    The caller holds the locks that it held while planning.
    """
    removed = tuple(entry for entry in plan.removed if entry.folder in chosen)
    leftovers = tuple(folder for folder in plan.leftovers if folder in chosen)
    freed_bytes = 0
    for folder in (*leftovers, *(entry.folder for entry in removed)):
        with progress.step(f"Removing {folder.parent.name}/{folder.name}"):
            freed_bytes += remove_folder(folder)
    return replace(plan, removed=removed, leftovers=leftovers, freed_bytes=freed_bytes)
