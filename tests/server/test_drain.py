# SPDX-License-Identifier: Apache-2.0
"""Servers that are asked to end: every stream that was accepted comes to its end.

20 ms a step: an answer of 400 tokens takes 8 s.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tritonctl.errors import ServerError, TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import Chunk, SamplingParameters
from tritonctl.repository.publish import render
from tritonctl.server.lifecycle import start, stop
from tritonctl.server.presence import alive
from tritonctl.server.state import Server
from tritonctl.server.supervisor import leftovers

pytestmark = [pytest.mark.server, pytest.mark.alone]

CHECKOUT = Path(__file__).resolve().parents[2]
MODEL, PROMPT = "int8", "777777 in English:"
STREAMS, TOKENS = 16, 400
ASK = SamplingParameters(max_tokens=TOKENS, end_id=-1)
SHORT = SamplingParameters(max_tokens=30, end_id=-1)
PATIENCE = 120.0
# Users who ask on and on leave no quiet moment: `down` waits its whole time.
QUICKLY = "server.exit_timeout_seconds=5"
SLOW = """

_fast_step = OpenvinoEngine.step


def _slow_step(self):
    import time
    time.sleep(0.02)
    return _fast_step(self)


OpenvinoEngine.step = _slow_step
"""


@pytest.fixture
def project(small_project: Project) -> Project:
    """The int8 speller with a slow step."""
    backends = small_project.root / "python_backends"
    shutil.copytree(CHECKOUT / "python_backends", backends)
    with (backends / "openvino_engine" / "model.py").open("a", encoding="utf-8") as file:
        file.write(SLOW)
    return small_project


@pytest.fixture
def other(project: Project, tmp_path: Path) -> Iterator[Project]:
    """The same again."""
    shutil.copytree(project.root, tmp_path / "other", ignore=shutil.ignore_patterns("other"))
    copy = load_project(tmp_path / "other")
    yield copy
    stop(copy, Silent())


class Streams:
    """Answers under way, each in a thread."""

    def __init__(self, state: Server) -> None:
        self.last: list[Chunk] = []
        self.errors: list[str] = []
        self._begun = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._run, args=(state.grpc_url,)) for _ in range(STREAMS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, url: str) -> None:
        try:
            with TritonClient(url) as client:
                stream = client.stream(MODEL, PROMPT, ASK, timeout=PATIENCE)
                chunks = [next(stream)]
                self._begun.release()
                self.last.append([*chunks, *stream][-1])
        except TritonctlError as error:
            self.errors.append(str(error))

    def wait_until_accepted(self) -> None:
        """Until each has its first token, and none its last."""
        for _ in self._threads:
            assert self._begun.acquire(timeout=PATIENCE), self.errors
        assert self.last == []

    def join(self) -> None:
        """Until all have ended in some way."""
        for thread in self._threads:
            thread.join()


def down(project: Project, state: Server) -> None:
    """`tritonctl down`."""
    assert alive(state)
    subprocess.run([sys.executable, "-m", "tritonctl", "down"], cwd=project.root, check=True)


def sigterm(project: Project, state: Server) -> None:
    """As a service manager does it."""
    assert project.root.is_dir()
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while alive(state):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("end", [down, sigterm])
def test_sixteen_streams_come_to_their_end(
    project: Project, end: Callable[[Project, Server], None]
) -> None:
    """All tokens of all streams, and nothing of the server left."""
    state, _ = start(project, render(project, Silent()), Silent())
    streams = Streams(state)
    streams.wait_until_accepted()
    end(project, state)
    streams.join()
    assert streams.errors == []
    counts = Counter((last.num_output_tokens, last.finish_reason) for last in streams.last)
    assert counts == {(TOKENS, "length"): STREAMS}
    assert leftovers(state.shm_prefix) == []
    with TritonClient(state.grpc_url) as client, pytest.raises(ServerError):
        client.generate(MODEL, PROMPT, SHORT, timeout=5)


def test_two_servers_are_restarted_one_after_the_other(project: Project, other: Project) -> None:
    """Clients that know both ask on and on: every answer whole, none lost."""
    states = [_short_waiting(one) for one in (project, other)]
    asked, over = Counter[str](), threading.Event()

    def use(first: int) -> None:
        urls = [states[first].grpc_url, states[1 - first].grpc_url]
        with TritonClient(urls[0], resume_on=urls[1:], max_resumes=8) as client:
            while not over.is_set():
                try:
                    done = client.generate(MODEL, PROMPT, SHORT, timeout=PATIENCE)
                    asked["whole" if done.num_output_tokens == 30 else "cut"] += 1
                except TritonctlError as error:
                    asked[str(error)] += 1

    users = [threading.Thread(target=use, args=(n % 2,)) for n in range(STREAMS)]
    try:
        for user in users:
            user.start()
        for one, state in zip((project, other), states, strict=True):
            restart(one, state)
            time.sleep(1)
    finally:
        over.set()
        for user in users:
            user.join()
    assert set(asked) == {"whole"}, asked
    assert asked["whole"] > STREAMS


def _short_waiting(project: Project) -> Server:
    quick = load_project(project.root, overrides=[QUICKLY])
    return start(quick, render(quick, Silent()), Silent())[0]


def restart(project: Project, state: Server) -> None:
    """As users do it, on the ports that clients know.

    In processes of their own: in this one gRPC shares the clients' connections, and their waiting
    before they try again, with whoever else asks that port.
    """
    ports = ("grpc_port", "http_port", "metrics_port")
    same = [f"--set=server.{name}={getattr(state, name)}" for name in ports]
    same.append(f"--set={QUICKLY}")
    for verb in (["down"], ["up", *same]):
        subprocess.run([sys.executable, "-m", "tritonctl", *verb], cwd=project.root, check=True)
