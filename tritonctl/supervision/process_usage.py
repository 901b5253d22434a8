# SPDX-License-Identifier: Apache-2.0
"""Read CPU time and memory of an embedded tritonserver and its stubs from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tritonctl.supervision.supervisor import process_fields, server_processes

# A reload starts new stubs, so scan for processes at this interval.
_SCAN_SECONDS = 5.0


class ServerUsage:
    """CPU time and memory of one server's processes, found by its shared-memory prefix."""

    def __init__(self, shm_prefix: str) -> None:
        self._prefix = shm_prefix
        self._seconds: dict[int, float] = {}  # by pid; exited processes stay, so the sum only grows
        self._scan_time = -_SCAN_SECONDS
        self._pids: list[int] = []

    def read(self) -> tuple[float | None, int | None]:
        """Return CPU seconds so far and resident bytes now; None if no process runs."""
        if time.monotonic() - self._scan_time >= _SCAN_SECONDS:
            self._pids = server_processes(self._prefix)
            self._scan_time = time.monotonic()
        resident = [self._sample_process(pid) for pid in self._pids]
        alive = [size for size in resident if size is not None]
        if not alive:
            return None, None
        return sum(self._seconds.values()), sum(alive)

    def _sample_process(self, pid: int) -> int | None:
        """Store the process's CPU seconds and return its resident bytes; None: it has exited."""
        fields = process_fields(pid)
        if fields is None:
            return None
        ticks = int(fields[11]) + int(fields[12])
        self._seconds[pid] = ticks / os.sysconf("SC_CLK_TCK")
        try:  # `stat` also has the size, but up to 4 MB off
            pages = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
        except (OSError, IndexError):  # the process has exited
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
