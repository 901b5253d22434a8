# SPDX-License-Identifier: Apache-2.0
"""Resident memory of tritonserver and all its descendants, read from /proc.

The sum of the processes' resident sizes, defined as in `tritonctl/supervision/process_usage.py`: a
page that several processes share counts once per process. A rollout compares the growth of both
versions. Every model of a server reports this figure; take the largest.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from textlib.process_tree import ProcessTree

READ_SECONDS = 1.0
STEP_BYTES = 1_000_000  # minimum change to report: a rollout counts growth from 40 MB on
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ServerMemory:
    """Memory of the server with process id `server`, the parent of a Triton model's process."""

    def __init__(
        self,
        server: int,
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree, self._clock = ProcessTree(server, proc=proc, clock=clock), clock
        self._reported: int | None = None
        self._next_read = float("-inf")

    def read(self) -> int | None:
        """Return bytes, at most a second old; the value changes in steps of `STEP_BYTES`.

        None if no process was ever seen.
        """
        now = self._clock()
        if now < self._next_read:
            return self._reported
        self._next_read = now + READ_SECONDS
        resident = sum(self._resident_bytes(process) for process in self._tree.processes())
        if resident and (self._reported is None or abs(resident - self._reported) >= STEP_BYTES):
            self._reported = resident
        return self._reported

    def _resident_bytes(self, process: int) -> int:
        """Return the resident bytes of a process; 0 if it has ended."""
        fields = self._tree.fields(f"{process}/statm")
        return int(fields[1]) * _PAGE_BYTES if fields else 0
