# SPDX-License-Identifier: Apache-2.0
"""The contents of a project's bundle: files, engines, recipes, image names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from tritonctl.engines.builds.engine import built_engines
from tritonctl.engines.builds.runners import builder_recipe, container_image
from tritonctl.engines.builds.stages import StageBuild, plan_stages
from tritonctl.engines.sources.checkpoint import checkpoint_path
from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.host.environments import EnvironmentRecipe
from tritonctl.project.schema import Project
from tritonctl.repository.contents import handwritten
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.server_environment import server_recipe
from tritonctl.runtimes.docker.compose import render_compose
from tritonctl.runtimes.embedded import gateway

# A project's own code. In a clone of tritonctl these folders are part of its wheel.
_PROJECT_FOLDERS = ("builders", "ensembles", "python_backends")
_FILES = ("tritonctl.yaml", "tritonctl.lock")


def recipes(project: Project, builds: Sequence[StageBuild] = ()) -> list[EnvironmentRecipe]:
    """Return the environments that serving and the given stages need."""
    required = []
    if project.server.mode == "embedded":
        required.append(server_recipe(plan_repository(project).programs))
    if gateway.has_gateway(project):
        required.append(gateway.envoy_recipe())
    required += [
        builder_recipe(build.builder, build.stage, build.request.target)
        for build in builds
        if build.runner == "venv"
    ]
    return list({recipe.fingerprint(): recipe for recipe in required}.values())


def files(project: Project) -> dict[Path, Path]:
    """Return files and folders to copy, by their path below the project's folder.

    Raises ConfigurationError for a path outside of it, RepositoryError for an engine not built.
    """
    sources = {Path(name): project.root / name for name in _FILES}
    if project.root != bundled.clone():
        sources |= {Path(name): project.root / name for name in _PROJECT_FOLDERS}
    for name, model in project.models.items():
        target = model.checkpoint if project.path(model.checkpoint).exists() else None
        # A model of the hub becomes a folder of the same name, which overrides the hub.
        checkpoint_target = (
            _relative_path(project, f"models.{name}.checkpoint", target)
            if target
            else model.checkpoint
        )
        sources[checkpoint_target] = checkpoint_path(project, model)
        for path in _path_fields(model.model_copy(update={"checkpoint": None})):
            sources[_relative_path(project, f"models.{name}", path)] = project.path(path)
    for name, scenario in project.loadtests.items():
        for path in _path_fields(scenario):
            sources[_relative_path(project, f"loadtests.{name}", path)] = project.path(path)
    for handwritten_model in handwritten(project, project.public):
        sources[_relative_path(project, handwritten_model.name, handwritten_model.folder)] = (
            handwritten_model.folder
        )
    for artefact in built_engines(project).values():
        sources[artefact.folder.relative_to(project.root)] = artefact.folder
    return {target: path for target, path in sorted(sources.items()) if path.exists()}


def planned_builds(project: Project) -> list[StageBuild]:
    """Return the planned stages of every model's engine."""
    return [build for name in project.models for build in plan_stages(project, name)]


def images(project: Project, builds: Sequence[StageBuild]) -> list[str]:
    """Return the images that serving and the given stages need, sorted."""
    names = {container_image(build) for build in builds if build.runner == "container"}
    if project.server.mode == "docker":
        with tempfile.TemporaryDirectory() as folder:
            rendering = render_compose(project, plan_repository(project), Path(folder))
        services = yaml.safe_load(rendering.files["compose.yaml"])["services"]
        unused_profiles = {"cpu", "gpu"} - {rendering.profile}
        unused_profiles |= set() if project.gateway else {"gateway"}
        for service in services.values():
            if unused_profiles.issuperset(service.get("profiles", [""])):
                continue
            names.add(_saved_name(service["image"]))
    return sorted(names)


def _saved_name(image: str) -> str:
    """Return the name that `docker save` and `docker load` keep: the tag, without its digest."""
    default = image.partition(":-")[2].removesuffix("}") if image.startswith("${") else image
    tag, _, digest = default.partition("@")
    return tag if digest and ":" in tag else default


def _path_fields(section: Any) -> Iterator[Path]:
    """Yield every path in a section of the project file."""
    if isinstance(section, Path):
        yield section
    elif isinstance(section, BaseModel):
        for field in type(section).model_fields:
            yield from _path_fields(getattr(section, field))
    elif isinstance(section, (list, tuple)):
        for item in section:
            yield from _path_fields(item)
    elif isinstance(section, dict):
        for item in section.values():
            yield from _path_fields(item)


def _relative_path(project: Project, field: str, path: Path) -> Path:
    absolute = project.path(path)
    if not absolute.is_relative_to(project.root):
        raise ConfigurationError(
            f"{field} names {absolute}, which is outside the project's folder {project.root}",
            remedy="move or copy it into the project's folder: a bundle contains one folder",
        )
    return absolute.relative_to(project.root)
