# SPDX-License-Identifier: Apache-2.0
"""How a server ended: its supervisor records it, `up` says it.

Standard library only, and what it imports: it is part of the supervisor.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from tritonctl.server.restarts import write_whole


def record_end(file: Path, returncode: int, *, requested: bool, reason: str | None) -> None:
    """Write down the status of tritonserver, and who ended it.

    requested: somebody has asked its supervisor to. reason: why its supervisor did by itself.
    """
    record = {"returncode": returncode, "requested": requested, "reason": reason}
    write_whole(file, record | {"time": time.time()})


def described_end(file: Path) -> str:
    """For people, how the server ended of which that is the record."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "its supervisor ended first"
    if record["requested"]:
        return "its supervisor was asked to end it"
    return record["reason"] or status_words(record["returncode"])


def status_words(returncode: int) -> str:
    """As "exit code 1" or "signal 9 (SIGKILL)"."""
    if returncode < 0:
        return f"signal {-returncode} ({signal.Signals(-returncode).name})"
    return f"exit code {returncode}"
