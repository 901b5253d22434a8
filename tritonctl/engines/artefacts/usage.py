# SPDX-License-Identifier: Apache-2.0
"""Who needs an artefact: the project under one of its profiles, a rendered repository, an engine
made from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tritonctl.engines.artefacts.store import Stored
from tritonctl.engines.build.stages import plan_stages
from tritonctl.errors import TritonctlError
from tritonctl.host.files import read_record
from tritonctl.project.schema import Project

# A project without a profile and under each of its profiles, by the profile's name.
Profiles = Mapping[str | None, Project]


@dataclass
class Use:
    """Why an artefact is needed; all empty: it is not.

    `source_of` are names of kept artefacts that were made from this one. `undecided` says why
    the project's need of this model is unknown.
    """

    profiles: list[str | None] = field(default_factory=list)
    repositories: list[Path] = field(default_factory=list)
    source_of: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)

    @property
    def served(self) -> bool:
        """Whether the project or a repository needs the artefact itself."""
        return bool(self.profiles or self.repositories)

    @property
    def needed(self) -> bool:
        """Whether it is needed for anything, or may be."""
        return bool(self.served or self.source_of or self.undecided)


def usage(profiles: Profiles, artefacts: Iterable[Stored]) -> dict[Path, Use]:
    """Who needs each of the artefacts, by folder."""
    artefacts = list(artefacts)
    needed, undecided = _needed(profiles)
    links = {repository: _shared_files(repository) for repository in _repositories(profiles)}
    uses = {}
    for stored in artefacts:
        own = _shared_files(stored.folder)
        uses[stored.folder] = Use(
            profiles=needed.get(stored.folder, []),
            repositories=[repository for repository, files in links.items() if files & own],
            undecided=undecided.get(stored.model, []),
        )
    mark_sources([s for s in artefacts if uses[s.folder].needed], artefacts, uses)
    return uses


def mark_sources(
    kept: Iterable[Stored], artefacts: Iterable[Stored], uses: Mapping[Path, Use]
) -> None:
    """Note at every artefact which of the `kept` ones were made from it, over all stages."""
    artefacts = list(artefacts)
    for stored in kept:
        for source in sources(stored, artefacts):
            names = uses[source.folder].source_of
            if stored.name not in names:
                names.append(stored.name)


def sources(stored: Stored, artefacts: Iterable[Stored]) -> Iterator[Stored]:
    """What an artefact was made from, stage before stage."""
    by_fingerprint = {s.record.fingerprint: s for s in artefacts if s.record}
    seen = {stored.folder}
    while stored.record and (source := by_fingerprint.get(stored.record.source or "")):
        if source.folder in seen:  # a damaged manifest may name itself
            return
        seen.add(source.folder)
        yield source
        stored = source


def _needed(
    profiles: Profiles,
) -> tuple[dict[Path, list[str | None]], dict[str, list[str]]]:
    """Folders with the profiles that need them; models whose need is unknown, and why."""
    needed: dict[Path, list[str | None]] = {}
    undecided: dict[str, list[str]] = {}
    for profile, project in profiles.items():
        for name in project.models:
            try:
                stages = plan_stages(project, name)
            except TritonctlError as error:
                undecided.setdefault(name, []).append(error.problem)
                continue
            # Without the engine the next build resumes after the last finished stage.
            for build in stages[-1:] if stages[-1].published else stages:
                needed.setdefault(build.folder, []).append(profile)
    return needed, undecided


def _repositories(profiles: Profiles) -> list[Path]:
    """Where engines are linked into: each profile's repository, the one last rendered, the one
    being served.
    """
    repositories = {project.repository for project in profiles.values()}
    for state in {project.state for project in profiles.values()}:
        for file in (state / "rendered.json", state / "server" / "state.json"):
            if isinstance(repository := read_record(file).get("repository"), str):
                repositories.add(Path(repository))
    return sorted(folder for folder in repositories if folder.is_dir())


def _shared_files(folder: Path) -> set[tuple[int, int]]:
    """Device and inode of every file that has more than one name."""
    files = set()
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # somebody renders just now
                status = (Path(parent) / name).lstat()
                if status.st_nlink > 1:
                    files.add((status.st_dev, status.st_ino))
    return files
