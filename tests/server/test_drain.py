# SPDX-License-Identifier: Apache-2.0
"""Servers that are asked to end: every stream that was accepted comes to its end."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Handle, embedded, paced_project, set_pace, wait_until
from tritonctl.errors import ServerError, TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import Chunk, SamplingParameters
from tritonctl.repository.publish import render
from tritonctl.runtimes.lifecycle import start, stop
from tritonctl.runtimes.server_state import EmbeddedServer
from tritonctl.supervision.supervisor import server_leftovers

pytestmark = pytest.mark.server

MODEL, PROMPT = "int8", "777777 in English:"
STREAMS, TOKENS = 16, 60
ASK = SamplingParameters(max_tokens=TOKENS, end_id=-1)
SHORT = SamplingParameters(max_tokens=30, end_id=-1)
PATIENCE = 120.0
# Users who ask on and on leave no quiet moment: `down` waits its whole time.
QUICKLY = "server.exit_timeout_seconds=5"
STEP_SECONDS = 1.0  # until the server is to end; then as fast as it can


@pytest.fixture
def project(speller_project: Project, tmp_path: Path) -> Iterator[Project]:
    """The int8 speller with a slow step."""
    yield from slow(paced_project(speller_project, tmp_path / "project"))


@pytest.fixture
def other(speller_project: Project, tmp_path: Path) -> Iterator[Project]:
    """The same again."""
    yield from slow(paced_project(speller_project, tmp_path / "other"))


def slow(project: Project) -> Iterator[Project]:
    """Stopped at the end."""
    set_pace(project.root, 0.02)
    yield project
    stop(project, Silent())


class Streams:
    """Answers under way, each in a thread."""

    def __init__(self, state: EmbeddedServer) -> None:
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


def is_ending(state: EmbeddedServer) -> bool:
    """Whether gateways are told to send it nothing more."""
    assert state.readiness_port
    connection = http.client.HTTPConnection(state.address, state.readiness_port, timeout=PATIENCE)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == http.client.SERVICE_UNAVAILABLE
    finally:
        connection.close()


def test_sixteen_streams_come_to_their_end(life: Handle) -> None:
    """`down`: all tokens of all streams, and nothing of the server left."""
    life.pace(STEP_SECONDS)
    streams = Streams(life.state)
    streams.wait_until_accepted()
    command = [sys.executable, "-m", "tritonctl", "down"]
    with subprocess.Popen(command, cwd=life.project.root) as down:
        wait_until(lambda: is_ending(life.state), "the server is to end")
        life.pace(0)
        streams.join()
        assert down.wait(PATIENCE) == 0
    assert streams.errors == []
    counts = Counter((last.num_output_tokens, last.finish_reason) for last in streams.last)
    assert counts == {(TOKENS, "length"): STREAMS}
    assert server_leftovers(life.state.shm_prefix) == []
    with TritonClient(life.url) as client, pytest.raises(ServerError):
        client.generate(MODEL, PROMPT, SHORT, timeout=5)


def test_users_who_ask_without_a_pause_are_refused_in_time(project: Project) -> None:
    """They leave no quiet moment, so `down` refuses new requests: no answer is cut off."""
    state, answers = _short_waiting(project), Counter[str]()

    def use() -> None:
        with TritonClient(state.grpc_url) as client:
            while not any(word.startswith("the server no longer serves") for word in answers):
                try:
                    done = client.generate(MODEL, PROMPT, SHORT, timeout=PATIENCE)
                    answers["whole" if done.num_output_tokens == 30 else "cut"] += 1
                except TritonctlError as error:
                    answers[error.problem] += 1
                    return

    users = [threading.Thread(target=use) for _ in range(STREAMS)]
    for user in users:
        user.start()
    wait_until(lambda: answers["whole"] >= STREAMS, "each has been answered")
    began = time.monotonic()
    stop(project, Silent())
    seconds = time.monotonic() - began
    for user in users:
        user.join()
    refused = f"the server no longer serves {MODEL}: it unloads the model, or is ending"
    assert set(answers) == {"whole", refused}, answers
    assert seconds < 60  # Triton's own end included; it would be cut off after 5 s


@pytest.mark.exhaustive
@pytest.mark.alone
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


def _short_waiting(project: Project) -> EmbeddedServer:
    quick = load_project(project.root, overrides=[QUICKLY])
    return embedded(start(quick, render(quick, Silent()), Silent())[0])


def restart(project: Project, state: EmbeddedServer) -> None:
    """As users do it, on the ports that clients know.

    In processes of their own: in this one gRPC shares the clients' connections, and their waiting
    before they try again, with whoever else asks that port.
    """
    ports = ("grpc_port", "http_port", "metrics_port")
    same = [f"--set=server.{name}={getattr(state, name)}" for name in ports]
    same.append(f"--set={QUICKLY}")
    for verb in (["down"], ["up", *same]):
        subprocess.run([sys.executable, "-m", "tritonctl", *verb], cwd=project.root, check=True)
