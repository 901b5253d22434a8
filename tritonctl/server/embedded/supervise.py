# SPDX-License-Identifier: Apache-2.0
"""Runs one tritonserver in the background: starts it again when it crashes, cleans up after it.

A separate process: `python -m tritonctl.server.embedded.supervise SPEC.json`. Standard library
only, and what it imports: it lives as long as the server does.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tritonctl.errors import HostError
from tritonctl.server.becoming import STOPPING
from tritonctl.server.embedded.detached import detach, logging_failure, started
from tritonctl.server.embedded.ended import record_end, status_words
from tritonctl.server.ports import held_ports
from tritonctl.server.readiness import Readiness, is_ready
from tritonctl.server.restarts import PAUSES, WINDOW_SECONDS, Restarts
from tritonctl.server.supervisor import (
    STACK_BYTES,
    WATCH_SECONDS,
    Ending,
    clean_up,
    hold_signals,
    kill_group,
    on_signals,
    stop_looking,
)

# Until the server was seen ready: how often it is asked, and how long its answer may take. One that
# starts may take a connection and answer nothing, and no other look begins meanwhile; one that
# crashes before it was seen ready stays down.
_READY_SECONDS = 0.1


def main(specification: Path) -> int:
    """Run the server that `specification` describes until it ends for good; returns 0.

    Prints the process id under which it continues in the background.
    """
    detach()
    spec = json.loads(specification.read_text(encoding="utf-8"))
    supervised = _Supervised(spec, _readiness(spec))
    with logging_failure(Path(spec["log"])):
        supervised.run()
    return 0


def _readiness(spec: dict[str, Any]) -> Readiness | None:
    """For gateways, where the project has a port for it; bound before the server starts."""
    if (port := spec.get("readiness_port")) is None:
        return None
    readiness = Readiness(spec["ready_url"])
    try:
        readiness.listen(spec["plain_address"], port)
    except OSError as error:
        with Path(spec["log"]).open("a", encoding="utf-8") as log:
            log.write(f"tritonctl: cannot listen on port {port} (server.readiness_port): {error}\n")
        raise
    return readiness


class _Supervised:
    """A server through all its lives: a crash begins the next one, within bounds."""

    def __init__(self, spec: dict[str, Any], readiness: Readiness | None) -> None:
        self._spec = spec
        self._readiness = readiness
        self._restarts = Restarts(Path(spec["restarts_file"]))
        self._was_ready = False
        self._returncode = 0
        self._requested = False
        self._reason: str | None = None

    def run(self) -> None:
        """Until it is asked to end, ends in order, or crashes too often."""
        crash = self._live()
        while crash and self._may_start_again(crash):
            crash = self._live_again()
        record_end(
            Path(self._spec["exit_file"]),
            self._returncode,
            requested=self._requested,
            reason=self._reason,
        )

    def _live(self) -> str | None:
        """From start to end; how it crashed, None if it should stay down."""
        server = started(self._spec, stack_bytes=STACK_BYTES)
        ending = _EmbeddedEnding(server, self._spec, self._readiness, self._ready)
        on_signals(ending, _READY_SECONDS)
        try:
            self._returncode = server.wait()
        finally:
            stop_looking()
            hold_signals()  # until the next life can answer them
            kill_group(server.pid)
            clean_up(self._spec["shm_prefix"])
        self._requested, self._reason = ending.requested, ending.reason
        # A server that never was ready is for `up` to report.
        if self._requested or self._returncode == 0 or not self._was_ready:
            return None
        return self._reason or status_words(self._returncode)

    def _ready(self) -> None:
        self._was_ready = True
        if (seconds := self._restarts.ready()) is not None:
            self._report(f"every model is ready again, {seconds:.1f} s after the crash")

    def _may_start_again(self, crash: str) -> bool:
        """Whether it may, after a pause in which it can be asked to end."""
        pause = self._restarts.crashed(crash)
        crashed = f"tritonserver crashed: {crash}"
        if not self._spec["restart"]:
            return False
        if pause is None:
            self._report(
                f"{crashed}; {self._restarts.recent} crashes within {WINDOW_SECONDS / 60:.0f} "
                "minutes are too many: it stays down"
            )
            return False
        self._report(
            f"{crashed}; starting it again in {pause:.0f} s "
            f"(restart {self._restarts.recent} of {len(PAUSES)} "
            f"within {WINDOW_SECONDS / 60:.0f} minutes)"
        )
        self._requested = signal.sigtimedwait(STOPPING, pause) is not None
        return not self._requested

    def _live_again(self) -> str | None:
        """The same server at the same ports, without what a reload had not finished."""
        beside = Path(self._spec["beside"])
        shutil.rmtree(beside, ignore_errors=True)
        try:
            beside.mkdir()
            with ExitStack() as held:
                for address, ports in self._spec["ports"].items():
                    held.enter_context(held_ports(address, ports))
                return self._live()
        except HostError as error:
            return error.problem
        except OSError as error:
            return str(error)

    def _report(self, text: str) -> None:
        with Path(self._spec["log"]).open("a", encoding="utf-8") as log:
            log.write(f"tritonctl: {text}\n")


class _EmbeddedEnding(Ending):
    """Says when every model is ready, too."""

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
