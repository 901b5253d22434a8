# SPDX-License-Identifier: Apache-2.0
"""Locust as a process, in the load generators' environment."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOADTESTS = Path(__file__).resolve().parents[2] / "loadtests"
_PATIENCE = 120.0


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait for it; its value."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited in vain for {what}")


class Process:
    """One Locust: its progress lines so far, and what it logged."""

    def __init__(self, python: Path, program: str, arguments: list[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self.popen = subprocess.Popen(
                [str(python), *program.split(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=LOADTESTS,
            )
        self.progress: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            self.progress.extend(map(json.loads, lines))

    @property
    def log(self) -> str:
        """Standard error so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self.popen.wait(_PATIENCE)
        self._reader.join(_PATIENCE)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send it one."""
        self.popen.send_signal(number)

    def seconds_seen(self) -> list[dict[str, Any]]:
        """Progress lines of seconds."""
        return [line for line in self.progress if "t" in line]

    def last_lines(self) -> dict[int, dict[str, Any]]:
        """The line with which each worker ended."""
        return {line["worker"]: line for line in self.progress if line.get("finished")}


@contextmanager
def locust(python: Path, arguments: list[str], folder: Path) -> Iterator[Process]:
    """`locust -f locustfile.py ...`; killed at the end if it still runs."""
    with _process(python, "-m locust -f locustfile.py", arguments, folder) as process:
        yield process


@contextmanager
def locust_generator(python: Path, plan: Path, folder: Path) -> Iterator[Process]:
    """As `tritonctl loadtest run --generator locust` starts it."""
    arguments = ["--plan", str(plan), "--output", str(folder)]
    with _process(python, "locust_generator.py", arguments, folder) as process:
        yield process


@contextmanager
def _process(python: Path, program: str, arguments: list[str], folder: Path) -> Iterator[Process]:
    process = Process(python, program, arguments, folder)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()


def read_records(folder: Path, worker: int = 0) -> list[dict[str, Any]]:
    """Records of one worker."""
    return read_json_lines(folder / f"records-{worker}.jsonl")


def read_json_lines(file: Path) -> list[dict[str, Any]]:
    """Objects, a line each."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
