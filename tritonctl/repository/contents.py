# SPDX-License-Identifier: Apache-2.0
"""Hand-written models in a model repository.

Rendering does not touch them. The server serves them, and their requirements are installed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tritonctl.checks.config.backends import infer_backend
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import as_host_error, read_record
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import is_cached
from tritonctl.repository.pbtxt import parse_pbtxt

CONFIG = "config.pbtxt"
HEADER = "Rendered by tritonctl"
REQUIREMENTS = "requirements.txt"
# The manifest next to the repository of a release.
RELEASE = "release.json"


@dataclass(frozen=True)
class HandwrittenModel:
    """A model folder that was not rendered from this project."""

    name: str
    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        """Its config.pbtxt in protobuf's JSON form. Raises ConfigurationError, HostError."""
        return read_config(self.folder / CONFIG)

    @property
    def is_cached(self) -> bool:
        """Whether Triton's response cache is enabled; False for an unreadable configuration."""
        try:
            return is_cached(self.config)
        except ConfigurationError:
            return False

    @property
    def backend(self) -> str | None:
        """The backend that Triton loads from its own folder; `ensemble` for an ensemble.

        None if it is unknown, or if the model brings its library.
        """
        try:
            config = self.config
        except ConfigurationError:
            return None
        if config.get("platform") == "ensemble" or "ensemble_scheduling" in config:
            return "ensemble"
        message = SimpleNamespace(
            platform=config.get("platform", ""),
            default_model_filename=config.get("default_model_filename", ""),
        )
        backend = config.get("backend") or infer_backend(message, self._first_version_files)
        has_library = any(self.folder.rglob(f"libtriton_{backend}.so"))
        return None if has_library else backend

    def _first_version_files(self) -> list[str]:
        versions = sorted(entry for entry in self.folder.iterdir() if entry.name.isdigit())
        return [file.name for folder in versions[:1] for file in folder.iterdir()]

    @property
    def requirements(self) -> tuple[Path, ...]:
        """Its requirements files, next to model.py or config.pbtxt."""
        with as_host_error(self.folder):
            places = (self.folder, *sorted(self.folder.iterdir()))
            return tuple(file for place in places if (file := place / REQUIREMENTS).is_file())


def read_config(file: Path) -> dict[str, Any]:
    """Read a config.pbtxt to protobuf's JSON form. Raises ConfigurationError, HostError."""
    try:
        with as_host_error(file):
            # Strings must be UTF-8, comments need not: as Triton reads them.
            return parse_pbtxt(file.read_bytes().decode("utf-8", "surrogateescape"))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error}", remedy="`tritonctl check` names the line"
        ) from error


def is_rendered(model_folder: Path) -> bool:
    """Whether tritonctl rendered a model folder, by the comment in its config.pbtxt."""
    try:
        with (model_folder / CONFIG).open(encoding="utf-8", errors="replace") as file:
            return file.readline().startswith(f"# {HEADER}")
    except OSError:
        return False


def render_record(project: Project) -> Path:
    """Return the file with the names of the models rendered last."""
    return project.state / "rendered.json"


def rendered_names(project: Project) -> list[str]:
    """Return the models of the project's last rendering into this repository.

    The list is empty before the first rendering or with a damaged record: nothing is removed then.
    The manifest of a release lists its rendered models.
    """
    released = read_record(project.repository.parent / RELEASE)
    if str(released.get("schema", "")).startswith("tritonctl.release/"):
        return [model["name"] for model in released.get("models", ()) if model.get("version")]
    record = read_record(render_record(project))
    return record["models"] if record.get("repository") == str(project.repository) else []


def handwritten(project: Project, planned: Collection[str]) -> tuple[HandwrittenModel, ...]:
    """Return the models in the repository that are not the project's. Raises HostError.

    `planned` are the names of the project's models. With a selection of models, only selected ones
    are returned.
    """
    project_models = {*planned, *rendered_names(project)}
    folders = (folder for folder in _visible(project.repository) if (folder / CONFIG).is_file())
    return tuple(
        HandwrittenModel(folder.name, folder)
        for folder in folders
        if folder.name not in project_models
        and (project.chosen is None or folder.name in project.chosen)
    )


def folders_without_config(project: Project) -> list[str]:
    """Return the folders of the repository without a config.pbtxt: they are not models."""
    folders = _visible(project.repository)
    return [folder.name for folder in folders if not (folder / CONFIG).is_file()]


def folder_names(repository: Path) -> set[str]:
    """Return the names of all folders of a repository. Raises HostError."""
    with as_host_error(repository):
        return {entry.name for entry in repository.iterdir() if entry.is_dir()}


def _visible(repository: Path) -> list[Path]:
    names = sorted(folder_names(repository)) if repository.is_dir() else []
    return [repository / name for name in names if not name.startswith(".")]
