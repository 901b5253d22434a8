# SPDX-License-Identifier: Apache-2.0
"""Programs beside an embedded server, each under a supervisor of its own: frontend and gateway."""

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
from tritonctl.host.files import PRIVATE, write_atomically
from tritonctl.host.process import process_started
from tritonctl.host.progress import Progress
from tritonctl.server.embedded.ended import described_end
from tritonctl.server.log import keep_previous, tail
from tritonctl.server.supervisor import KILL_MARGIN_SECONDS

_POLL_SECONDS = 0.05


class Process(Protocol):
    """A supervisor, by its process id and when it was started: the kernel's, ticks since boot."""

    @property
    def pid(self) -> int:
        """Of the supervisor."""

    @property
    def process_started(self) -> int:
        """The same."""


@dataclass(frozen=True)
class ProgramFiles:
    """What a supervisor reads and writes. `folder`: where the program runs."""

    folder: Path
    log: Path
    specification: Path
    restarts: Path
    exit: Path


@dataclass(frozen=True)
class Program:
    """What to run. `name`: for people, such as "the frontend".

    live_url: answers once it runs; None: it has run for a second. gave_up: what to run when it has
    crashed too often, or at once, and stays down.
    """

    name: str
    argv: Sequence[str]
    live_url: str | None
    restart: bool
    exit_timeout_seconds: int
    gave_up: Sequence[str] | None = None


def supervise(program: Program, files: ProgramFiles) -> int:
    """Start the supervisor, which outlives this command and its terminal; returns its pid."""
    for file in (files.exit, files.restarts):
        file.unlink(missing_ok=True)
    keep_previous(files.log)
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
        "gave_up": program.gave_up and [*program.gave_up],
    }
    text = json.dumps(specification, indent=2)
    write_atomically(files.specification, text, mode=PRIVATE)
    module = "tritonctl.server.embedded.supervise_program"
    done = subprocess.run(
        [sys.executable, "-m", module, str(files.specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def stop(process: Process, exit_timeout_seconds: int) -> None:
    """End it; what it has under way may finish within that time."""
    if is_alive(process):
        os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + exit_timeout_seconds + 2 * KILL_MARGIN_SECONDS
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if is_alive(process):
        os.kill(process.pid, signal.SIGKILL)  # the kernel then asks the program to end


def is_alive(process: Process) -> bool:
    """Whether its supervisor still runs."""
    return process_started(process.pid) == process.process_started


def wait_until_ready(
    name: str,
    process: Process,
    is_ready: Callable[[], bool],
    files: ProgramFiles,
    seconds: float,
    progress: Progress,
) -> None:
    """Raise ServerError, with the end of its log, for one that does not come up in that time."""
    deadline = time.monotonic() + seconds
    with progress.step(f"Starting {name}"):
        while is_alive(process):
            if is_ready():
                return
            if time.monotonic() > deadline:
                raise _failure(f"{name} was not ready within {seconds:g} s", files)
            time.sleep(_POLL_SECONDS)
    how = described_end(files.exit)
    raise _failure(f"{name} ended while it started: {how}", files)


def _failure(problem: str, files: ProgramFiles) -> ServerError:
    lines = tail(files.log)
    return ServerError(
        problem,
        remedy=f"read its log: {files.log}",
        details="\n".join(lines) or "(empty log)",
    )
