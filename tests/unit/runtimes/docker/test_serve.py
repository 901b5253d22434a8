# SPDX-License-Identifier: Apache-2.0
"""The first process of Triton's container, with a program in the server's place."""

from __future__ import annotations

import http.server
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonctl.runtimes.docker import entrypoint
from tritonctl.runtimes.docker.entrypoint import (
    TOKEN_PLACEHOLDER,
    specification,
    with_standby,
    with_token,
)
from tritonctl.supervision.supervisor import composing_models

pytestmark = pytest.mark.timed

SERVE = Path(entrypoint.__file__)
# Ends when it is asked to, as tritonserver does; says so first.
SERVER = """
import signal, sys, time
def end(*_):
    print("ended in order", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", sys.argv[1:], flush=True)
while True:
    time.sleep(0.05)
"""


def start(*arguments: str, source: str = SERVER, token: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, str(SERVE), sys.executable, "-c", source, *arguments]
    environment = {"TRITON_TOKEN": token}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_asked_to_end_it_ends_in_order() -> None:
    """What the server prints comes out; the status is 0, as for a container that was stopped."""
    process = start("--metrics-port=1")
    assert line_of(process).startswith("ready")
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate()
    assert rest == "ended in order\n"
    assert process.returncode == 0


def test_a_server_that_dies_is_told_by_the_status() -> None:
    """Docker starts it again: 137 is a SIGKILL."""
    dies = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    process = start(source=dies)
    process.communicate()
    assert process.returncode == 137


def test_the_status_survives_a_slow_exit() -> None:
    """Python's default handlers are back while it ends: no timer may ring by then."""
    slow = "import atexit, time\natexit.register(time.sleep, 1.5)\n"  # beyond a look's time
    program = (
        f"import sys; sys.path.insert(0, {str(SERVE.parents[3])!r})\n{slow}"
        "import signal\n"
        "atexit.register(signal.signal, signal.SIGALRM, signal.SIG_DFL)\n"  # runs first
        "from tritonctl.runtimes.docker import entrypoint\n"
        "sys.exit(entrypoint.main([sys.executable, '-c', 'raise SystemExit(3)']))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 3


def test_streams_are_waited_for(busy: Busy) -> None:
    """While metrics tell of a stream the server is not asked to end; then it is."""
    process = start(f"--metrics-port={busy.port}", "--exit-timeout-secs=3600")
    line_of(process)
    process.send_signal(signal.SIGTERM)
    for _ in range(4):
        assert busy.looks.acquire(timeout=60)
    assert process.poll() is None
    busy.streams = 0
    rest, _ = process.communicate()
    assert rest == "ended in order\n"


class Busy:
    """Metrics that tell of a stream until the test says otherwise."""

    port = 0
    streams = 1

    def __init__(self) -> None:
        self.looks = threading.Semaphore(0)


@pytest.fixture
def busy() -> Iterator[Busy]:
    """Served."""
    told = Busy()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            streams = f'tritonctl_active_streams{{model="m",version="1"}} {told.streams}\n'
            self.wfile.write(streams.encode())
            told.looks.release()

        def log_message(self, *_: object) -> None:
            """Silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told.port = server.server_port
        yield told
        server.shutdown()


def test_the_token_reaches_the_command_line() -> None:
    """A random one where none is given: nobody knows it, nothing can be loaded or unloaded."""
    process = start(f"--grpc-restricted-protocol=a:k={TOKEN_PLACEHOLDER}", token="t0ken")  # noqa: S106
    assert "k=t0ken" in line_of(process)
    process.kill()
    process.communicate()
    [first], [second] = (with_token([TOKEN_PLACEHOLDER], "") for _ in range(2))
    assert len(first) >= 32
    assert first != second


def test_a_second_repository_where_a_folder_is_mounted(tmp_path: Path) -> None:
    """With plain `docker compose` a device is in its place, and Triton has one repository."""
    assert with_standby(["tritonserver"], str(tmp_path))[1:] == [f"--model-repository={tmp_path}"]
    assert with_standby(["tritonserver"], "/dev/null") == ["tritonserver"]


def test_what_is_read_off_the_command_line(tmp_path: Path) -> None:
    """Ports and times, and which models do work of their own."""
    for name, text in (("m", "ensemble_scheduling {\n}"), ("m_engine", 'backend: "python"')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text, encoding="utf-8")
    assert composing_models(tmp_path) == ["m_engine"]
    assert composing_models(tmp_path, ["m"]) == []
    arguments = [
        f"--model-repository={tmp_path}",
        "--load-model=*",
        "--metrics-port=9",
        "--exit-timeout-secs=7",
    ]
    assert specification(["tritonserver", *arguments]) == {
        "exit_timeout_seconds": 7,
        "metrics_url": "http://127.0.0.1:9/metrics",
        "composing_models": ["m_engine"],
        "outer_ensembles": ["m"],
    }
    only = ["tritonserver", f"--model-repository={tmp_path}", "--load-model=m"]
    assert specification(only)["composing_models"] == []


def test_a_server_that_does_not_answer_is_not_healthy() -> None:
    """Nobody listens on that port."""
    assert entrypoint.is_healthy(port=1) is False


def test_it_needs_nothing_but_the_standard_library() -> None:
    """In the image there is no more of tritonctl than two modules."""
    command = [sys.executable, "-I", "-S", str(SERVE), "--healthy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
