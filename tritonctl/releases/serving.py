# SPDX-License-Identifier: Apache-2.0
"""A release as the rest of tritonctl knows what it serves: a project, and what was rendered of it.

Models and ensembles are those of the release; server, containers, gateway and frontend are those
of the project now: they belong to the machine.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import explained
from tritonctl.project.expected import reason
from tritonctl.project.schema import Composed, Model, Project
from tritonctl.releases.manifest import REPOSITORY, Release
from tritonctl.releases.staging import rendered_model
from tritonctl.releases.store import Stored
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.plan import Plan
from tritonctl.repository.planned import Served
from tritonctl.repository.publish import Rendered


def rendered_release(
    project: Project, stored: Stored, link: Path | None = None
) -> tuple[Project, Rendered]:
    """The project as it was released, and its repository. Nothing is built or rendered.

    link: what leads a server to the release; None: its own folder. Raises RepositoryError,
    ConfigurationError for a release that this tritonctl does not read, HostError.
    """
    release = stored.manifest()
    paths = [file.path for file in release.files]
    with explained(stored.folder):
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
    served = Served(release.name, requirements, link and link / REPOSITORY)
    plan = Plan(models, (), tuple(release.native), {}, by_hand, served)
    names = tuple(model.name for model in models)
    return (
        _project(project, stored, release),
        Rendered(stored.repository, plan, changed=(), unchanged=names, removed=()),
    )


def _project(project: Project, stored: Stored, release: Release) -> Project:
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
            f"{release.versions.get('tritonctl', '?')}, and this one does not know its settings: "
            f"{reason(error)}",
            remedy="serve it with that version, or publish again: `tritonctl release`",
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
