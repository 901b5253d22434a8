# SPDX-License-Identifier: Apache-2.0
"""Control a running rollout: send commands to its controller, or restart a dead one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import ServerError, UsageError
from tritonctl.host.files import PRIVATE, as_host_error, create_private, write_atomically
from tritonctl.project.schema import Project
from tritonctl.rollout import operator_commands as asks
from tritonctl.rollout.journal import RolloutPhase
from tritonctl.rollout.operator_commands import OperatorCommand
from tritonctl.rollout.status import RolloutStatus, rollout_status
from tritonctl.runtimes.slot_servers import routes_folder

LOG = "controller.log"
_SPECIFICATION = "controller.json"
_RESTARTS = "restarts.json"
# Covers the controller's start, one scrape, and the gateway's confirmation.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.1
ABORT_COMMANDS = frozenset({OperatorCommand.ABORT, OperatorCommand.ABORT_AT_ONCE})


@dataclass(frozen=True)
class ProjectSource:
    """The project for a controller to load, as given on the command line."""

    path: Path | None
    profile: str | None
    overrides: Sequence[str]


def send_command(
    project: Project,
    source: ProjectSource,
    command: OperatorCommand,
    take_back: Callable[[RolloutStatus], object],
) -> RolloutStatus:
    """Send a command to the last rollout and wait for its result; return the status then.

    take_back: moves all users to stable without a controller; an abort calls it first. Raises
    UsageError if the command does not apply, ServerError if no controller answers.
    """
    status = rollout_status(project)
    _refuse_invalid(status, command)
    if command in ABORT_COMMANDS and status.state.phase is not RolloutPhase.PROMOTED:
        take_back(status)
    if command is not OperatorCommand.RESUME or status.state.phase is RolloutPhase.HOLDING:
        asks.submit_command(status.folder, command)
    if status.controller is None:
        launch_controller(project, source, status.folder)
    return _await_command(project, status)


def launch_controller(project: Project, source: ProjectSource, folder: Path) -> None:
    """Start the controller of the rollout in `folder`; it outlives this command."""
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
    with as_host_error(folder):
        (folder / _RESTARTS).unlink(missing_ok=True)
    write_atomically(specification, json.dumps(record, indent=2), mode=PRIVATE)
    create_private(folder / LOG)
    subprocess.run(
        [sys.executable, "-m", "tritonctl.rollout.supervise", str(specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _refuse_invalid(status: RolloutStatus, command: OperatorCommand) -> None:
    state = status.state
    is_over = state.is_over and command is not OperatorCommand.CLOSE
    if is_over and not (
        command in ABORT_COMMANDS and state.phase is RolloutPhase.PROMOTED and not state.closed
    ):
        outcome = "promoted" if state.phase is RolloutPhase.PROMOTED else "rolled back"
        back = (
            "; `tritonctl releases rollback` serves an older one" if outcome == "promoted" else ""
        )
        raise UsageError(
            f"rollout {status.number} is over: release {state.details.get('release')} "
            f"was {outcome}",
            remedy=f"start another one: tritonctl rollout start RELEASE{back}",
        )
    if (
        command is OperatorCommand.RESUME
        and state.phase is not RolloutPhase.HOLDING
        and status.controller is not None
    ):
        raise UsageError(
            f"rollout {status.number} is not paused", remedy="watch it: tritonctl rollout watch"
        )
    if command is OperatorCommand.PROMOTE and not state.loaded:
        raise UsageError(
            f"the candidate of rollout {status.number} is not loaded",
            remedy="take it back: tritonctl rollout abort",
        )


def _await_command(project: Project, previous: RolloutStatus) -> RolloutStatus:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        status = rollout_status(project, previous.number)
        done = not status.unfinished_commands and (status.state.moved or not status.state.is_over)
        if done and (status.controller is not None or status.state.closed):
            return status
        if time.monotonic() > deadline:
            raise ServerError(
                f"the controller of rollout {previous.number} has not answered in "
                f"{_PATIENCE_SECONDS:.0f} s",
                remedy=f"read its log: {previous.folder / LOG}",
            )
        time.sleep(_POLL_SECONDS)
