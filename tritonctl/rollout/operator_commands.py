# SPDX-License-Identifier: Apache-2.0
"""Operator commands for a running rollout: files in `.tritonctl/rollouts/<n>/asked/`.

The files are empty, so an abort works on a full disk. The controller removes a file once the
journal has the result.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from tritonctl.host.files import as_host_error

_FOLDER = "asked"


class OperatorCommand(StrEnum):
    """A command; its value is the file name."""

    PAUSE = "pause"  # no further steps; the judge continues
    RESUME = "resume"
    PROMOTE = "promote"  # move all users now, skipping steps
    ABORT = "abort"  # move all users back; open streams finish
    ABORT_AT_ONCE = "abort-at-once"  # also break the candidate's open streams
    CLOSE = "close"  # unload the warm version


# The order of execution: aborts first.
_ORDER = (
    OperatorCommand.ABORT_AT_ONCE,
    OperatorCommand.ABORT,
    OperatorCommand.PROMOTE,
    OperatorCommand.PAUSE,
    OperatorCommand.RESUME,
    OperatorCommand.CLOSE,
)


def submit_command(folder: Path, command: OperatorCommand) -> None:
    """Submit a command to the rollout in `folder`. Raises HostError."""
    with as_host_error(folder):
        (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
        (folder / _FOLDER / command.value).touch()


def pending_commands(folder: Path) -> list[OperatorCommand]:
    """List the commands that are not yet executed; unknown files are ignored."""
    return [command for command in _ORDER if (folder / _FOLDER / command.value).exists()]


def remove_command(folder: Path, command: OperatorCommand) -> None:
    """Remove a command that was executed or rejected. Raises HostError."""
    with as_host_error(folder):
        (folder / _FOLDER / command.value).unlink(missing_ok=True)
