# SPDX-License-Identifier: Apache-2.0
"""How much memory tritonserver and all that it has started have, read from /proc.

The sum of the processes' resident sizes, by the definition of `tritonctl/server/usage.py`: a page
that several of them share counts for each. A rollout asks whether it grows, so what counts twice
does so in both versions. Each of a server's models reads it for itself: whoever wants one figure
takes the largest, and needs no model that speaks for the others.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

READ_SECONDS = 1.0
LOOK_SECONDS = 5.0  # between two looks for processes that are new: a reload starts some
STEP_BYTES = 1_000_000  # less is no change: a rollout counts growth from 40 MB on
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ServerMemory:
    """Of the server whose process id is `server`; a Triton model's own parent is one."""

    def __init__(
        self,
        server: int,
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._proc, self._clock = server, proc, clock
        self._processes: Sequence[int] = ()
        self._told: int | None = None
        self._read_next = self._look_next = float("-inf")

    def read(self) -> int | None:
        """Bytes, a second old at most, and the same until they differ by `STEP_BYTES`.

        None: none of the processes was ever seen.
        """
        now = self._clock()
        if now < self._read_next:
            return self._told
        self._read_next = now + READ_SECONDS
        if now >= self._look_next:
            self._look_next = now + LOOK_SECONDS
            with suppress(OSError):  # no /proc
                self._processes = self._with_descendants()
        resident = sum(self._resident(process) for process in self._processes)
        if resident and (self._told is None or abs(resident - self._told) >= STEP_BYTES):
            self._told = resident
        return self._told

    def _with_descendants(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in self._proc.iterdir():
            if entry.name.isdigit():
                # The command's name, in parentheses, may itself contain spaces and parentheses.
                fields = self._fields(f"{entry.name}/stat", after=b")")
                children.setdefault(int(fields[1]) if fields else 0, []).append(int(entry.name))
        found = [self._server]
        for process in found:
            found += children.pop(process, ())
        return found

    def _resident(self, process: int) -> int:
        """0 for one that has ended since."""
        fields = self._fields(f"{process}/statm")
        return int(fields[1]) * _PAGE_BYTES if fields else 0

    def _fields(self, file: str, after: bytes = b"\0") -> list[bytes]:
        try:
            return (self._proc / file).read_bytes().rsplit(after, 1)[-1].split()
        except OSError:
            return []
