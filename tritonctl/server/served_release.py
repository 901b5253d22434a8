# SPDX-License-Identifier: Apache-2.0
"""A release as the servers of a slot get it: behind the link of the slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tritonctl.host.files import exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.store import Stored, point, releases_folder
from tritonctl.releases.verification import require_whole
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.plan import Plan
from tritonctl.repository.publish import Rendered
from tritonctl.server.slots import Slot, stable_slot

_LOCK = ".serving"


@contextmanager
def serving(project: Project, progress: Progress) -> Iterator[None]:
    """Nobody else moves a link meanwhile, or prunes what it leads to."""
    with exclusive(releases_folder(project) / _LOCK, progress, "serve a release"):
        yield


@dataclass(frozen=True)
class ServedRelease:
    """A release, the project as it was released, and by which link servers know it."""

    stored: Stored
    project: Project
    rendered: Rendered
    link: Path

    @classmethod
    def of(
        cls, project: Project, stored: Stored, progress: Progress, slot: Slot | None = None
    ) -> ServedRelease:
        """One that is to be served, by default in the stable slot: verified.

        Raises RepositoryError for one that is not as it was published.
        """
        require_whole(stored, progress)
        return cls.served(project, stored, slot)

    @classmethod
    def served(cls, project: Project, stored: Stored, slot: Slot | None = None) -> ServedRelease:
        """One that is served as it is. Raises RepositoryError without a readable manifest."""
        link = (slot or stable_slot(project)).link(project)
        return cls(stored, *rendered_release(project, stored, link), link)

    @property
    def plan(self) -> Plan:
        """Its models."""
        return self.rendered.plan

    @property
    def owners(self) -> list[str]:
        """Its models that were not written by hand, what others are made of first."""
        return list(dict.fromkeys(model.owner for model in self.plan.models))

    def publish(self) -> Path:
        """Let the link lead here; returns the repository."""
        point(self.link, self.stored.folder)
        return self.stored.repository

    def content_of(self, model: HandwrittenModel) -> list[tuple[str, str]]:
        """Paths and digests of a model by hand."""
        prefix = f"repository/{model.name}/"
        files = self.stored.manifest().files
        return [(file.path, file.sha256) for file in files if file.path.startswith(prefix)]
