# SPDX-License-Identifier: Apache-2.0
"""Run one tritonserver in the background: restart it after crashes, clean up after it.

A separate process: `python -m tritonctl.runtimes.embedded.supervise SPEC.json`. Standard library
only, including its imports: it lives as long as the server does. If it is killed, a guard ends the
server, whose streams would hang.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tritonctl.errors import HostError
from tritonctl.runtimes.embedded.detached import (
    detach,
    end_orphans,
    logging_failure,
    start_process,
)
from tritonctl.runtimes.embedded.exit_record import record_exit, status_words
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.supervision.exec_launcher import STOP_SIGNALS
from tritonctl.supervision.progress import ProgressWatch, describe_change
from tritonctl.supervision.readiness import Readiness, is_ready
from tritonctl.supervision.restarts import (
    RESTART_DELAYS,
    WINDOW_SECONDS,
    Restarts,
    append_crash,
    write_json_atomically,
)
from tritonctl.supervision.supervisor import (
    STACK_BYTES,
    WATCH_SECONDS,
    ServerShutdown,
    hold_signals,
    install_signal_handlers,
    kill_and_remove_shm,
    kill_group,
    stop_timer,
)

# Poll interval and timeout of readiness until the server was ready once. A starting server may
# accept a connection without answering, which delays the next poll; a server that crashes before
# it was ready is not restarted.
_READY_SECONDS = 0.1
# As gRPC and Abseil write it before they abort.
_ASSERTION = re.compile(rb"ASSERTION FAILED: [^\n]{1,120}")
_MAX_SEARCHED_BYTES = 1 << 16  # a stack trace follows
# How long a server may go on after its supervisor was killed. tritonserver 2.51 answers nothing new
# after SIGTERM; short requests finish, while its streams hang.
_ORPHAN_SECONDS = 1.0


def main(specification: Path) -> int:
    """Supervise the server of `specification` until it exits for good; return 0.

    Prints the pid of the background process.
    """
    spec = json.loads(specification.read_text(encoding="utf-8"))
    detach(partial(_end_server, specification, spec))
    progress = ProgressWatch(spec["metrics_url"], partial(_record_progress, spec))
    supervised = _ServerSupervisor(spec, _readiness(spec, progress))
    progress.start()
    with logging_failure(Path(spec["log"])):
        supervised.run()
    return 0


def _end_server(specification: Path, spec: dict[str, Any], death: str) -> None:
    """End the server of a supervisor that was killed, so that its clients go elsewhere."""
    with logging_failure(Path(spec["log"])):
        end_orphans(_ORPHAN_SECONDS)
        kill_and_remove_shm(spec["shm_prefix"])
        if json.loads(specification.read_text(encoding="utf-8")) != spec:
            return  # `up` has started another server
        reason = f"its supervisor died: {death}"
        append_crash(Path(spec["restarts_file"]), reason)
        record_exit(Path(spec["exit_file"]), -signal.SIGKILL, requested=False, reason=reason)
        with Path(spec["log"]).open("a", encoding="utf-8") as log:
            log.write(
                f"tritonctl: tritonserver was ended: {reason}; `tritonctl up` starts it again\n"
            )


def _record_progress(spec: dict[str, Any], frozen: Iterable[str]) -> None:
    """Write the models that make no progress into the log and into a file for `status`."""
    write_json_atomically(Path(spec["frozen_file"]), sorted(frozen))
    with Path(spec["log"]).open("a", encoding="utf-8") as log:
        log.write(f"tritonctl: {describe_change(frozen)}\n")


def _readiness(spec: dict[str, Any], progress: ProgressWatch) -> Readiness | None:
    """Listen for readiness probes before the server starts, if the project has a port for them."""
    if (port := spec.get("readiness_port")) is None:
        return None
    readiness = Readiness(spec["ready_url"], makes_progress=progress.makes_progress)
    try:
        readiness.listen(spec["plain_address"], port)
    except OSError as error:
        with Path(spec["log"]).open("a", encoding="utf-8") as log:
            log.write(f"tritonctl: cannot listen on port {port} (server.readiness_port): {error}\n")
        raise
    return readiness


class _ServerSupervisor:
    """Runs a server and restarts it after crashes, up to a limit."""

    def __init__(self, spec: dict[str, Any], readiness: Readiness | None) -> None:
        self._spec = spec
        self._readiness = readiness
        self._restarts = Restarts(Path(spec["restarts_file"]))
        self._was_ready = False
        self._returncode = 0
        self._requested = False
        self._reason: str | None = None

    def run(self) -> None:
        """Run until the server is stopped, exits with status 0, or crashes too often."""
        crash = self._run_once()
        while crash and self._may_restart(crash):
            crash = self._restart()
        record_exit(
            Path(self._spec["exit_file"]),
            self._returncode,
            requested=self._requested,
            reason=self._reason,
        )

    def _run_once(self) -> str | None:
        """Run the server once; return its crash reason, None if it should stay down."""
        with Path(self._spec["log"]).open("ab") as log:
            start = log.tell()
        server = start_process(self._spec, stack_bytes=STACK_BYTES, private_files=True)
        shutdown = _EmbeddedShutdown(server, self._spec, self._readiness, self._on_ready)
        install_signal_handlers(shutdown, _READY_SECONDS)
        try:
            self._returncode = server.wait()
        finally:
            stop_timer()
            hold_signals()  # until the next run handles them
            kill_group(server.pid)
            kill_and_remove_shm(self._spec["shm_prefix"])
        self._requested, self._reason = shutdown.requested, shutdown.reason
        # `up` reports a server that was never ready.
        if self._requested or self._returncode == 0 or not self._was_ready:
            return None
        return self._reason or self._crash_cause(start)

    def _crash_cause(self, start: int) -> str:
        """Describe the exit with the failed assertion, if the log from `start` on has one."""
        with Path(self._spec["log"]).open("rb") as log:
            log.seek(max(start, os.fstat(log.fileno()).st_size - _MAX_SEARCHED_BYTES))
            assertions = _ASSERTION.findall(log.read())
        status = status_words(self._returncode)
        return f"{status}: {assertions[-1].decode('utf-8', 'replace')}" if assertions else status

    def _on_ready(self) -> None:
        self._was_ready = True
        if (seconds := self._restarts.record_ready()) is not None:
            self._append_to_log(f"every model is ready again, {seconds:.1f} s after the crash")

    def _may_restart(self, crash: str) -> bool:
        """Wait for the restart delay; return whether to restart. A stop ends the wait."""
        pause = self._restarts.record_crash(crash)
        crashed = f"tritonserver crashed: {crash}"
        if not self._spec["restart"]:
            return False
        if pause is None:
            self._append_to_log(
                f"{crashed}; {self._restarts.recent_crashes} such crashes "
                f"within {WINDOW_SECONDS / 60:.0f} minutes are too many: it stays down"
            )
            return False
        self._append_to_log(
            f"{crashed}; restarting it in {pause:.0f} s "
            f"(restart {self._restarts.recent_crashes} of {len(RESTART_DELAYS)} "
            f"within {WINDOW_SECONDS / 60:.0f} minutes)"
        )
        self._requested = signal.sigtimedwait(STOP_SIGNALS, pause) is not None
        return not self._requested

    def _restart(self) -> str | None:
        """Run the server again on the same ports, without models of an unfinished reload."""
        standby = Path(self._spec["beside"])
        shutil.rmtree(standby, ignore_errors=True)
        try:
            standby.mkdir()
            with ExitStack() as reservations:
                for address, ports in self._spec["ports"].items():
                    reservations.enter_context(reserved_ports(address, ports))
                return self._run_once()
        except HostError as error:
            return error.problem
        except OSError as error:
            return str(error)

    def _append_to_log(self, text: str) -> None:
        with Path(self._spec["log"]).open("a", encoding="utf-8") as log:
            log.write(f"tritonctl: {text}\n")


class _EmbeddedShutdown(ServerShutdown):
    """Calls `on_ready`, too, as soon as every model is ready."""

    def __init__(
        self,
        server: subprocess.Popen[bytes],
        spec: dict[str, Any],
        readiness: Readiness | None,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(server, spec, readiness)
        self._on_ready: Callable[[], None] | None = on_ready

    def _step(self) -> None:
        super()._step()
        if self._on_ready and is_ready(self._spec["ready_url"], _READY_SECONDS):
            self._on_ready()
            self._on_ready = None
            if not self.requested:
                self._set_alarm(WATCH_SECONDS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
