# SPDX-License-Identifier: Apache-2.0
"""Crashes of a running server: restart delays, the restart limit and the record for `status`.

Standard library only: the module is part of the supervisor.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

# Seconds before each restart; after one more crash of the same cause within the window the server
# stays down. Causes count separately: a client that crashes the server does not use up the restarts
# after a stub that was out of memory.
RESTART_DELAYS = (0.0, 1.0, 2.0, 4.0, 8.0)
WINDOW_SECONDS = 600.0


@dataclass(frozen=True)
class Crash:
    """One crash of a server."""

    time: float  # seconds since the epoch
    how: str  # its cause, such as "signal 6 (SIGABRT)"
    ready_after: float | None = None  # seconds until every model was ready again; None until then


class Restarts:
    """Decides whether a crashed server restarts, and records its crashes in `file`."""

    def __init__(
        self,
        file: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._clock = clock
        self._wall_clock = wall_clock  # for display only: it may jump
        self._crashes: list[Crash] = []
        self._times: list[float] = []

    def record_crash(self, description: str) -> float | None:
        """Record a crash; return the seconds until the restart, None after too many like it."""
        self._crashes.append(Crash(self._wall_clock(), description))
        self._times.append(self._clock())
        self._write()
        count = self.recent_crashes
        return RESTART_DELAYS[count - 1] if count <= len(RESTART_DELAYS) else None

    @property
    def recent_crashes(self) -> int:
        """Number of crashes within the last `WINDOW_SECONDS` that had the last one's cause."""
        return sum(
            crash.how == self._crashes[-1].how and self._clock() - seconds < WINDOW_SECONDS
            for crash, seconds in zip(self._crashes, self._times, strict=True)
        )

    def record_ready(self) -> float | None:
        """Record that every model is ready; return the seconds since the last crash, if any."""
        if not self._crashes:
            return None
        seconds = self._clock() - self._times[-1]
        self._crashes[-1] = replace(self._crashes[-1], ready_after=seconds)
        self._write()
        return seconds

    def _write(self) -> None:
        write_json_atomically(self._file, [asdict(each) for each in self._crashes])


def write_json_atomically(file: Path, record: object) -> None:
    """Write JSON atomically, for another process to read."""
    temporary = file.with_suffix(".writing")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    os.replace(temporary, file)


def read_restarts(file: Path) -> list[Crash]:
    """Read the crashes of the current or last server; empty without a record."""
    try:
        return [Crash(**each) for each in json.loads(file.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []


def append_crash(file: Path, description: str) -> None:
    """Record a crash in place of a supervisor that no longer can."""
    crashes = [*read_restarts(file), Crash(time.time(), description)]
    write_json_atomically(file, [asdict(each) for each in crashes])


def describe_crashes(crashes: Sequence[Crash]) -> str:
    """Describe the crashes of a server, and whether it is ready again."""
    last = crashes[-1]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.time))
    times = "once" if len(crashes) == 1 else f"{len(crashes)} times"
    summary = f"crashed {times}, last at {when}: {last.how}"
    if last.ready_after is None:
        return f"{summary}; not ready since"
    return f"{summary}; restarted, ready after {last.ready_after:.1f} s"
