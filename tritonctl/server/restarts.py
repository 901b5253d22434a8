# SPDX-License-Identifier: Apache-2.0
"""Crashes of a running server: when it is started again, when no more, and what `status` says.

Standard library only: it is part of the supervisor.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

# Seconds before each new start; one crash more within the window, and the server stays down.
PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
WINDOW_SECONDS = 600.0


@dataclass(frozen=True)
class Crash:
    """One crash. `time`: in seconds since the epoch; `how` it ended, as "signal 6 (SIGABRT)".

    `ready_after`: seconds until every model was ready again; None until then.
    """

    time: float
    how: str
    ready_after: float | None = None


class Restarts:
    """Decides whether a crashed server starts again, and keeps a record of it in `file`."""

    def __init__(
        self,
        file: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._clock = clock
        self._now = now  # for people: the clock of the wall may jump
        self._crashes: list[Crash] = []
        self._times: list[float] = []

    def crashed(self, how: str) -> float | None:
        """Record a crash; the seconds until the next start, None after too many."""
        self._crashes.append(Crash(self._now(), how))
        self._times.append(self._clock())
        self._write()
        count = self.recent
        return PAUSES[count - 1] if count <= len(PAUSES) else None

    @property
    def recent(self) -> int:
        """Crashes within the window that ends now."""
        return sum(self._clock() - each < WINDOW_SECONDS for each in self._times)

    def ready(self) -> float | None:
        """Record that every model is ready; the seconds since the last crash, if there was one."""
        if not self._crashes:
            return None
        seconds = self._clock() - self._times[-1]
        self._crashes[-1] = replace(self._crashes[-1], ready_after=seconds)
        self._write()
        return seconds

    def _write(self) -> None:
        write_whole(self._file, [asdict(each) for each in self._crashes])


def write_whole(file: Path, record: object) -> None:
    """Write JSON that another process reads: all of it or nothing."""
    temporary = file.with_suffix(".writing")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    os.replace(temporary, file)


def read_restarts(file: Path) -> list[Crash]:
    """The crashes of the server that runs, or ran last; none without a record."""
    try:
        return [Crash(**each) for each in json.loads(file.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []


def described(crashes: Sequence[Crash]) -> str:
    """For people, what became of a server that crashed at least once."""
    last = crashes[-1]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.time))
    times = "once" if len(crashes) == 1 else f"{len(crashes)} times"
    crashed = f"crashed {times}, last at {when}: {last.how}"
    if last.ready_after is None:
        return f"{crashed}; not ready since"
    return f"{crashed}; started again, ready after {last.ready_after:.1f} s"
