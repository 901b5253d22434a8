# SPDX-License-Identifier: Apache-2.0
"""Writes the proposed project: the requests of its load test, then the file itself."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tritonctl.engines.hub.cache import MAIN, HubModel, is_hub_id
from tritonctl.engines.hub.checkpoint import fetched
from tritonctl.engines.proposals.proposal import Proposal, Wishes, propose, verify
from tritonctl.engines.proposals.recognition import recognise
from tritonctl.engines.proposals.text import project_text
from tritonctl.errors import ConfigurationError
from tritonctl.host.files import write_atomically
from tritonctl.project.file import FILE_NAME


@dataclass(frozen=True)
class Written:
    """What was written, why it is so, and the commands that come next."""

    files: tuple[Path, ...]
    reasons: tuple[str, ...]
    following: tuple[str, ...]


def write_project(folder: Path, wishes: Wishes) -> Written:
    """Write a project for a checkpoint to `folder`. Raises ConfigurationError.

    `tritonctl plan` has accepted it, profiles included, before it is there.
    """
    path = _place(folder, wishes.checkpoint)
    if path is None:
        path = _fetched(wishes)
    else:
        _refuse_revision(wishes)
        wishes = replace(wishes, reference=_relative(folder, wishes.checkpoint, path))
    if path.resolve() == folder.resolve():
        raise ConfigurationError(
            f"the project would lie in the checkpoint {path.resolve()} itself, and its state and "
            "engines with it",
            remedy=f"give it a folder of its own: `tritonctl init {wishes.checkpoint} --into "
            "../my-project`",
        )
    found = recognise(path)
    proposal = propose(found, wishes, folder)
    with _requests(folder, proposal) as requests:
        verify(proposal, wishes, found, folder)
        file = folder / FILE_NAME
        write_atomically(file, project_text(proposal, wishes.name))
    where = _option("--project", folder)
    following = (f"tritonctl plan{where}", f"tritonctl build{where}")
    return Written((file, *requests), tuple(proposal.reasons), following)


def _refuse_revision(wishes: Wishes) -> None:
    if wishes.revision is not None:
        raise ConfigurationError(
            f"{wishes.checkpoint} lies on this machine, and only models of the hub have a revision "
            f"({wishes.revision})",
            remedy="leave --revision out, or name a model of the hub as OWNER/NAME",
        )


def _option(name: str, folder: Path) -> str:
    return "" if folder == Path() else f" {name} {shlex.quote(str(folder))}"


def _place(folder: Path, checkpoint: str) -> Path | None:
    """Where it is on this machine; None where it is a model of the hub."""
    beside = folder / checkpoint
    path = Path(checkpoint)
    if not path.exists() and beside.exists():
        return beside
    return None if is_hub_id(checkpoint) and not path.exists() else path


def _relative(folder: Path, checkpoint: str, path: Path) -> str:
    """As the project file says it: from its own folder, unless the user named it absolutely."""
    return checkpoint if Path(checkpoint).is_absolute() else os.path.relpath(path, folder)


@contextmanager
def _requests(folder: Path, proposal: Proposal) -> Iterator[tuple[Path, ...]]:
    """The file of the load test's requests; one that is there is the user's own and stays."""
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


def _fetched(wishes: Wishes) -> Path:
    """The folder of the hub's model. Raises ConfigurationError: nothing else says what it is."""
    hub = HubModel(wishes.checkpoint, wishes.revision or MAIN)
    try:
        return fetched(hub)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error.problem}; its config.json says what it is",
            remedy=f"run `tritonctl fetch {hub.key}`, then this command again",
        ) from error
