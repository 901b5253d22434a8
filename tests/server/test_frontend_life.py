# SPDX-License-Identifier: Apache-2.0
"""The frontend beside an embedded server: started, killed, drained, gone; and in the foreground."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.json_page import as_documented
from tests.servers import Handle, wait_until
from tritonctl.host.process import process_start_time
from tritonctl.runtimes.server_state import EmbeddedServer, FrontendProcess, ServerFiles, read_state
from tritonctl.supervision.supervisor import child_processes, server_leftovers

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]
PROMPT = "7342 in English:"
ANSWER = " seven thousand three hundred forty-two"
WITH_FRONTEND = ("--set", "frontend.port=0", "--set", "server.restart=true")


class Answer:
    """A streamed completion that is read as it comes."""

    def __init__(self, port: int, **fields: Any) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = {"model": "int8", "prompt": PROMPT, "stream": True, "max_tokens": 40} | fields
        headers = {"content-type": "application/json"}
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200

    def events(self) -> list[str]:
        """The data of every event."""
        with closing(self._connection):
            lines = self._response.read().decode().splitlines()
        return [line.removeprefix("data: ") for line in lines if line]


def text_of(events: list[str]) -> str:
    """What the events say together; the last is the end."""
    assert events[-1] == "[DONE]"
    return "".join(json.loads(each)["choices"][0]["text"] for each in events[:-1])


def got(port: int, path: str) -> str:
    """The body of an answer with status 200."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
    assert response.status == 200, text
    return text


def frontend_of(folder: Path) -> tuple[EmbeddedServer, FrontendProcess]:
    """As recorded."""
    state = read_state(ServerFiles(folder / ".tritonctl" / "server"))
    assert isinstance(state, EmbeddedServer)
    assert state.frontend is not None
    return state, state.frontend


def test_beside_a_server(cli: Cli, life: Handle) -> None:
    """It streams, comes back after a kill, finishes its streams at the end, and is gone then."""
    root = life.project.root
    assert cli("down", cwd=root).returncode == 0
    done = cli("up", *WITH_FRONTEND, "--json", cwd=root)
    assert done.returncode == 0, done.stderr
    state, frontend = frontend_of(root)
    assert as_documented("up", done.stdout)["frontend"] == frontend.api_url
    assert text_of(Answer(frontend.port).events()) == ANSWER
    assert '{"id":"int8"' in got(frontend.port, "/v1/models")

    (process,) = child_processes(frontend.pid)
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: child_processes(frontend.pid) - {process}, "a new process")
    wait_until(lambda: _listens(frontend.port), "it answers again")
    status = json.loads(cli("status", "--json", cwd=root).stdout)
    assert status["frontend"] == {"url": frontend.api_url, "pid": frontend.pid, "ready": True}

    life.pace(0.05)
    slow = Answer(frontend.port, max_tokens=30, ignore_eos=True)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.extend(slow.events()))
    reader.start()
    assert cli("down", cwd=root).returncode == 0
    reader.join(30)
    assert text_of(received).startswith(ANSWER)
    assert json.loads(received[-2])["choices"][0]["finish_reason"] == "length"
    assert process_start_time(frontend.pid) is None
    assert server_leftovers(state.shm_prefix) == []
    assert not ServerFiles.of(life.project).frontend_config.exists()
    log = cli("logs", "frontend", cwd=root).stdout
    assert "signal 9 (SIGKILL); restarting it" in log
    assert '"outcome": "length"' in log
    assert PROMPT not in log


def test_in_the_foreground(life: Handle) -> None:
    """Over the running server; Ctrl-C ends it with 0."""
    arguments = [sys.executable, "-m", "tritonctl", "frontend", "--port", "0", "--json"]
    with subprocess.Popen(
        arguments, cwd=life.project.root, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            told = as_documented("frontend", process.stdout.readline())
            port = int(told["url"].removesuffix("/v1").rpartition(":")[2])
            wait_until(lambda: _listens(port), "it listens")
            assert text_of(Answer(port).events()) == ANSWER
            page = got(port, "/metrics")
            assert 'tritonctl_frontend_output_tokens_total{model="int8",tenant="none"} 10.0' in page
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
        assert process.wait(30) == 0
    assert json.loads(rest.splitlines()[0])["outcome"] == "stop"


def _listens(port: int) -> bool:
    try:
        return bool(got(port, "/health/live"))
    except OSError:
        return False
