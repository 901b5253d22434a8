# SPDX-License-Identifier: Apache-2.0
"""The exit record of a server, written by its supervisor and read by `up`.

Standard library only, including its imports: the module is part of the supervisor.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from tritonctl.supervision.restarts import write_json_atomically


def record_exit(file: Path, returncode: int, *, requested: bool, reason: str | None) -> None:
    """Record the exit status of a server.

    requested: whether a stop was requested. reason: why the supervisor itself killed the server.
    """
    record = {"returncode": returncode, "requested": requested, "reason": reason}
    write_json_atomically(file, record | {"time": time.time()})


def exit_summary(file: Path) -> str:
    """Describe the recorded exit."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "its supervisor exited first"
    if record["requested"]:
        return "a stop was requested"
    return record["reason"] or status_words(record["returncode"])


def status_words(returncode: int) -> str:
    """Return "exit code 1" or "signal 9 (SIGKILL)"."""
    if returncode < 0:
        return f"signal {-returncode} ({signal.Signals(-returncode).name})"
    return f"exit code {returncode}"
