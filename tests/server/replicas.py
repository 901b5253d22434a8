# SPDX-License-Identifier: Apache-2.0
"""Two servers of one model for tests of what stands before them: started, killed, frozen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.server.test_lifecycle import server_pid
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.repository.publish import render
from tritonctl.server.lifecycle import start, stop
from tritonctl.server.presence import alive
from tritonctl.server.supervisor import clean_up

CHECKOUT = Path(__file__).resolve().parents[2]
MODEL = "int8"
PATIENCE_SECONDS = 120.0
# An engine that takes its time, so that a test can act amid the answers.
SLOW = """

_whole_step = OpenvinoEngine.step


def _slow_step(self):
    import time
    time.sleep({seconds})
    return _whole_step(self)


OpenvinoEngine.step = _slow_step
"""


class Replica:
    """An embedded server of the int8 speller with a project folder of its own."""

    def __init__(
        self, built: Project, root: Path, step_seconds: float = 0.0, **server: Any
    ) -> None:
        record = json.loads((built.root / "tritonctl.yaml").read_text())
        record["models"] = {MODEL: record["models"][MODEL]}
        record["server"] |= server
        root.mkdir(parents=True)
        (root / "tritonctl.yaml").write_text(json.dumps(record))
        shutil.copytree(built.state / "engines" / MODEL, root / ".tritonctl" / "engines" / MODEL)
        if step_seconds:
            shutil.copytree(CHECKOUT / "python_backends", root / "python_backends")
            with (root / "python_backends" / "openvino_engine" / "model.py").open("a") as file:
                file.write(SLOW.format(seconds=step_seconds))
        self.project = load_project(root)
        self.state, _ = start(self.project, render(self.project, Silent()), Silent())
        self.spent = False  # something was done to it that it may not survive, sooner or later

    def start_again(self) -> None:
        """At the addresses it had."""
        ports = [
            f"server.grpc_port={self.state.grpc_port}",
            f"server.http_port={self.state.http_port}",
            f"server.readiness_port={json.dumps(self.state.readiness_port)}",
        ]
        self.project = load_project(self.project.root, overrides=ports)
        self.state, _ = start(self.project, render(self.project, Silent()), Silent())
        self.spent = False

    def revive(self) -> None:
        """Start again, unless it is as it was started."""
        if self.spent or not alive(self.state):
            clean_up(self.state.shm_prefix)
            self.wait_until_gone()
            self.start_again()

    @property
    def url(self) -> str:
        """Its gRPC endpoint."""
        return self.state.grpc_url

    def kill(self) -> None:
        """SIGKILL to tritonserver and its stubs; the supervisor tidies up."""
        self.spent = True
        os.killpg(server_pid(self.state), signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM to its supervisor: its streams end, then it does."""
        self.spent = True
        os.kill(self.state.pid, signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP to tritonserver and its stubs: sockets stay open, nobody answers."""
        self.spent = True
        os.killpg(server_pid(self.state), signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.killpg(server_pid(self.state), signal.SIGCONT)

    def wait_until_gone(self) -> None:
        """Until its supervisor has tidied up."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while alive(self.state):
            assert time.monotonic() < deadline, "the supervisor never noticed"
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """tritonserver and its stubs."""
        group = os.getpgid(server_pid(self.state))
        pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if _group(pid) == group]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


@contextmanager
def replicas(
    built: Project, root: Path, step_seconds: float = 0.0, **server: Any
) -> Iterator[list[Replica]]:
    """Two of them, stopped at the end."""
    started: list[Replica] = []
    try:
        started.append(Replica(built, root / "first", step_seconds, **server))
        started.append(Replica(built, root / "second", step_seconds, **server))
        yield started
    finally:
        for replica in started:
            stop(replica.project, Silent())


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Fail, saying what did not happen, unless the condition holds within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)
