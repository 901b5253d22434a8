# SPDX-License-Identifier: Apache-2.0
"""A process and its descendants, read from /proc."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

SCAN_SECONDS = 5.0  # between two scans for new processes: a reload starts some


class ProcessTree:
    """The process `root` and its descendants, as of the last scan."""

    def __init__(
        self,
        root: int,
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._proc, self._clock = root, proc, clock
        self._processes: Sequence[int] = ()
        self._next_scan = float("-inf")

    def processes(self) -> Sequence[int]:
        """Return the process ids; some may have exited since the scan. Empty without /proc."""
        if self._clock() >= self._next_scan:
            self._next_scan = self._clock() + SCAN_SECONDS
            with suppress(OSError):  # no /proc
                self._processes = self._with_descendants()
        return self._processes

    def stat(self, process: int) -> list[bytes]:
        """Return the fields of /proc/PID/stat from the state on; [] if the process has exited."""
        # The command's name, in parentheses, may itself contain spaces and parentheses.
        return self.fields(f"{process}/stat", separator=b")")

    def fields(self, file: str, separator: bytes = b"\0") -> list[bytes]:
        """Return the fields of a file in /proc after its last separator; [] if it is gone."""
        try:
            return (self._proc / file).read_bytes().rsplit(separator, 1)[-1].split()
        except OSError:
            return []

    def _with_descendants(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in self._proc.iterdir():
            if entry.name.isdigit():
                fields = self.stat(int(entry.name))
                children.setdefault(int(fields[1]) if fields else 0, []).append(int(entry.name))
        processes = [self._root]
        for process in processes:
            processes += children.pop(process, ())
        return processes
