# SPDX-License-Identifier: Apache-2.0
"""Removes artefacts that nobody needs: lock, look again, rename, delete.

What a killed `prune` or a killed build left goes with them. A renamed folder is hidden (`.removed-`
before its name), so that half of an artefact never looks like one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines.artefacts.store import Stored, stored_artefacts
from tritonctl.engines.artefacts.usage import Profiles, Use, mark_sources, usage
from tritonctl.host.files import explained, if_free
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project

_REMOVED = ".removed-"


@dataclass(frozen=True)
class Pruning:
    """What to remove (or what was), what stays, and which models are being built right now.

    `leftovers` are folders that killed builds and killed prunings left behind; `freed` counts
    bytes, of files that have no other name.
    """

    artefacts: tuple[Stored, ...]
    leftovers: tuple[Path, ...]
    kept: tuple[Stored, ...]
    being_built: tuple[str, ...]
    freed: int

    @property
    def folders(self) -> tuple[Path, ...]:
        """Everything to remove."""
        return (*(stored.folder for stored in self.artefacts), *self.leftovers)


def plan_pruning(profiles: Profiles, *, keep: int = 0, sources: bool = False) -> Pruning:
    """What `prune` would remove: what no profile needs, no repository links and no kept artefact
    was made from, but for the `keep` newest of each model. `sources` drops the last condition.
    """
    project = profiles[None]
    with _locked(project) as busy:
        return _planned(profiles, busy, keep, sources)


def prune(
    profiles: Profiles,
    chosen: Collection[Path],
    progress: Progress,
    *,
    keep: int = 0,
    sources: bool = False,
) -> Pruning:
    """Remove those of the `chosen` folders that may still be removed. Raises HostError."""
    with _locked(profiles[None]) as busy:
        planned = _planned(profiles, busy, keep, sources)
        artefacts = tuple(s for s in planned.artefacts if s.folder in chosen)
        leftovers = tuple(folder for folder in planned.leftovers if folder in chosen)
        freed = 0
        for folder in (*leftovers, *(stored.folder for stored in artefacts)):
            with progress.step(f"Removing {folder.parent.name}/{folder.name}"):
                freed += _remove(folder)
        for stored in artefacts:
            with suppress(OSError):  # other artefacts of the model are in there
                stored.folder.parent.rmdir()
    return Pruning(artefacts, leftovers, planned.kept, planned.being_built, freed)


def _planned(profiles: Profiles, busy: Collection[str], keep: int, sources: bool) -> Pruning:
    project = profiles[None]
    artefacts = stored_artefacts(project)
    uses = usage(profiles, artefacts)
    stay = _stay(artefacts, uses, keep, sources)
    removable = [s for s in artefacts if s.folder not in stay and s.model not in busy]
    leftovers = list(_leftovers(project, busy))
    folders = [stored.folder for stored in removable] + leftovers
    return Pruning(
        artefacts=tuple(removable),
        leftovers=tuple(leftovers),
        kept=tuple(stored for stored in artefacts if stored not in removable),
        being_built=tuple(sorted(busy)),
        freed=sum(_own_bytes(folder) for folder in folders),
    )


def _stay(artefacts: list[Stored], uses: Mapping[Path, Use], keep: int, sources: bool) -> set[Path]:
    """Folders that are needed, the newest that are not, and what those were made from."""
    stay = {s.folder for s in artefacts if uses[s.folder].served or uses[s.folder].undecided}
    stay |= {stored.folder for stored in artefacts if stored.foreign}
    stay |= {stored.folder for stored in _newest(artefacts, stay, keep)}
    if not sources:
        mark_sources([s for s in artefacts if s.folder in stay], artefacts, uses)
        stay |= {folder for folder, use in uses.items() if use.source_of}
    return stay


def _newest(artefacts: Iterable[Stored], stay: Collection[Path], keep: int) -> Iterator[Stored]:
    """Of each model the `keep` newest engines that nobody needs; they come newest first."""
    artefacts = list(artefacts)
    sources = {stored.record.source for stored in artefacts if stored.record}
    left: dict[str, int] = {}
    for stored in artefacts:
        engine = stored.record is not None and stored.record.fingerprint not in sources
        if engine and stored.folder not in stay:
            left[stored.model] = left.get(stored.model, keep) - 1
            if left[stored.model] >= 0:
                yield stored


@contextmanager
def _locked(project: Project) -> Iterator[set[str]]:
    """Hold every build lock that is free; the models whose locks others hold."""
    with ExitStack() as stack:
        models = {s.model for s in stored_artefacts(project)} | set(project.models)
        held = {
            lock: stack.enter_context(if_free(lock))
            for model in sorted(models)
            for lock in _locks(project, model)
        }
        yield {model for model in models if not all(held[lock] for lock in _locks(project, model))}


def _locks(project: Project, model: str) -> list[Path]:
    """The lock of a model's builds, and those of its stages where they have their own."""
    folder = project.state / "locks"
    own = folder / f"build-{model}.lock"
    return [own, *sorted(folder.glob(f"build-{model}-*.lock"))]


def _leftovers(project: Project, busy: Collection[str]) -> Iterator[Path]:
    """Staging folders whose build is gone, and what a killed pruning had only renamed."""
    store = project.state / "engines"
    yield from sorted(f for f in store.glob(f"*/{_REMOVED}*") if f.parent.name not in busy)
    staging = project.state / "staging"
    for folder in sorted(staging.glob("*")):
        name = folder.name.removeprefix(_REMOVED)
        if not any(name.startswith(f"{model}-") for model in busy):
            yield folder


def _own_bytes(folder: Path) -> int:
    """Bytes of the files below a folder that have no other name."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            status = (Path(parent) / name).lstat()
            total += status.st_size if status.st_nlink == 1 else 0
    return total


def _remove(folder: Path) -> int:
    with explained(folder):
        freed = _own_bytes(folder)
        doomed = folder
        if not folder.name.startswith(_REMOVED):
            doomed = folder.with_name(f"{_REMOVED}{folder.name}")
            os.rename(folder, doomed)
        shutil.rmtree(doomed)
    return freed
