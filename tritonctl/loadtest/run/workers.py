# SPDX-License-Identifier: Apache-2.0
"""The generator processes of a run: starts, reads, interrupts them, and leaves none running."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, HostError, ServerError, TritonctlError
from tritonctl.host.files import explained
from tritonctl.host.process import interrupt, signal_group

# By exit status: the plan is refused, the endpoint is.
_ERRORS: dict[int, type[TritonctlError]] = {2: ConfigurationError, 3: ServerError}
_LOG_TAIL = 20
_KILL_GRACE_SECONDS = 5.0


@dataclass
class Worker:
    """One process. `last`: its final progress line; None while it runs, or when it was lost."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    began: bool = False
    last: dict[str, Any] | None = None
    ended: bool = False

    @property
    def lost(self) -> bool:
        """Whether it ended without a final progress line, or with an error."""
        return self.ended and (self.last is None or self.process.returncode != 0)

    def refusal(self) -> TritonctlError:
        """Why it ended before it sent anything."""
        status = self.process.returncode
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        for line in reversed(text.splitlines()):
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                problem, remedy = str(record["problem"]), str(record["remedy"])
                return _ERRORS.get(status, HostError)(problem, remedy=remedy)
        return HostError(
            f"the load generator ended with status {status} before it sent anything",
            remedy=f"read {self.log}; if that does not explain it, please report a bug",
            details="\n".join(text.splitlines()[-_LOG_TAIL:]) or None,
        )


@dataclass
class Workers:
    """All processes of a run."""

    all: list[Worker] = field(default_factory=list)
    _output: queue.SimpleQueue[tuple[Worker, bytes | None]] = field(
        default_factory=queue.SimpleQueue
    )

    def start(self, command: Sequence[str], folder: Path, number: int, of: int) -> None:
        """Start one and read its output from now on."""
        log = folder / f"generator-{number}.log"
        with explained(log), log.open("ab") as errors:
            process = subprocess.Popen(
                [*command, "--worker", str(number), "--workers", str(of)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(),
                start_new_session=True,  # Ctrl-C at the terminal is ours to pass on, once
            )
        worker = Worker(number, process, log)
        self.all.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()

    def _listen(self, worker: Worker) -> None:
        with worker.process.stdout or open(os.devnull, "rb") as lines:  # noqa: PTH123 - for types
            for line in lines:
                self._output.put((worker, line))
        worker.process.wait()
        self._output.put((worker, None))

    @property
    def running(self) -> bool:
        """Whether a process runs, or has output that `hear` has not returned yet."""
        return not all(worker.ended for worker in self.all)

    def hear(self, seconds: float) -> Iterator[tuple[dict[str, Any], str]]:
        """Progress lines, parsed and as text; ends when none comes for that long."""
        with suppress(queue.Empty):
            while True:
                worker, line = self._output.get(timeout=seconds)
                if line is None:
                    worker.ended = True
                else:
                    yield from _parsed(worker, line)
                seconds = 0.0

    def interrupt(self) -> None:
        """Send SIGINT: once to send no more requests, twice to wait for no more answers."""
        for worker in self.all:
            if not worker.ended:
                with suppress(ProcessLookupError):
                    interrupt(worker.process)

    def end(self) -> None:
        """Terminate every process that still runs."""
        for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            for worker in self.all:
                with suppress(ProcessLookupError, PermissionError):
                    if worker.process.poll() is None:
                        signal_group(worker.process, number)
            for worker in self.all:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(_KILL_GRACE_SECONDS)


def _parsed(worker: Worker, line: bytes) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        record = json.loads(line)
    except ValueError:  # cut off by a kill, or printed by a library
        return
    if not isinstance(record, dict) or "worker" not in record:
        return
    worker.began = True
    if record.get("finished"):
        worker.last = record
    yield record, line.decode("utf-8", "replace").rstrip("\n")


def _environment() -> dict[str, str]:
    """Our own environment, without variables that would let generators import our packages."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


class Interruptions:
    """Counts how often the user asked to stop."""

    def __init__(self) -> None:
        self.count = 0

    def _count_one(self, *_: object) -> None:
        self.count += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Only count SIGINT and SIGTERM while the context lasts (in the main thread)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._count_one) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
