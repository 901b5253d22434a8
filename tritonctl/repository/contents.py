# SPDX-License-Identifier: Apache-2.0
"""What lies in a model repository besides the project's models: those that users wrote by hand.

Rendering leaves them alone; the server serves them, and what they need is installed with it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import explained, read_record
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import is_cached
from tritonctl.repository.pbtxt import parse_pbtxt

CONFIG = "config.pbtxt"
HEADER = "Rendered by tritonctl"
REQUIREMENTS = "requirements.txt"
# Beside the repository of a release: its manifest.
RELEASE = "release.json"


@dataclass(frozen=True)
class HandwrittenModel:
    """A model folder that no rendering of this project has made."""

    name: str
    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        """Its config.pbtxt in protobuf's JSON form. Raises ConfigurationError, HostError."""
        return read_config(self.folder / CONFIG)

    @property
    def cached(self) -> bool:
        """Whether Triton's response cache may answer for it; not where it cannot be read."""
        try:
            return is_cached(self.config)
        except ConfigurationError:
            return False

    @property
    def requirements(self) -> tuple[Path, ...]:
        """What its stub imports: a file beside model.py, or beside config.pbtxt."""
        with explained(self.folder):
            places = (self.folder, *sorted(self.folder.iterdir()))
            return tuple(file for place in places if (file := place / REQUIREMENTS).is_file())


def read_config(file: Path) -> dict[str, Any]:
    """A config.pbtxt in protobuf's JSON form. Raises ConfigurationError, HostError."""
    try:
        with explained(file):
            return parse_pbtxt(file.read_bytes().decode("utf-8"))
    except (UnicodeDecodeError, ConfigurationError) as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error}", remedy="`tritonctl check` names the line"
        ) from error


def is_ours(model_folder: Path) -> bool:
    """Whether a model folder was rendered by tritonctl (its config.pbtxt says so)."""
    try:
        with (model_folder / CONFIG).open(encoding="utf-8", errors="replace") as file:
            return file.readline().startswith(f"# {HEADER}")
    except OSError:
        return False


def record_of(project: Project) -> Path:
    """Where the names of the models that were rendered last are."""
    return project.state / "rendered.json"


def rendered_names(project: Project) -> list[str]:
    """The models that the project's last rendering left in this repository.

    None at the first rendering, or with a damaged record: nothing is removed then. A release says
    itself which of its models were rendered.
    """
    released = read_record(project.repository.parent / RELEASE)
    if str(released.get("schema", "")).startswith("tritonctl.release/"):
        return [model["name"] for model in released.get("models", ()) if model.get("version")]
    known = read_record(record_of(project))
    return known["models"] if known.get("repository") == str(project.repository) else []


def handwritten(project: Project, planned: Collection[str]) -> tuple[HandwrittenModel, ...]:
    """The models in the repository that are not the project's. Raises HostError.

    planned: the names of the project's. Of a choice of models, those that were chosen.
    """
    ours = {*planned, *rendered_names(project)}
    folders = (folder for folder in _visible(project.repository) if (folder / CONFIG).is_file())
    return tuple(
        HandwrittenModel(folder.name, folder)
        for folder in folders
        if folder.name not in ours and (project.chosen is None or folder.name in project.chosen)
    )


def without_config(project: Project) -> list[str]:
    """The folders of the repository that look like models and are none, for want of that file."""
    folders = _visible(project.repository)
    return [folder.name for folder in folders if not (folder / CONFIG).is_file()]


def folder_names(repository: Path) -> set[str]:
    """All folders of a repository. Raises HostError."""
    with explained(repository):
        return {entry.name for entry in repository.iterdir() if entry.is_dir()}


def _visible(repository: Path) -> list[Path]:
    names = sorted(folder_names(repository)) if repository.is_dir() else []
    return [repository / name for name in names if not name.startswith(".")]
