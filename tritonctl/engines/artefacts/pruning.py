# SPDX-License-Identifier: Apache-2.0
"""Removes unneeded artefacts, and what killed builds and killed prunings left behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tritonctl.engines.artefacts.store import StoredArtefact, stored_artefacts
from tritonctl.engines.artefacts.usage import ArtefactUse, Profiles, find_uses, mark_sources
from tritonctl.host.files import try_exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.store.folders import REMOVED
from tritonctl.store.pruning import PruningPlan, plan_removal, remove_chosen

ArtefactPruning = PruningPlan[StoredArtefact]


def plan_pruning(profiles: Profiles, *, keep: int = 0, sources: bool = False) -> ArtefactPruning:
    """Return what `prune` would remove.

    An artefact stays if a profile needs it, a repository links it, it is one of the `keep` newest
    unneeded ones of its model, or a retained artefact was made from it. `sources` drops the last
    condition.
    """
    project = profiles[None]
    with _hold_free_locks(project) as busy:
        return _plan_unlocked(profiles, busy, keep, sources)


def prune(
    profiles: Profiles,
    chosen: Collection[Path],
    progress: Progress,
    *,
    keep: int = 0,
    sources: bool = False,
) -> ArtefactPruning:
    """Remove those of the `chosen` folders that may still be removed. Raises HostError."""
    with _hold_free_locks(profiles[None]) as busy:
        planned = _plan_unlocked(profiles, busy, keep, sources)
        done = remove_chosen(planned, chosen, progress)
        for stored in done.removed:
            with suppress(OSError):  # other artefacts of the model are in there
                stored.folder.parent.rmdir()
        return done


def _plan_unlocked(
    profiles: Profiles, busy: Collection[str], keep: int, sources: bool
) -> ArtefactPruning:
    project = profiles[None]
    artefacts = stored_artefacts(project)
    uses = find_uses(profiles, artefacts)
    staying_folders = _staying_folders(artefacts, uses, keep, sources)
    staying_folders |= {stored.folder for stored in artefacts if stored.model in busy}
    plan = plan_removal(artefacts, staying_folders, list(_leftovers(project, busy)))
    return replace(plan, busy_models=tuple(sorted(busy)))


def _staying_folders(
    artefacts: list[StoredArtefact], uses: Mapping[Path, ArtefactUse], keep: int, sources: bool
) -> set[Path]:
    """Return the folders that stay: needed ones, the newest others, and the sources of both."""
    folders = {
        s.folder for s in artefacts if uses[s.folder].is_required or uses[s.folder].unknown_reasons
    }
    folders |= {stored.folder for stored in artefacts if stored.is_foreign}
    folders |= {stored.folder for stored in _newest_unneeded(artefacts, folders, keep)}
    if not sources:
        mark_sources([s for s in artefacts if s.folder in folders], artefacts, uses)
        folders |= {folder for folder, use in uses.items() if use.source_of}
    return folders


def _newest_unneeded(
    artefacts: Iterable[StoredArtefact], staying_folders: Collection[Path], keep: int
) -> Iterator[StoredArtefact]:
    """Yield the `keep` newest unneeded engines of each model, the newest first."""
    artefacts = list(artefacts)
    sources = {stored.record.source for stored in artefacts if stored.record}
    remaining: dict[str, int] = {}
    for stored in artefacts:
        is_engine = stored.record is not None and stored.record.fingerprint not in sources
        if is_engine and stored.folder not in staying_folders:
            remaining[stored.model] = remaining.get(stored.model, keep) - 1
            if remaining[stored.model] >= 0:
                yield stored


@contextmanager
def _hold_free_locks(project: Project) -> Iterator[set[str]]:
    """Hold every free build lock; yield the models whose locks other processes hold."""
    with ExitStack() as stack:
        models = {s.model for s in stored_artefacts(project)} | set(project.models)
        lock_is_held = {
            lock: stack.enter_context(try_exclusive(lock))
            for model in sorted(models)
            for lock in _locks(project, model)
        }
        yield {
            model
            for model in models
            if not all(lock_is_held[lock] for lock in _locks(project, model))
        }


def _locks(project: Project, model: str) -> list[Path]:
    """Return the lock of a model's builds, and the locks of its stages."""
    folder = project.state / "locks"
    model_lock = folder / f"build-{model}.lock"
    return [model_lock, *sorted(folder.glob(f"build-{model}-*.lock"))]


def _leftovers(project: Project, busy: Collection[str]) -> Iterator[Path]:
    """Yield staging folders without a running build, and folders that a killed prune renamed."""
    store = project.state / "engines"
    yield from sorted(f for f in store.glob(f"*/{REMOVED}*") if f.parent.name not in busy)
    staging = project.state / "staging"
    for folder in sorted(staging.glob("*")):
        name = folder.name.removeprefix(REMOVED)
        if not any(name.startswith(f"{model}-") for model in busy):
            yield folder
