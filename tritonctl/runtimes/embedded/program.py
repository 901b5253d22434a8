# SPDX-License-Identifier: Apache-2.0
"""Run a frontend or gateway for an embedded server, each under a supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tritonctl.errors import ServerError
from tritonctl.host.files import PRIVATE, create_private, write_atomically
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Progress
from tritonctl.runtimes.embedded.exit_record import exit_summary
from tritonctl.runtimes.server_log import archive_log, tail
from tritonctl.supervision.supervisor import KILL_MARGIN_SECONDS

_POLL_SECONDS = 0.05


class SupervisorProcess(Protocol):
    """A supervisor's process, identified by pid and start time."""

    @property
    def pid(self) -> int:
        """Pid of the supervisor."""

    @property
    def process_started(self) -> int:
        """Start time of the supervisor, in kernel ticks since boot."""


@dataclass(frozen=True)
class ProgramFiles:
    """The files that a supervisor reads and writes."""

    folder: Path  # working directory of the program
    log: Path
    specification: Path
    restarts: Path
    exit: Path


@dataclass(frozen=True)
class SupervisedProgram:
    """A program to run under a supervisor."""

    name: str  # for messages, such as "the frontend"
    argv: Sequence[str]
    live_url: str | None  # answers once the program runs; None: after one second
    restart: bool
    exit_timeout_seconds: int
    fallback_argv: Sequence[str] | None = None  # runs once the program has crashed too often


def supervise(program: SupervisedProgram, files: ProgramFiles) -> int:
    """Start the supervisor, which outlives this command and its terminal; return its pid."""
    for file in (files.exit, files.restarts):
        file.unlink(missing_ok=True)
    archive_log(files.log)
    create_private(files.log)  # the frontend's may hold prompts (`frontend.log_prompts`)
    specification = {
        "name": program.name,
        "argv": [*program.argv],
        "folder": str(files.folder),
        "log": str(files.log),
        "exit_file": str(files.exit),
        "restart": program.restart,
        "restarts_file": str(files.restarts),
        "live_url": program.live_url,
        "exit_timeout_seconds": program.exit_timeout_seconds,
        "gave_up": program.fallback_argv and [*program.fallback_argv],
    }
    text = json.dumps(specification, indent=2)
    write_atomically(files.specification, text, mode=PRIVATE)
    module = "tritonctl.runtimes.embedded.supervise_program"
    result = subprocess.run(
        [sys.executable, "-m", module, str(files.specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(result.stdout)


def stop(process: SupervisorProcess, exit_timeout_seconds: int) -> None:
    """Stop the program; open streams may finish within the timeout."""
    if is_alive(process):
        os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + exit_timeout_seconds + 2 * KILL_MARGIN_SECONDS
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if is_alive(process):
        os.kill(process.pid, signal.SIGKILL)  # the kernel then sends SIGTERM to the program


def is_alive(process: SupervisorProcess) -> bool:
    """Whether the supervisor still runs."""
    return process_start_time(process.pid) == process.process_started


def wait_until_ready(
    name: str,
    process: SupervisorProcess,
    is_ready: Callable[[], bool],
    files: ProgramFiles,
    seconds: float,
    progress: Progress,
) -> None:
    """Raise ServerError with the end of the log if the program is not ready within `seconds`."""
    deadline = time.monotonic() + seconds
    with progress.step(f"Starting {name}"):
        while is_alive(process):
            if is_ready():
                return
            if time.monotonic() > deadline:
                raise _start_error(f"{name} was not ready within {seconds:g} s", files)
            time.sleep(_POLL_SECONDS)
    exit_description = exit_summary(files.exit)
    raise _start_error(f"{name} exited during startup: {exit_description}", files)


def _start_error(problem: str, files: ProgramFiles) -> ServerError:
    lines = tail(files.log)
    return ServerError(
        problem,
        remedy=f"read its log: {files.log}",
        details="\n".join(lines) or "(empty log)",
    )
