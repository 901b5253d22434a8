# SPDX-License-Identifier: Apache-2.0
"""The generator processes of a run: start, read, interrupt and terminate them."""

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
from tritonctl.host.files import as_host_error
from tritonctl.host.process import interrupt, signal_group

# By exit status: 2 refuses the plan, 3 the endpoint.
_ERROR_BY_STATUS: dict[int, type[TritonctlError]] = {2: ConfigurationError, 3: ServerError}
_LOG_TAIL = 20
_KILL_GRACE_SECONDS = 5.0


@dataclass
class GeneratorWorker:
    """One generator process."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    has_started: bool = False
    final_progress: dict[str, Any] | None = None  # None while it runs, or when it was lost
    has_ended: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether the process ended without a final progress line, or with an error."""
        return self.has_ended and (self.final_progress is None or self.process.returncode != 0)

    def start_error(self) -> TritonctlError:
        """Return the error of a process that ended before it sent anything."""
        status = self.process.returncode
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        for line in reversed(text.splitlines()):
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                problem, remedy = str(record["problem"]), str(record["remedy"])
                return _ERROR_BY_STATUS.get(status, HostError)(problem, remedy=remedy)
        return HostError(
            f"the load generator exited with status {status} before it sent anything",
            remedy=f"read {self.log}; if it does not explain the error, please report a bug",
            details="\n".join(text.splitlines()[-_LOG_TAIL:]) or None,
        )


@dataclass
class GeneratorWorkers:
    """All generator processes of a run."""

    members: list[GeneratorWorker] = field(default_factory=list)
    _output: queue.SimpleQueue[tuple[GeneratorWorker, bytes | None]] = field(
        default_factory=queue.SimpleQueue
    )

    def start(self, command: Sequence[str], folder: Path, number: int, worker_count: int) -> None:
        """Start a process and read its output in a thread."""
        log = folder / f"generator-{number}.log"
        with as_host_error(log), log.open("ab") as errors:
            process = subprocess.Popen(
                [*command, "--worker", str(number), "--workers", str(worker_count)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_clean_environment(),
                start_new_session=True,  # this process forwards Ctrl-C, once
            )
        worker = GeneratorWorker(number, process, log)
        self.members.append(worker)
        threading.Thread(target=self._read_output, args=(worker,), daemon=True).start()

    def _read_output(self, worker: GeneratorWorker) -> None:
        with worker.process.stdout or open(os.devnull, "rb") as lines:  # noqa: PTH123 - for types
            for line in lines:
                self._output.put((worker, line))
        worker.process.wait()
        self._output.put((worker, None))

    @property
    def is_running(self) -> bool:
        """Whether a process runs, or has output that `read_progress` has not returned yet."""
        return not all(worker.has_ended for worker in self.members)

    def read_progress(self, seconds: float) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield progress lines, parsed and as text, until none arrives for `seconds`."""
        with suppress(queue.Empty):
            while True:
                worker, line = self._output.get(timeout=seconds)
                if line is None:
                    worker.has_ended = True
                else:
                    yield from _parse_progress(worker, line)
                seconds = 0.0

    def interrupt(self) -> None:
        """Send SIGINT: the first stops sending, the second abandons responses in flight."""
        for worker in self.members:
            if not worker.has_ended:
                with suppress(ProcessLookupError):
                    interrupt(worker.process)

    def terminate(self) -> None:
        """Terminate every process that still runs."""
        for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            for worker in self.members:
                with suppress(ProcessLookupError, PermissionError):
                    if worker.process.poll() is None:
                        signal_group(worker.process, number)
            for worker in self.members:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(_KILL_GRACE_SECONDS)


def _parse_progress(worker: GeneratorWorker, line: bytes) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        record = json.loads(line)
    except ValueError:  # truncated by a kill, or printed by a library
        return
    if not isinstance(record, dict) or "worker" not in record:
        return
    worker.has_started = True
    if record.get("finished"):
        worker.final_progress = record
    yield record, line.decode("utf-8", "replace").rstrip("\n")


def _clean_environment() -> dict[str, str]:
    """This process's environment, without variables that expose its packages to generators."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


class InterruptCounter:
    """Counts SIGINT and SIGTERM while `capture_signals` is active."""

    def __init__(self) -> None:
        self.count = 0

    def _increment(self, *_: object) -> None:
        self.count += 1

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Count the signals instead of handling them (main thread only)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous_handlers = {number: signal.signal(number, self._increment) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
