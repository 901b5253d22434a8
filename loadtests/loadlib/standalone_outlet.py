# SPDX-License-Identifier: Apache-2.0
"""A standalone generator: records in a folder, progress on standard output, ended by signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from loadlib.engine import LoadEngine
from loadlib.json_lines import encode_line, print_error
from loadlib.records import RecordFile, check_writable
from loadlib.worker_share import DISK_FULL, INTERRUPTED


class StandaloneOutlet:
    """Writes records to a folder and progress to standard output; signals end the run."""

    records: RecordFile

    def __init__(self, folder: Path, worker: int, started_at: float | None) -> None:
        check_writable(folder)
        self._path = folder / f"records-{worker}.jsonl"
        self._started_at = started_at
        self._engine: LoadEngine | None = None

    async def wait_for_start(self) -> float | None:
        """Create the record file and return the plan's start time; None: shortly."""
        self.records = RecordFile(self._path)
        return self._started_at

    def attach(self, engine: LoadEngine) -> None:
        """Handle signals: the first stops sending, the second abandons requests in flight."""
        self._engine = engine
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, engine.stop, INTERRUPTED)

    def flush(self) -> None:
        """Write the buffered records; a full disk ends the run."""
        self.records.flush()
        if self.records.failure and self._engine and not self._engine.stopped:
            print_error({"problem": f"cannot write the records: {self.records.failure}"})
            self._engine.stop(DISK_FULL)

    def write_progress(self, line: dict[str, Any]) -> None:
        """Print a progress line."""
        try:
            sys.stdout.write(encode_line(line))
            sys.stdout.flush()
        except BrokenPipeError:
            # The parent process has exited.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if self._engine:
                self._engine.stop(INTERRUPTED)

    async def close(self) -> None:
        """Do nothing: all output is written."""
