# SPDX-License-Identifier: Apache-2.0
"""Writes the proposed project: the requests of its load test, then the file itself."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tritonctl.engines.proposals.proposal import InitOptions, Proposal, propose, verify
from tritonctl.engines.proposals.recognition import recognise
from tritonctl.engines.proposals.text import project_text
from tritonctl.engines.sources.cache import MAIN_BRANCH, HubModel, is_hub_id
from tritonctl.engines.sources.checkpoint import fetched_folder
from tritonctl.engines.sources.entries import refuse_foreign_entries
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import write_atomically
from tritonctl.project.file import FILE_NAME


@dataclass(frozen=True)
class WrittenProject:
    """The files of a new project."""

    files: tuple[Path, ...]
    reasons: tuple[str, ...]  # for the proposed settings
    next_commands: tuple[str, ...]


def write_project(folder: Path, options: InitOptions) -> WrittenProject:
    """Write a project for a checkpoint to `folder`. Raises ConfigurationError.

    The project, including its profiles, passes `tritonctl plan` before it is written.
    """
    path = _local_path(folder, options.checkpoint)
    if path is None:
        path = _fetched_folder(options)
    else:
        _refuse_revision(options)
        options = replace(options, reference=_reference(folder, options.checkpoint, path))
    if path.resolve() == folder.resolve():
        raise ConfigurationError(
            f"the project with its state and engines would lie inside the checkpoint "
            f"{path.resolve()}",
            remedy=f"choose another folder: `tritonctl init {options.checkpoint} -o ../my-project`",
        )
    refuse_foreign_entries(path)
    checkpoint = recognise(path)
    proposal = propose(checkpoint, options, folder)
    with _requests_file(folder, proposal) as requests:
        verify(proposal, options, checkpoint, folder)
        file = folder / FILE_NAME
        write_atomically(file, project_text(proposal, options.name))
    project_option = _option("--project", folder)
    next_commands = (f"tritonctl plan{project_option}", f"tritonctl build{project_option}")
    return WrittenProject((file, *requests), tuple(proposal.reasons), next_commands)


def _refuse_revision(options: InitOptions) -> None:
    if options.revision is not None:
        raise ConfigurationError(
            f"{options.checkpoint} is a local checkpoint, and only hub models have a revision "
            f"({options.revision})",
            remedy="omit --revision, or name a hub model as OWNER/NAME",
        )


def _option(name: str, folder: Path) -> str:
    return "" if folder == Path() else f" {name} {shlex.quote(str(folder))}"


def _local_path(folder: Path, checkpoint: str) -> Path | None:
    """Return the local path of a checkpoint; None for a hub model."""
    project_path = folder / checkpoint
    path = Path(checkpoint)
    if not path.exists() and project_path.exists():
        return project_path
    return None if is_hub_id(checkpoint) and not path.exists() else path


def _reference(folder: Path, checkpoint: str, path: Path) -> str:
    """Return the checkpoint relative to the project's folder; an absolute path stays."""
    return checkpoint if Path(checkpoint).is_absolute() else os.path.relpath(path, folder)


@contextmanager
def _requests_file(folder: Path, proposal: Proposal) -> Iterator[tuple[Path, ...]]:
    """Write the load test's request file, unless it exists; remove it again on failure."""
    file = folder / proposal.load.file
    if proposal.load.scenario is None or file.exists():
        yield ()
        return
    write_atomically(file, proposal.load.text)
    try:
        yield (file,)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _fetched_folder(options: InitOptions) -> Path:
    """Return the folder of a fetched hub model. Raises ConfigurationError."""
    hub = HubModel(options.checkpoint, options.revision or MAIN_BRANCH)
    try:
        return fetched_folder(hub)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error.problem}; a proposal needs its config.json",
            remedy=f"run `tritonctl fetch {hub.lock_key}`, then this command again",
        ) from error
