# SPDX-License-Identifier: Apache-2.0
"""Users of an artefact: a profile of the project, a rendered repository, an engine made from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tritonctl.engines.artefacts.store import StoredArtefact
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.errors import TritonctlError
from tritonctl.host.files import read_record
from tritonctl.project.schema import Project
from tritonctl.store.folders import file_statuses

# The project under each of its profiles, by profile name; None: without a profile.
Profiles = Mapping[str | None, Project]


@dataclass
class ArtefactUse:
    """Reasons why an artefact is needed; all empty: it is unneeded."""

    profiles: list[str | None] = field(default_factory=list)
    repositories: list[Path] = field(default_factory=list)
    source_of: list[str] = field(default_factory=list)  # retained artefacts made from this one
    unknown_reasons: list[str] = field(default_factory=list)  # why the project's need is unknown

    @property
    def is_required(self) -> bool:
        """Whether the project or a repository needs the artefact itself."""
        return bool(self.profiles or self.repositories)

    @property
    def is_needed(self) -> bool:
        """Whether anything needs the artefact, or may need it."""
        return bool(self.is_required or self.source_of or self.unknown_reasons)


def find_uses(profiles: Profiles, artefacts: Iterable[StoredArtefact]) -> dict[Path, ArtefactUse]:
    """Return the use of each artefact, by folder."""
    artefacts = list(artefacts)
    needed_folders, unknown_reasons = _find_needed_folders(profiles)
    links = {repository: _shared_files(repository) for repository in _repositories(profiles)}
    uses = {}
    for stored in artefacts:
        own_files = _shared_files(stored.folder)
        uses[stored.folder] = ArtefactUse(
            profiles=needed_folders.get(stored.folder, []),
            repositories=[repository for repository, files in links.items() if files & own_files],
            unknown_reasons=unknown_reasons.get(stored.model, []),
        )
    mark_sources([s for s in artefacts if uses[s.folder].is_needed], artefacts, uses)
    return uses


def mark_sources(
    retained: Iterable[StoredArtefact],
    artefacts: Iterable[StoredArtefact],
    uses: Mapping[Path, ArtefactUse],
) -> None:
    """Add to each artefact's `source_of` the `retained` artefacts made from it, over all stages."""
    artefacts = list(artefacts)
    for stored in retained:
        for source in ancestors(stored, artefacts):
            names = uses[source.folder].source_of
            if stored.name not in names:
                names.append(stored.name)


def ancestors(
    stored: StoredArtefact, artefacts: Iterable[StoredArtefact]
) -> Iterator[StoredArtefact]:
    """Yield the artefacts that an artefact was made from, the latest stage first."""
    by_fingerprint = {s.record.fingerprint: s for s in artefacts if s.record}
    seen = {stored.folder}
    while stored.record and (source := by_fingerprint.get(stored.record.source or "")):
        if source.folder in seen:  # a damaged manifest may name itself
            return
        seen.add(source.folder)
        yield source
        stored = source


def _find_needed_folders(
    profiles: Profiles,
) -> tuple[dict[Path, list[str | None]], dict[str, list[str]]]:
    """Return the profiles that need each folder, and for undecidable models the reasons."""
    needed_folders: dict[Path, list[str | None]] = {}
    unknown_reasons: dict[str, list[str]] = {}
    for profile, project in profiles.items():
        for name in project.models:
            try:
                stages = plan_stages(project, name)
            except TritonctlError as error:
                unknown_reasons.setdefault(name, []).append(error.problem)
                continue
            # Without the engine the next build resumes after the last finished stage.
            for build in stages[-1:] if stages[-1].is_published else stages:
                needed_folders.setdefault(build.folder, []).append(profile)
    return needed_folders, unknown_reasons


def _repositories(profiles: Profiles) -> list[Path]:
    """Return the repositories that link engines: of each profile, last rendered, deployed."""
    repositories = {project.repository for project in profiles.values()}
    for state in {project.state for project in profiles.values()}:
        for file in (state / "rendered.json", state / "server" / "state.json"):
            if isinstance(repository := read_record(file).get("repository"), str):
                repositories.add(Path(repository))
    return sorted(folder for folder in repositories if folder.is_dir())


def _shared_files(folder: Path) -> set[tuple[int, int]]:
    """Return device and inode of every file with more than one hard link."""
    statuses = file_statuses(folder)
    return {(status.st_dev, status.st_ino) for status in statuses if status.st_nlink > 1}
