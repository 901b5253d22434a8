# SPDX-License-Identifier: Apache-2.0
"""Resolves `checkpoint:` to a folder or a file, without a network.

A folder of that name takes precedence over the hub.
"""

from __future__ import annotations

from pathlib import Path

from tritonctl.engines.sources.cache import MAIN_BRANCH, HubModel, is_hub_id
from tritonctl.engines.sources.entries import refuse_foreign_entries
from tritonctl.engines.sources.lock_file import pinned_commit
from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Model, Project


def checkpoint_path(project: Project, model: Model) -> Path:
    """Return a model's checkpoint.

    Raises ConfigurationError if it is missing or incomplete, or holds more than files.
    """
    hub = hub_model_of(project, model)
    if hub is None:
        path = _local_checkpoint(project, model)
    else:
        path = fetched_folder(hub, pinned_commit(project.root, hub))
    refuse_foreign_entries(path)
    return path


def hub_model_of(project: Project, model: Model) -> HubModel | None:
    """Return the hub model that `checkpoint:` names; None for a folder or a file."""
    text = model.checkpoint.as_posix()
    if not is_hub_id(text) or project.path(model.checkpoint).exists():
        return None
    return HubModel(text, model.revision or MAIN_BRANCH)


def shadowing_note(project: Project, model: Model) -> str | None:
    """Return a note if a folder hides a hub model that may be intended; else None."""
    text = model.checkpoint.as_posix()
    folder = project.path(model.checkpoint)
    if not folder.exists():
        return None
    if model.revision:
        return f"checkpoint {text} is the folder {folder}: `revision:` applies to hub models only"
    if is_hub_id(text) and HubModel(text).folder.is_dir():
        return f"checkpoint {text} is the folder {folder}, not the hub model of that name"
    return None


def fetched_folder(hub: HubModel, pinned: str | None = None) -> Path:
    """Return the folder of a fetched model. Raises ConfigurationError if it is incomplete.

    `pinned` is the commit; None: the locally known commit of the revision.
    """
    commit = pinned or hub.known_commit()
    if commit is None or not hub.has_any_file(commit):
        commit_suffix = f" at commit {commit[:12]}" if commit else ""
        raise ConfigurationError(
            f"checkpoint {hub.repo} is not a folder here, and the hub's {hub} has not been "
            f"fetched{commit_suffix}",
            remedy="fetch it with `tritonctl fetch`, or correct `checkpoint:` in tritonctl.yaml",
        )
    snapshot = hub.snapshot(commit)
    if missing := hub.missing_files(commit):
        raise ConfigurationError(
            f"the hub's {hub} is half-downloaded: {_list_missing(missing)} missing from {snapshot}",
            remedy="run `tritonctl fetch`: it resumes the download",
        )
    return snapshot


def _list_missing(names: list[str]) -> str:
    first, *remaining = names
    return f"{first} and {len(remaining)} more files are" if remaining else f"{first} is"


def _local_checkpoint(project: Project, model: Model) -> Path:
    folder = project.path(model.checkpoint)
    if not folder.is_dir() and folder.suffix != ".onnx":
        raise ConfigurationError(
            f"checkpoint {folder} is not a folder",
            remedy="correct `checkpoint:` in tritonctl.yaml; a model of the Hugging Face Hub is "
            "named OWNER/NAME, and `tritonctl fetch` downloads it",
        )
    return folder
