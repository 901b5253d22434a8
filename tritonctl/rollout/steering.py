# SPDX-License-Identifier: Apache-2.0
"""What people do to a rollout under way: they ask its controller, or start one that has died."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import ServerError, UsageError
from tritonctl.host.files import PRIVATE, explained, write_atomically
from tritonctl.project.schema import Project
from tritonctl.rollout import asks
from tritonctl.rollout.asks import Ask
from tritonctl.rollout.journal import Phase
from tritonctl.rollout.standing import Rollout, rollout
from tritonctl.server.groups import routes_folder

LOG = "controller.log"
_SPECIFICATION = "controller.json"
_RESTARTS = "restarts.json"
# Of a controller: starting Python, one look, the gateway's confirmation.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.1
ABORTS = frozenset({Ask.ABORT, Ask.ABORT_AT_ONCE})


@dataclass(frozen=True)
class Source:
    """Which project a controller is to load: as the command line named it."""

    path: Path | None
    profile: str | None
    overrides: Sequence[str]


def steer(
    project: Project, source: Source, ask: Ask, take_back: Callable[[Rollout], object]
) -> Rollout:
    """Ask it of the last rollout, and wait until it is done; returns how it stands then.

    take_back: leads all users to stable, without a controller; for an abort it comes first. Raises
    UsageError where there is nothing to ask, ServerError when no controller answers.
    """
    found = rollout(project)
    _refuse(found, ask)
    if ask in ABORTS and found.state.phase is not Phase.PROMOTED:
        take_back(found)
    if ask is not Ask.RESUME or found.state.phase is Phase.HOLDING:
        asks.place(found.folder, ask)
    if found.controller is None:
        launch(project, source, found.folder)
    return _when_done(project, found)


def launch(project: Project, source: Source, folder: Path) -> None:
    """Start the controller of the rollout in `folder`, which outlives this command."""
    specification = folder / _SPECIFICATION
    argv = [sys.executable, "-m", "tritonctl.rollout.control", str(specification)]
    record = {
        "argv": argv,
        "given_up": [*argv, "take-back"],
        "folder": str(Path.cwd()),
        "log": str(folder / LOG),
        "restarts_file": str(folder / _RESTARTS),
        "routes": str(routes_folder(project)),
        "number": int(folder.name),
        "project": str(source.path) if source.path is not None else str(project.root),
        "profile": source.profile,
        "overrides": [*source.overrides],
    }
    with explained(folder):
        (folder / _RESTARTS).unlink(missing_ok=True)
    write_atomically(specification, json.dumps(record, indent=2), mode=PRIVATE)
    subprocess.run(
        [sys.executable, "-m", "tritonctl.rollout.supervise", str(specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _refuse(found: Rollout, ask: Ask) -> None:
    state = found.state
    over = state.ended and ask is not Ask.CLOSE
    if over and not (ask in ABORTS and state.phase is Phase.PROMOTED and not state.closed):
        what = "promoted" if state.phase is Phase.PROMOTED else "rolled back"
        back = "; `tritonctl rollback` serves an older one" if what == "promoted" else ""
        raise UsageError(
            f"rollout {found.number} is over: release {state.about.get('release')} was {what}",
            remedy=f"start another one: tritonctl rollout start RELEASE{back}",
        )
    if ask is Ask.RESUME and state.phase is not Phase.HOLDING and found.controller is not None:
        raise UsageError(
            f"rollout {found.number} is not paused", remedy="watch it: tritonctl rollout watch"
        )
    if ask is Ask.PROMOTE and not state.loaded:
        raise UsageError(
            f"the candidate of rollout {found.number} is not loaded",
            remedy="take it back: tritonctl rollout abort",
        )


def _when_done(project: Project, before: Rollout) -> Rollout:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        found = rollout(project, before.number)
        done = not found.asked and (found.state.moved or not found.state.ended)
        if done and (found.controller is not None or found.state.closed):
            return found
        if time.monotonic() > deadline:
            raise ServerError(
                f"the controller of rollout {before.number} has not answered in "
                f"{_PATIENCE_SECONDS:.0f} s",
                remedy=f"read its log: {before.folder / LOG}",
            )
        time.sleep(_POLL_SECONDS)
