# SPDX-License-Identifier: Apache-2.0
"""Run a rollout's controller in the background and restart it when it dies.

A separate process: `python -m tritonctl.rollout.supervise SPEC.json`. It outlives the command that
started it. If the supervisor is killed, the controller continues. After repeated crashes the
supervisor gives up and runs a final program of the specification, which takes the users back.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tritonctl.runtimes.embedded.detached import detach, logging_failure, start_process
from tritonctl.runtimes.embedded.exit_record import status_words
from tritonctl.supervision.exec_launcher import STOP_SIGNALS
from tritonctl.supervision.restarts import Restarts

# Exit codes after which no restart is needed: done, or another controller runs.
DONE, SUPERFLUOUS = 0, 75
_LOOK_SECONDS = 0.2


def main(specification: Path) -> int:
    """Run the controller until its work is done; returns 0.

    Prints the process id under which it continues in the background.
    """
    detach()
    spec = json.loads(specification.read_text(encoding="utf-8"))
    with logging_failure(Path(spec["log"])):
        _run(spec)
    return 0


def _run(spec: dict[str, Any]) -> None:
    restarts = Restarts(Path(spec["restarts_file"]))
    while True:
        status = _run_controller(spec)
        if status in (None, DONE, SUPERFLUOUS):
            return
        pause = restarts.record_crash(status_words(status))
        if pause is None:
            _report(
                spec, f"the controller died {restarts.recent_crashes} times: users are taken back"
            )
            start_process({**spec, "argv": spec["given_up"]}, die_with_parent=False).wait()
            return
        _report(spec, f"the controller died: {status_words(status)}; again in {pause:.0f} s")
        if signal.sigtimedwait(STOP_SIGNALS, pause) is not None:
            return


def _run_controller(spec: dict[str, Any]) -> int | None:
    """Run the controller; return its exit status, None after a signal to stop."""
    controller = start_process(spec, die_with_parent=False)
    while True:
        try:
            return controller.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if signal.sigtimedwait(STOP_SIGNALS, 0):
                controller.terminate()
                controller.wait()
                return None


def _report(spec: dict[str, Any], text: str) -> None:
    with Path(spec["log"]).open("a", encoding="utf-8") as log:
        log.write(f"tritonctl: {text}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
