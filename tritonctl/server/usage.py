# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of an embedded tritonserver and its stubs, read from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tritonctl.server.supervisor import process_fields, server_processes

# A reload starts new stubs, so look for processes again after this time.
_LOOK_AGAIN_SECONDS = 5.0


class ServerUsage:
    """CPU time and memory of one server's processes, known by its shared-memory prefix."""

    def __init__(self, shm_prefix: str) -> None:
        self._prefix = shm_prefix
        self._seconds: dict[int, float] = {}  # ended processes stay: the sum only grows
        self._looked = -_LOOK_AGAIN_SECONDS
        self._pids: list[int] = []

    def read(self) -> tuple[float | None, int | None]:
        """Seconds of CPU so far, and bytes resident now; None when no process runs."""
        if time.monotonic() - self._looked >= _LOOK_AGAIN_SECONDS:
            self._pids = server_processes(self._prefix)
            self._looked = time.monotonic()
        resident = [self._resident(pid) for pid in self._pids]
        alive = [size for size in resident if size is not None]
        if not alive:
            return None, None
        return sum(self._seconds.values()), sum(alive)

    def _resident(self, pid: int) -> int | None:
        fields = process_fields(pid)
        if fields is None:
            return None
        ticks = int(fields[11]) + int(fields[12])
        self._seconds[pid] = ticks / os.sysconf("SC_CLK_TCK")
        try:  # `stat` has it, too, less exactly: 4 MB beside were seen
            pages = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
        except (OSError, IndexError):  # it has ended meanwhile
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
