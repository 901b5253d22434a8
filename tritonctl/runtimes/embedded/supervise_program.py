# SPDX-License-Identifier: Apache-2.0
"""Run a frontend or gateway in the background: restart it after crashes, let it drain.

A separate process: `python -m tritonctl.runtimes.embedded.supervise_program SPEC.json`. Standard
library only, including its imports: it lives as long as the program does.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from tritonctl.runtimes.embedded.detached import (
    detach,
    end_orphans,
    logging_failure,
    start_process,
)
from tritonctl.runtimes.embedded.exit_record import record_exit, status_words
from tritonctl.supervision.exec_launcher import STOP_SIGNALS
from tritonctl.supervision.readiness import is_ready
from tritonctl.supervision.restarts import (
    RESTART_DELAYS,
    WINDOW_SECONDS,
    Restarts,
    append_crash,
)
from tritonctl.supervision.supervisor import KILL_MARGIN_SECONDS, kill_group

_POLL_SECONDS = 0.1
_LIVE_SECONDS = 1.0


def main(specification: Path) -> int:
    """Supervise the program of `specification` until it exits for good; return 0.

    Prints the pid of the background process.
    """
    spec = json.loads(specification.read_text(encoding="utf-8"))
    detach(partial(_end_program, specification, spec))
    with logging_failure(Path(spec["log"])):
        _ProgramSupervisor(spec).run()
    return 0


def _end_program(specification: Path, spec: dict[str, Any], death: str) -> None:
    """Let the program of a supervisor that was killed drain, then kill it."""
    with logging_failure(Path(spec["log"])):
        end_orphans(spec["exit_timeout_seconds"] + KILL_MARGIN_SECONDS)
        if json.loads(specification.read_text(encoding="utf-8")) != spec:
            return  # another one was started
        reason = f"its supervisor died: {death}"
        append_crash(Path(spec["restarts_file"]), reason)
        record_exit(Path(spec["exit_file"]), -signal.SIGKILL, requested=False, reason=reason)
        _append_to_log(spec, f"{spec['name']} was ended: {reason}; `tritonctl up` starts it again")


def _append_to_log(spec: dict[str, Any], text: str) -> None:
    with Path(spec["log"]).open("a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} tritonctl: {text}\n")


class _ProgramSupervisor:
    """Runs a program and restarts it after crashes, up to a limit."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._restarts = Restarts(Path(spec["restarts_file"]))
        self._was_live = False
        self._is_stopping = False

    def run(self) -> None:
        """Run until stopped or crashed too often; do not restart a program that never answered."""
        status = self._run_once()
        while not self._is_stopping and self._was_live and self._may_restart(status):
            status = self._run_once()
        record_exit(Path(self._spec["exit_file"]), status, requested=self._is_stopping, reason=None)
        if not self._is_stopping and (fallback_argv := self._spec.get("gave_up")):
            start_process(self._spec | {"argv": fallback_argv}).wait()

    def _run_once(self) -> int:
        """Run the program once; return its exit status. A stop lets it drain, then kills it."""
        process = start_process(self._spec)
        try:
            self._watch(process)
            if self._is_stopping:
                process.terminate()
                try:
                    grace_seconds = self._spec["exit_timeout_seconds"] + KILL_MARGIN_SECONDS
                    process.wait(grace_seconds)
                except subprocess.TimeoutExpired:
                    _append_to_log(
                        self._spec, f"{self._spec['name']} did not end in time: killing it"
                    )
        finally:
            kill_group(process.pid)
        return process.wait()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the program exits or a stop is requested; record its first answer."""
        answered, start_time = False, time.monotonic()
        while process.poll() is None:
            if signal.sigtimedwait(STOP_SIGNALS, _POLL_SECONDS):
                self._is_stopping = True
                return
            if not answered and self._is_live(time.monotonic() - start_time):
                answered = self._was_live = True
                self._restarts.record_ready()

    def _is_live(self, seconds: float) -> bool:
        """Whether the program answers; without a URL, whether it has run for a second."""
        url = self._spec["live_url"]
        return seconds > _LIVE_SECONDS if url is None else is_ready(url, _POLL_SECONDS)

    def _may_restart(self, status: int) -> bool:
        """Wait for the restart delay; return whether to restart. A stop ends the wait."""
        crashed = f"{self._spec['name']} crashed: {status_words(status)}"
        pause = self._restarts.record_crash(status_words(status))
        if not self._spec["restart"]:
            return False
        count, minutes = self._restarts.recent_crashes, WINDOW_SECONDS / 60
        if pause is None:
            _append_to_log(
                self._spec, f"{crashed}; {count} times within {minutes:.0f} minutes: it stays down"
            )
            return False
        _append_to_log(
            self._spec,
            f"{crashed}; restarting it in {pause:.0f} s ({count} of {len(RESTART_DELAYS)})",
        )
        self._is_stopping = signal.sigtimedwait(STOP_SIGNALS, pause) is not None
        return not self._is_stopping


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
