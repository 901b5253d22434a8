# SPDX-License-Identifier: Apache-2.0
"""A release as the project and the rendered repository that the rest of tritonctl expects.

Models and ensembles come from the release. Server, containers, gateway and frontend come from the
current project: they belong to the machine.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import as_host_error
from tritonctl.project.expected import reason
from tritonctl.project.schema import Composed, Model, Project
from tritonctl.releases.manifest import REPOSITORY, ReleaseManifest
from tritonctl.releases.staging import rendered_model
from tritonctl.releases.store import StoredRelease
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.repository.planned import ServedRelease
from tritonctl.repository.publish import RenderedRepository


def rendered_release(
    project: Project, stored: StoredRelease, link: Path | None = None
) -> tuple[Project, RenderedRepository]:
    """Return the project as released, and its repository, without building or rendering.

    link: the link through which a server finds the release; None: the release's folder. Raises
    RepositoryError, ConfigurationError if this tritonctl cannot read the release, HostError.
    """
    release = stored.manifest()
    paths = [file.path for file in release.files]
    with as_host_error(stored.folder):
        models = tuple(
            rendered_model(model, stored.folder, paths)
            for model in release.models
            if model.version is not None
        )
    by_hand = tuple(
        HandwrittenModel(model.name, stored.repository / model.name)
        for model in release.models
        if model.version is None
    )
    requirements = tuple(stored.folder / path for path in release.requirements)
    served_release = ServedRelease(release.name, requirements, link and link / REPOSITORY)
    plan = RepositoryPlan(models, (), tuple(release.native), {}, by_hand, served_release)
    names = tuple(model.name for model in models)
    return (
        _project(project, stored, release),
        RenderedRepository(stored.repository, plan, changed=(), unchanged=names, removed=()),
    )


def _project(project: Project, stored: StoredRelease, release: ReleaseManifest) -> Project:
    sections: dict[str, type[BaseModel]] = {"models": Model, "ensembles": Composed}
    try:
        parts = {
            section: {
                name: schema.model_validate_json(json.dumps(record))
                for name, record in (release.project.get(section) or {}).items()
            }
            for section, schema in sections.items()
        }
    except ValidationError as error:
        raise ConfigurationError(
            f"release {release.name} was published by tritonctl "
            f"{release.versions.get('tritonctl', '?')}, and this version cannot read its settings: "
            f"{reason(error)}",
            remedy="serve it with that version, or publish again: `tritonctl releases publish`",
        ) from error
    if project.frontend is not None:
        try:
            project.frontend.refuse_unknown_models({*parts["models"], *parts["ensembles"]})
        except ValueError as error:
            raise ConfigurationError(
                f"frontend: {error} (of release {release.name})",
                remedy="name models that the release has, or serve it without `frontend:`",
            ) from error
    return project.model_copy(update=parts | {"model_repository": stored.repository})
