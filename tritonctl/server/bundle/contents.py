# SPDX-License-Identifier: Apache-2.0
"""What of a project belongs into a bundle: files, engines, recipes, names of images."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from tritonctl.engines.build.engine import built_engines
from tritonctl.engines.build.runners import builder_recipe, container_image
from tritonctl.engines.build.stages import plan_stages
from tritonctl.engines.hub.checkpoint import checkpoint_of
from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.host.environments import Recipe
from tritonctl.project.schema import Project
from tritonctl.repository.contents import handwritten
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.server_environment import server_recipe
from tritonctl.server.containers.compose import render_compose
from tritonctl.server.embedded import gateway

# A project's own content. A clone of tritonctl has the shipped one there, which its wheel brings.
_OWN = ("builders", "ensembles", "python_backends")
_FILES = ("tritonctl.yaml", "tritonctl.lock")


def recipes(project: Project, *, builders: bool) -> list[Recipe]:
    """The environments that serving and, if they are wanted, builders need."""
    found = []
    if project.server.mode == "embedded":
        found.append(server_recipe(plan_repository(project).programs))
    if gateway.is_wanted(project):
        found.append(gateway.ENVOY)
    if builders:
        found += [
            builder_recipe(build.builder, build.stage, build.request.target)
            for name in project.models
            for build in plan_stages(project, name)
            if build.runner == "venv"
        ]
    return list({recipe.fingerprint(): recipe for recipe in found}.values())


def files(project: Project) -> dict[Path, Path]:
    """Files and folders to copy, by their place below the project's folder.

    Raises ConfigurationError for one outside of it, RepositoryError for an engine not built.
    """
    found = {Path(name): project.root / name for name in _FILES}
    if project.root != bundled.clone():
        found |= {Path(name): project.root / name for name in _OWN}
    for name, model in project.models.items():
        place = model.checkpoint if project.path(model.checkpoint).exists() else None
        # A model of the hub becomes a folder of its name, which wins over the hub.
        where = _below(project, f"models.{name}.checkpoint", place) if place else model.checkpoint
        found[where] = checkpoint_of(project, model)
        for path in _paths(model.model_copy(update={"checkpoint": None})):
            found[_below(project, f"models.{name}", path)] = project.path(path)
    for name, scenario in project.loadtests.items():
        for path in _paths(scenario):
            found[_below(project, f"loadtests.{name}", path)] = project.path(path)
    for by_hand in handwritten(project, project.public):
        found[_below(project, by_hand.name, by_hand.folder)] = by_hand.folder
    for artefact in built_engines(project).values():
        found[artefact.folder.relative_to(project.root)] = artefact.folder
    return {place: path for place, path in sorted(found.items()) if path.exists()}


def images(project: Project) -> list[str]:
    """The images that building and serving this project needs, sorted."""
    names = {
        container_image(build)
        for name in project.models
        for build in plan_stages(project, name)
        if build.runner == "container"
    }
    if project.server.mode == "docker":
        with tempfile.TemporaryDirectory() as folder:
            rendering = render_compose(project, plan_repository(project), Path(folder))
        services = yaml.safe_load(rendering.files["compose.yaml"])["services"]
        unwanted = {"cpu", "gpu"} - {rendering.profile}
        unwanted |= set() if project.gateway else {"gateway"}
        for service in services.values():
            if unwanted.issuperset(service.get("profiles", [""])):
                continue
            names.add(service["image"])
    return sorted(names)


def _paths(value: Any) -> Iterator[Path]:
    """Every path that a part of the project file names."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _paths(getattr(value, field))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _paths(item)


def _below(project: Project, who: str, path: Path) -> Path:
    place = project.path(path)
    if not place.is_relative_to(project.root):
        raise ConfigurationError(
            f"{who} names {place}, which lies outside the project's folder {project.root}",
            remedy="move or copy it into the project's folder and name it there: a bundle holds "
            "one folder",
        )
    return place.relative_to(project.root)
