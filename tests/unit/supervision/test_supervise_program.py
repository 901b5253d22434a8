# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a frontend: starts it again within bounds, lets it drain, leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.host.process import process_start_time
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.supervision.restarts import read_restarts

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import WaitUntil

# Live from its first breath; SIGTERM lets it write down that it ended in order, after a while.
PROGRAM = """
import http.server, os, signal, sys, time

class Live(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
        print("asked", flush=True)
    def log_message(self, *_): pass

def drain(*_):
    time.sleep(0.2); print("drained", flush=True); os._exit(0)

signal.signal(signal.SIGTERM, drain)
print(os.getpid(), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Live).serve_forever()
"""


class Supervised:
    """A supervisor whose frontend is a small program."""

    def __init__(self, folder: Path, argv: list[str], port: int) -> None:
        self.log, self.exit = folder / "log", folder / "exit.json"
        self.restarts = folder / "restarts.json"
        specification: dict[str, Any] = {
            "name": "the frontend",
            "argv": argv,
            "folder": str(folder),
            "log": str(self.log),
            "exit_file": str(self.exit),
            "restart": True,
            "restarts_file": str(self.restarts),
            "live_url": f"http://127.0.0.1:{port}/health/live",
            "exit_timeout_seconds": 30,
        }
        file = folder / "spec.json"
        file.write_text(json.dumps(specification), encoding="utf-8")
        program = "tritonctl.runtimes.embedded.supervise_program"
        done = subprocess.run(
            [sys.executable, "-m", program, str(file)], stdout=subprocess.PIPE, check=True
        )
        self.pid = int(done.stdout)

    def children(self) -> list[int]:
        """The process ids of the frontends so far."""
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return [int(line) for line in text.splitlines() if line.isdigit()]

    def asked(self) -> int:
        """How often the frontends were asked whether they live."""
        return self.log.read_text(encoding="utf-8").splitlines().count("asked")

    def was_live(self) -> bool:
        """Whether the last one has been seen alive since the crash before it."""
        crashes = read_restarts(self.restarts)
        return not crashes or crashes[-1].ready_after is not None


Supervise = Callable[[list[str]], Supervised]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Starts one; it is ended with the test."""
    started: list[Supervised] = []
    with reserved_ports("127.0.0.1", {"port": 0}) as (port,):

        def start(argv: list[str]) -> Supervised:
            started.append(Supervised(tmp_path, [*argv, str(port)], port))
            return started[-1]

        yield start
    for each in started:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)


def test_it_starts_again_and_drains(supervise: Supervise, wait_until: WaitUntil) -> None:
    """A killed one comes back and the record says so; asked to end, it ends in its own time."""
    one = supervise([sys.executable, "-c", PROGRAM])
    wait_until(lambda: len(one.children()) == 1)
    # Killed before it was seen alive, it would be one that never came up.
    wait_until(lambda: _seen_alive(one))
    os.kill(one.children()[0], signal.SIGKILL)
    wait_until(lambda: len(one.children()) == 2 and read_restarts(one.restarts) and one.was_live())
    (crash,) = read_restarts(one.restarts)
    assert crash.how == "signal 9 (SIGKILL)"
    assert crash.ready_after is not None
    os.kill(one.pid, signal.SIGTERM)
    wait_until(lambda: process_start_time(one.pid) is None)
    assert one.log.read_text(encoding="utf-8").splitlines()[-1] == "drained"
    assert [process_start_time(pid) for pid in one.children()] == [None, None]
    record = json.loads(one.exit.read_text(encoding="utf-8"))
    assert (record["returncode"], record["requested"]) == (0, True)


def _seen_alive(one: Supervised) -> bool:
    """Whether it was asked if it lives, and is asked no more."""
    asked = one.asked()
    signal.sigtimedwait((), 0.5)
    return asked > 0 and one.asked() == asked


def test_one_that_never_came_up_stays_down(supervise: Supervise, wait_until: WaitUntil) -> None:
    """`up` reports it; its words are in the log."""
    one = supervise([sys.executable, "-c", "print('no port'); raise SystemExit(3)"])
    wait_until(one.exit.exists)
    wait_until(lambda: process_start_time(one.pid) is None)
    assert json.loads(one.exit.read_text(encoding="utf-8"))["returncode"] == 3
    assert one.log.read_text(encoding="utf-8") == "no port\n"
    assert read_restarts(one.restarts) == []


def test_it_does_not_outlive_its_supervisor(supervise: Supervise, wait_until: WaitUntil) -> None:
    """The kernel asks it to end, and it drains."""
    one = supervise([sys.executable, "-c", PROGRAM])
    wait_until(lambda: len(one.children()) == 1)
    os.kill(one.pid, signal.SIGKILL)
    wait_until(one.exit.exists)
    assert process_start_time(one.children()[0]) is None
    lines = one.log.read_text(encoding="utf-8").splitlines()
    assert "drained" in lines
    assert "the frontend was ended: its supervisor died: signal 9 (SIGKILL)" in lines[-1]
