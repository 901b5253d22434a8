# SPDX-License-Identifier: Apache-2.0
"""Detach a supervisor into the background, and start the process that it supervises.

Standard library only, including its imports.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tritonctl.runtimes.embedded.exit_record import status_words
from tritonctl.supervision.exec_launcher import launcher_command
from tritonctl.supervision.supervisor import child_processes, hold_signals

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_POLL_SECONDS = 0.1
_UNKILLABLE_SECONDS = 5.0


def detach(on_death: Callable[[str], None] | None = None) -> None:
    """Continue in a background process in a new session, without a terminal or Ctrl-C.

    Prints the pid of the background process. Signals are blocked before that.

    on_death: makes a guard process stay behind. If the background process is killed or fails, the
    guard calls `on_death` with a description such as "signal 9 (SIGKILL)"; the orphans are then
    children of the guard (`end_orphans`).
    """
    hold_signals()  # signals may arrive as soon as our pid is known
    if os.fork():
        os._exit(0)
    os.setsid()
    if on_death is not None:
        _leave_guard(on_death)
    os.write(sys.stdout.fileno(), f"{os.getpid()}\n".encode())
    _close_streams()


def _leave_guard(on_death: Callable[[str], None]) -> None:
    """Return in a forked process; this process becomes its guard and exits after it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not (guarded := os.fork()):
        os.setsid()
        return
    try:
        _close_streams()
        _, status = os.waitpid(guarded, 0)
        if code := os.waitstatus_to_exitcode(status):
            on_death(status_words(code))
    finally:
        os._exit(0)


def _close_streams() -> None:
    null_device = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(null_device, stream.fileno())


def end_orphans(seconds: float) -> None:
    """Wait in a guard until all its children have exited; kill those left after `seconds`.

    The kernel has sent SIGTERM to the process that the killed supervisor had started. A child that
    a driver holds outlives SIGKILL: it is not waited for longer than five seconds.
    """
    deadline = time.monotonic() + seconds
    with suppress(ChildProcessError):  # none is left
        while time.monotonic() < deadline + _UNKILLABLE_SECONDS:
            exited, _ = os.waitpid(-1, os.WNOHANG)
            if exited:
                continue
            if time.monotonic() > deadline:
                for pid in child_processes(os.getpid()):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def start_process(
    spec: dict[str, Any],
    *,
    stack_bytes: int = 0,
    die_with_parent: bool = True,
    private_files: bool = False,
) -> subprocess.Popen[bytes]:
    """Start the program of a specification in a new process group, with its output in the log.

    The other parameters: see `launcher_command`.
    """
    prepared = launcher_command(
        spec["argv"],
        environment=spec.get("environment"),
        stack_bytes=stack_bytes,
        die_with_parent=die_with_parent,
        private_files=private_files,
    )
    with Path(spec["log"]).open("ab") as log, prepared as (command, record_fd):
        return subprocess.Popen(
            command,
            cwd=spec["folder"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            pass_fds=[record_fd],
        )


@contextmanager
def logging_failure(log: Path) -> Iterator[None]:
    """Write exceptions of the block to the log: standard error is closed."""
    try:
        yield
    except Exception:
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        raise
