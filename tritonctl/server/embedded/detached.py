# SPDX-License-Identifier: Apache-2.0
"""How a supervisor becomes a process of its own, and starts what it supervises.

Standard library only, and what it imports.
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

from tritonctl.server.becoming import becoming
from tritonctl.server.supervisor import hold_signals


def detach() -> None:
    """Leave caller, session and terminal: nothing waits for us, no Ctrl-C reaches us.

    Prints the process id under which we continue. Signals are held from before that.
    """
    hold_signals()  # once our process id is known, one may come any time
    daemon = os.fork()
    if daemon:
        os.write(sys.stdout.fileno(), f"{daemon}\n".encode())
        os._exit(0)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def started(
    spec: dict[str, Any], *, stack_bytes: int = 0, ends_with_us: bool = True
) -> subprocess.Popen[bytes]:
    """The program of a specification, in a process group that ends together, its output logged.

    The rest as for `becoming`.
    """
    made = becoming(
        spec["argv"],
        environment=spec.get("environment"),
        stack_bytes=stack_bytes,
        ends_with_us=ends_with_us,
    )
    with Path(spec["log"]).open("ab") as log, made as (command, needs):
        return subprocess.Popen(
            command,
            cwd=spec["folder"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            pass_fds=[needs],
        )


@contextmanager
def logging_failure(log: Path) -> Iterator[None]:
    """What is raised inside is written to the log, too: our standard error is nowhere."""
    try:
        yield
    except Exception:
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        raise
