# SPDX-License-Identifier: Apache-2.0
"""Resident memory of tritonserver and all its descendants, read from /proc.

The sum of the processes' resident sizes, defined as in `tritonctl/supervision/process_usage.py`: a
page that several processes share counts once per process. A rollout compares the growth of both
versions. Every model of a server reports this figure; take the largest.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

READ_SECONDS = 1.0
SCAN_SECONDS = 5.0  # between two scans for new processes: a reload starts some
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
        self._server, self._proc, self._clock = server, proc, clock
        self._processes: Sequence[int] = ()
        self._reported: int | None = None
        self._next_read = self._next_scan = float("-inf")

    def read(self) -> int | None:
        """Return bytes, at most a second old; the value changes in steps of `STEP_BYTES`.

        None if no process was ever seen.
        """
        now = self._clock()
        if now < self._next_read:
            return self._reported
        self._next_read = now + READ_SECONDS
        if now >= self._next_scan:
            self._next_scan = now + SCAN_SECONDS
            with suppress(OSError):  # no /proc
                self._processes = self._with_descendants()
        resident = sum(self._resident_bytes(process) for process in self._processes)
        if resident and (self._reported is None or abs(resident - self._reported) >= STEP_BYTES):
            self._reported = resident
        return self._reported

    def _with_descendants(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in self._proc.iterdir():
            if entry.name.isdigit():
                # The command's name, in parentheses, may itself contain spaces and parentheses.
                fields = self._fields(f"{entry.name}/stat", separator=b")")
                children.setdefault(int(fields[1]) if fields else 0, []).append(int(entry.name))
        processes = [self._server]
        for process in processes:
            processes += children.pop(process, ())
        return processes

    def _resident_bytes(self, process: int) -> int:
        """Return the resident bytes of a process; 0 if it has ended."""
        fields = self._fields(f"{process}/statm")
        return int(fields[1]) * _PAGE_BYTES if fields else 0

    def _fields(self, file: str, separator: bytes = b"\0") -> list[bytes]:
        try:
            return (self._proc / file).read_bytes().rsplit(separator, 1)[-1].split()
        except OSError:
            return []
