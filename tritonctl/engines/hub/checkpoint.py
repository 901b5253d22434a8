# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint is: the one place that turns `checkpoint:` into a folder or a file.

A folder of that name wins over the hub. Nothing here touches the network.
"""

from __future__ import annotations

from pathlib import Path

from tritonctl.engines.hub.cache import MAIN, HubModel, is_hub_id
from tritonctl.engines.hub.lock_file import pinned_commit
from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Model, Project


def checkpoint_of(project: Project, model: Model) -> Path:
    """Where a model's checkpoint is. Raises ConfigurationError when it is not there, or not all."""
    hub = hub_model_of(project, model)
    if hub is None:
        return _local(project, model)
    return fetched(hub, pinned_commit(project.root, hub))


def hub_model_of(project: Project, model: Model) -> HubModel | None:
    """The hub's model that `checkpoint:` names; None where it is a folder or a file."""
    text = model.checkpoint.as_posix()
    if not is_hub_id(text) or project.path(model.checkpoint).exists():
        return None
    return HubModel(text, model.revision or MAIN)


def hidden_by_folder(project: Project, model: Model) -> str | None:
    """What to tell where a folder hides the hub's model that may be meant; None: no doubt."""
    text = model.checkpoint.as_posix()
    folder = project.path(model.checkpoint)
    if not folder.exists():
        return None
    if model.revision:
        return f"checkpoint {text} is the folder {folder}: `revision:` is for models of the hub"
    if is_hub_id(text) and HubModel(text).folder.is_dir():
        return f"checkpoint {text} is the folder {folder}, not the hub's model of that name"
    return None


def fetched(hub: HubModel, pinned: str | None = None) -> Path:
    """The folder of a fetched model. Raises ConfigurationError for one that is not, or not all.

    pinned: the commit to take; that of its revision, as this machine knows it, when None.
    """
    commit = pinned or hub.known_commit()
    if commit is None or not hub.begun(commit):
        where = f" at commit {commit[:12]}" if commit else ""
        raise ConfigurationError(
            f"checkpoint {hub.repo} is not a folder here, and the hub's {hub} has not been "
            f"fetched{where}",
            remedy="fetch it with `tritonctl fetch`, or correct `checkpoint:` in tritonctl.yaml",
        )
    snapshot = hub.snapshot(commit)
    if lacking := hub.lacks(commit):
        raise ConfigurationError(
            f"the hub's {hub} is half-downloaded: {_listed(lacking)} missing from {snapshot}",
            remedy="run `tritonctl fetch`: it goes on where the download ended",
        )
    return snapshot


def _listed(names: list[str]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more files are" if others else f"{first} is"


def _local(project: Project, model: Model) -> Path:
    folder = project.path(model.checkpoint)
    if not folder.is_dir() and folder.suffix != ".onnx":
        raise ConfigurationError(
            f"checkpoint {folder} is not a folder",
            remedy="correct `checkpoint:` in tritonctl.yaml; a model of the Hugging Face Hub is "
            "named OWNER/NAME, and `tritonctl fetch` downloads it",
        )
    return folder
