# SPDX-License-Identifier: Apache-2.0
"""The entries of a store: address and verify them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tritonctl.errors import RepositoryError, UsageError
from tritonctl.host.files import as_host_error
from tritonctl.host.progress import Progress
from tritonctl.host.resources import usable_cores
from tritonctl.store.files import IntegrityFinding, ManifestT, StoredFile


@dataclass(frozen=True)
class StoredEntry(ABC, Generic[ManifestT]):
    """An immutable folder with its manifest. Subclasses are the kinds of entries."""

    noun: ClassVar[str]  # such as `release`; its plural ends in s
    creation: ClassVar[str]  # how a user makes the first one
    manifest_name: ClassVar[str]  # file in the folder

    folder: Path
    record: ManifestT | None  # the manifest; None: it cannot be read
    problem: str | None = None  # reason why `record` is None

    @property
    def name(self) -> str:
        """The full address on the command line."""
        return self.folder.name

    @property
    def label(self) -> str:
        """The name with what a user recognises the entry by."""
        return self.name

    @property
    @abstractmethod
    def files(self) -> Sequence[StoredFile]:
        """The files that the manifest lists; none if it cannot be read."""

    @property
    def size(self) -> int:
        """Total bytes of the files that the manifest lists."""
        return sum(file.size for file in self.files)

    @property
    @abstractmethod
    def repair(self) -> str:
        """The remedy for a damaged entry."""

    @abstractmethod
    def is_addressed_by(self, address: str) -> bool:
        """Whether `address` is a name of the entry, or the beginning of one."""

    @abstractmethod
    def content_paths(self) -> Iterable[str]:
        """Yield the relative paths of the folder's content, listed in the manifest or not."""

    @abstractmethod
    def identity_problem(self) -> str | None:
        """Explain why the manifest does not belong to this folder; called for intact files."""

    def manifest(self) -> ManifestT:
        """Return the manifest. Raises RepositoryError when it cannot be read."""
        if self.record is None:
            raise RepositoryError(f"{self.noun} {self.name}: {self.problem}", remedy=self.repair)
        return self.record


EntryT = TypeVar("EntryT", bound=StoredEntry[Any])


def find_entry(kind: type[EntryT], entries: Sequence[EntryT], address: str) -> EntryT:
    """Return the entry at `address`. Raises UsageError with the candidates unless one matches."""
    matching = [entry for entry in entries if entry.is_addressed_by(address)]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(entry.name for entry in matching or entries)
    if matching:
        raise UsageError(
            f"`{address}` matches {len(matching)} {kind.noun}s: {names}",
            remedy=f"name one: `{matching[0].name}`",
        )
    raise UsageError(
        f"no {kind.noun} `{address}`",
        remedy=f"expected one of: {names}" if names else kind.creation,
    )


def verify(entry: StoredEntry[ManifestT], progress: Progress) -> list[IntegrityFinding]:
    """Compare every file with the manifest, and the manifest with the folder's name.

    Raises HostError for an unreadable folder.
    """
    if entry.record is None:
        detail = entry.problem or "it cannot be read"
        return [IntegrityFinding("manifest", entry.manifest_name, detail)]
    findings = []
    with (
        progress.step(f"Verifying {entry.noun} {entry.name}") as step,
        as_host_error(entry.folder),
        ThreadPoolExecutor(usable_cores()) as threads,  # hashing releases the GIL
    ):
        results = threads.map(lambda file: file.find_deviation(entry.folder), entry.files)
        for file, finding in zip(entry.files, results, strict=True):
            step.update(file.path)
            findings += [finding] if finding else []
        listed_paths = {file.path for file in entry.files}
        for path in entry.content_paths():
            if path not in listed_paths:
                size = (entry.folder / path).lstat().st_size
                findings.append(IntegrityFinding("extra", path, f"{size} bytes"))
        if not findings and (problem := entry.identity_problem()):
            findings.append(IntegrityFinding("manifest", entry.manifest_name, problem))
    return findings


def require_unchanged(entry: StoredEntry[ManifestT], progress: Progress) -> None:
    """Verify an entry. Raises RepositoryError if it was modified, HostError."""
    if findings := verify(entry, progress):
        raise RepositoryError(
            f"{entry.noun} {entry.name} is not as it was published: {findings[0].path}: "
            f"{findings[0].detail}",
            remedy=entry.repair,
        )
