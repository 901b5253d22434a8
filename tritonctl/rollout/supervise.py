# SPDX-License-Identifier: Apache-2.0
"""Runs a rollout's controller in the background, and starts it again when it dies.

A separate process: `python -m tritonctl.rollout.supervise SPEC.json`. It outlives the command that
started it. If it is killed itself, the controller goes on. A controller that dies again and again
is given up: a last program of the specification then takes the users back.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tritonctl.server.becoming import STOPPING
from tritonctl.server.embedded.detached import detach, logging_failure, started
from tritonctl.server.embedded.ended import status_words
from tritonctl.server.restarts import Restarts

# What a controller ends with that there is no need to start again: done, or another one runs.
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
        status = _live(spec)
        if status in (None, DONE, SUPERFLUOUS):
            return
        pause = restarts.crashed(status_words(status))
        if pause is None:
            _report(spec, f"the controller died {restarts.recent} times: users are taken back")
            started({**spec, "argv": spec["given_up"]}, ends_with_us=False).wait()
            return
        _report(spec, f"the controller died: {status_words(status)}; again in {pause:.0f} s")
        if signal.sigtimedwait(STOPPING, pause) is not None:
            return


def _live(spec: dict[str, Any]) -> int | None:
    """Its status; None when we were asked to end, and it has."""
    controller = started(spec, ends_with_us=False)
    while True:
        try:
            return controller.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if signal.sigtimedwait(STOPPING, 0):
                controller.terminate()
                controller.wait()
                return None


def _report(spec: dict[str, Any], text: str) -> None:
    with Path(spec["log"]).open("a", encoding="utf-8") as log:
        log.write(f"tritonctl: {text}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
