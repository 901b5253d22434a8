# SPDX-License-Identifier: Apache-2.0
"""What gateways are told of a server that is to end, with a small HTTP server in Triton's place."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.host.process import process_start_time
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.supervision.readiness import Readiness

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import WaitUntil

NOBODY = "http://127.0.0.1:1/v2/health/ready"
ADDRESS = "127.0.0.1"


@pytest.fixture
def busy() -> threading.Event:
    """Whether the server has a stream under way."""
    return threading.Event()


@pytest.fixture
def triton(busy: threading.Event) -> Iterator[str]:
    """URL of a readiness that is always good; metrics beside it."""

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            if busy.is_set():
                self.wfile.write(b'tritonctl_active_streams{model="m"} 1\n')

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer((ADDRESS, 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{ADDRESS}:{server.server_port}/v2/health/ready"
        server.shutdown()


def told(port: int, address: str = ADDRESS) -> int | None:
    """The status that a gateway gets; None where nobody listens."""
    connection = http.client.HTTPConnection(address, port, timeout=30)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def test_as_triton_until_the_end(triton: str) -> None:
    """Ready while Triton is and nobody has asked the server to end."""
    readiness = Readiness(triton)
    port = readiness.listen(ADDRESS, 0)
    assert told(port) == 200
    readiness.refuse()
    assert told(port) == 503


def test_a_triton_that_does_not_answer_is_not_ready() -> None:
    """Nor is one whose models still load."""
    port = Readiness(NOBODY).listen(ADDRESS, 0)
    assert told(port) == 503


def test_over_ipv6(triton: str) -> None:
    """An address with colons."""
    try:
        port = Readiness(triton).listen("::1", 0)
    except OSError:
        pytest.skip("::1 is no address of this machine")
    assert told(port, "::1") == 200


class Clock:
    """Time that passes when the test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Stands still."""
    return Clock()


def test_without_a_gateway_nothing_is_waited_for(triton: str, clock: Clock) -> None:
    """Who has asked within the last five seconds has to see the end first."""
    readiness = Readiness(triton, clock=clock)
    assert readiness.is_noticed()
    assert readiness.answer_probe()
    assert not readiness.is_noticed()
    clock.now += 4.9
    assert not readiness.is_noticed()
    readiness.refuse()
    assert not readiness.is_noticed()
    clock.now += 0.1
    assert readiness.is_noticed()


def test_gateways_have_seen_it_after_three_seconds(triton: str, clock: Clock) -> None:
    """They go on asking; a second call of `end` does not start the three seconds again."""
    readiness = Readiness(triton, clock=clock)
    assert readiness.answer_probe()
    readiness.refuse()
    for _ in range(2):
        clock.now += 1.4
        assert not readiness.answer_probe()
        assert not readiness.is_noticed()
        readiness.refuse()
    clock.now += 0.2
    assert not readiness.answer_probe()
    assert readiness.is_noticed()


def supervise(tmp_path: Path, triton: str, port: int, script: str) -> int:
    """The process id of a supervisor whose server is a shell script."""
    specification = {
        "argv": ["/bin/sh", "-c", script],
        "environment": {"PATH": os.environ["PATH"]},
        "folder": str(tmp_path),
        "log": str(tmp_path / "log"),
        "exit_file": str(tmp_path / "exit.json"),
        "shm_prefix": "",
        "composing_models": [],
        "metrics_url": triton,
        "exit_timeout_seconds": 3600,
        "restart": False,
        "restarts_file": str(tmp_path / "restarts.json"),
        "ready_url": triton,
        "readiness_port": port,
        "plain_address": ADDRESS,
    }
    file = tmp_path / "supervisor.json"
    file.write_text(json.dumps(specification), encoding="utf-8")
    argv = [sys.executable, "-m", "tritonctl.runtimes.embedded.supervise", str(file)]
    return int(subprocess.run(argv, capture_output=True, timeout=30, check=True).stdout)


def test_a_supervised_server_goes_when_gateways_know(
    tmp_path: Path, triton: str, busy: threading.Event, wait_until: WaitUntil
) -> None:
    """SIGTERM: they are told at once, while the server still runs; then it ends, and the port."""
    busy.set()
    with reserved_ports(ADDRESS, {"port": 0}) as (port,):
        pid = supervise(tmp_path, triton, port, "echo $$ > own; mv own pid; exec sleep 600")
        wait_until(lambda: told(port) == 200)
    try:
        # The port answers before the server's first line has run.
        wait_until((tmp_path / "pid").exists)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: told(port) == 503)
        server = int((tmp_path / "pid").read_text(encoding="utf-8"))
        assert process_start_time(server) is not None
        busy.clear()
        wait_until(lambda: told(port) is None)
        wait_until((tmp_path / "exit.json").exists)
        assert process_start_time(server) is None
    finally:
        if process_start_time(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_port_that_is_taken(tmp_path: Path, triton: str, wait_until: WaitUntil) -> None:
    """Somebody was faster than the supervisor: the log tells, and no server is started."""
    with socket.create_server((ADDRESS, 0)) as held:
        port = held.getsockname()[1]
        pid = supervise(tmp_path, triton, port, f"touch {tmp_path}/started; exec sleep 600")
        wait_until(lambda: process_start_time(pid) is None)
    assert f"port {port} (server.readiness_port)" in (tmp_path / "log").read_text(encoding="utf-8")
    assert not (tmp_path / "started").exists()
