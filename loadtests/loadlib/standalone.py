# SPDX-License-Identifier: Apache-2.0
"""A generator on its own: records in a folder, progress on standard output, signals end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from loadlib.engine import Engine
from loadlib.json_lines import complain, encoded
from loadlib.records import RecordFile, check_writable
from loadlib.share import FULL, INTERRUPTED


class Standalone:
    """Where records and progress go, and what ends the run early."""

    records: RecordFile

    def __init__(self, folder: Path, worker: int, started_at: float | None) -> None:
        check_writable(folder)
        self._path = folder / f"records-{worker}.jsonl"
        self._started_at = started_at
        self._engine: Engine | None = None

    async def ready(self) -> float | None:
        """Begin a new file of records; when the plan starts, None: shortly."""
        self.records = RecordFile(self._path)
        return self._started_at

    def attach(self, engine: Engine) -> None:
        """One signal: finish what is in flight. Two: abandon it."""
        self._engine = engine
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, engine.stop, INTERRUPTED)

    def flush(self) -> None:
        """Write the records so far; a full disk ends the run."""
        self.records.flush()
        if self.records.failure and self._engine and not self._engine.stopped:
            complain({"problem": f"cannot write the records: {self.records.failure}"})
            self._engine.stop(FULL)

    def say(self, line: dict[str, Any]) -> None:
        """Print a progress line."""
        try:
            sys.stdout.write(encoded(line))
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever started this run is gone.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if self._engine:
                self._engine.stop(INTERRUPTED)

    async def close(self) -> None:
        """Nothing to wait for."""
