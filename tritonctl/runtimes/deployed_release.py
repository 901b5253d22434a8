# SPDX-License-Identifier: Apache-2.0
"""A release as a slot's servers see it: behind the slot's link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tritonctl.host.files import exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.slots import Slot, stable_slot
from tritonctl.releases.store import StoredRelease, point_link, releases_folder
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.repository.publish import RenderedRepository
from tritonctl.store.entries import require_unchanged

_LOCK = ".serving"


@contextmanager
def release_lock(project: Project, progress: Progress) -> Iterator[None]:
    """Lock the slots' links and the releases against concurrent switches and pruning."""
    with exclusive(releases_folder(project) / _LOCK, progress, "serve a release"):
        yield


@dataclass(frozen=True)
class DeployedRelease:
    """A release behind the link of a slot."""

    stored: StoredRelease
    project: Project  # as it was released
    rendered: RenderedRepository
    link: Path  # the path by which servers find the release

    @classmethod
    def verified(
        cls, project: Project, stored: StoredRelease, progress: Progress, slot: Slot | None = None
    ) -> DeployedRelease:
        """Verify a release before it is deployed, by default in the stable slot.

        Raises RepositoryError if the release was modified after publishing.
        """
        require_unchanged(stored, progress)
        return cls.unverified(project, stored, slot)

    @classmethod
    def unverified(
        cls, project: Project, stored: StoredRelease, slot: Slot | None = None
    ) -> DeployedRelease:
        """Read a release without verification, such as a live one.

        Raises RepositoryError without a readable manifest.
        """
        link = (slot or stable_slot(project)).link(project)
        return cls(stored, *rendered_release(project, stored, link), link)

    @property
    def plan(self) -> RepositoryPlan:
        """The models of the release."""
        return self.rendered.plan

    @property
    def owners(self) -> list[str]:
        """The release's generated models, dependencies first."""
        return list(dict.fromkeys(model.owner for model in self.plan.models))

    def publish(self) -> Path:
        """Point the slot's link to this release; return its repository."""
        point_link(self.link, self.stored.folder)
        return self.stored.repository

    def file_digests(self, model: HandwrittenModel) -> list[tuple[str, str]]:
        """Return the paths and SHA-256 digests of a handwritten model's files."""
        prefix = f"repository/{model.name}/"
        files = self.stored.manifest().files
        return [(file.path, file.sha256) for file in files if file.path.startswith(prefix)]
