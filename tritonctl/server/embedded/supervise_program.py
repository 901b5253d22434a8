# SPDX-License-Identifier: Apache-2.0
"""Runs a frontend or a gateway in the background: starts it again when it crashes, lets it drain.

A separate process: `python -m tritonctl.server.embedded.supervise_program SPEC.json`. Standard
library only, and what it imports: it lives as long as the program does.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tritonctl.server.becoming import STOPPING
from tritonctl.server.embedded.detached import detach, logging_failure, started
from tritonctl.server.embedded.ended import record_end, status_words
from tritonctl.server.readiness import is_ready
from tritonctl.server.restarts import PAUSES, WINDOW_SECONDS, Restarts
from tritonctl.server.supervisor import KILL_MARGIN_SECONDS, kill_group

_LOOK_SECONDS = 0.1
_LIVE_SECONDS = 1.0


def main(specification: Path) -> int:
    """Run the program that `specification` describes until it ends for good; returns 0.

    Prints the process id under which it continues in the background.
    """
    detach()
    spec = json.loads(specification.read_text(encoding="utf-8"))
    with logging_failure(Path(spec["log"])):
        _Supervised(spec).run()
    return 0


class _Supervised:
    """A program through all its lives: a crash begins the next one, within bounds."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._restarts = Restarts(Path(spec["restarts_file"]))
        self._was_live = False
        self._requested = False

    def run(self) -> None:
        """Until it is asked to end, or crashes too often. One that never answered stays down."""
        status = self._live()
        while not self._requested and self._was_live and self._may_start_again(status):
            status = self._live()
        record_end(Path(self._spec["exit_file"]), status, requested=self._requested, reason=None)
        if not self._requested and (last := self._spec.get("gave_up")):
            started(self._spec | {"argv": last}).wait()

    def _live(self) -> int:
        """From start to end; its status. If we are killed, it is asked to end, and may drain."""
        process = started(self._spec)
        try:
            self._watch(process)
            if self._requested:
                process.terminate()
                try:
                    patience = self._spec["exit_timeout_seconds"] + KILL_MARGIN_SECONDS
                    process.wait(patience)
                except subprocess.TimeoutExpired:
                    self._report(f"{self._spec['name']} did not end in time: killing it")
        finally:
            kill_group(process.pid)
        return process.wait()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Until it ends or is to end; says when it answers first."""
        answered, began = False, time.monotonic()
        while process.poll() is None:
            if signal.sigtimedwait(STOPPING, _LOOK_SECONDS):
                self._requested = True
                return
            if not answered and self._is_live(time.monotonic() - began):
                answered = self._was_live = True
                self._restarts.ready()

    def _is_live(self, seconds: float) -> bool:
        """Whether it answers; of one without a page to ask, whether it has run for a while."""
        url = self._spec["live_url"]
        return seconds > _LIVE_SECONDS if url is None else is_ready(url, _LOOK_SECONDS)

    def _may_start_again(self, status: int) -> bool:
        """Whether it may, after a pause in which it can be asked to end."""
        crashed = f"{self._spec['name']} crashed: {status_words(status)}"
        pause = self._restarts.crashed(status_words(status))
        if not self._spec["restart"]:
            return False
        count, minutes = self._restarts.recent, WINDOW_SECONDS / 60
        if pause is None:
            self._report(f"{crashed}; {count} times within {minutes:.0f} minutes: it stays down")
            return False
        self._report(f"{crashed}; starting it again in {pause:.0f} s ({count} of {len(PAUSES)})")
        self._requested = signal.sigtimedwait(STOPPING, pause) is not None
        return not self._requested

    def _report(self, text: str) -> None:
        with Path(self._spec["log"]).open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} tritonctl: {text}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
