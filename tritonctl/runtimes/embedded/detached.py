# SPDX-License-Identifier: Apache-2.0
"""Detach a supervisor into the background, and start the process that it supervises.

Standard library only, including its imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tritonctl.supervision.exec_launcher import launcher_command
from tritonctl.supervision.supervisor import hold_signals


def detach() -> None:
    """Continue in a background process in a new session, without a terminal or Ctrl-C.

    Prints the pid of the background process. Signals are blocked before that.
    """
    hold_signals()  # signals may arrive as soon as our pid is known
    daemon = os.fork()
    if daemon:
        os.write(sys.stdout.fileno(), f"{daemon}\n".encode())
        os._exit(0)
    os.setsid()
    null_device = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(null_device, stream.fileno())


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
