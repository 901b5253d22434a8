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

from tritonctl.errors import ServerError
from tritonctl.host.process import process_started
from tritonctl.server.ports import choose_ports
from tritonctl.server.readiness import Readiness

if TYPE_CHECKING:
    from tests.unit.conftest import WaitUntil

NOBODY = "http://127.0.0.1:1/v2/health/ready"
ADDRESS = "127.0.0.1"


@pytest.fixture
def triton() -> Iterator[str]:
    """URL of a readiness that is always good."""

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer((ADDRESS, 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{ADDRESS}:{server.server_port}/v2/health/ready"
        server.shutdown()


def free_port() -> int:
    """One that nobody has now."""
    return choose_ports(ADDRESS, {"port": 0})[0]


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
    port = free_port()
    readiness = Readiness(triton)
    readiness.listen(ADDRESS, port)
    assert told(port) == 200
    readiness.end()
    assert told(port) == 503


def test_a_triton_that_does_not_answer_is_not_ready() -> None:
    """Nor is one whose models still load."""
    port = free_port()
    Readiness(NOBODY).listen(ADDRESS, port)
    assert told(port) == 503


def test_over_ipv6(triton: str) -> None:
    """An address with colons."""
    try:
        port = choose_ports("::1", {"port": 0})[0]
    except ServerError:
        pytest.skip("::1 is no address of this machine")
    Readiness(triton).listen("::1", port)
    assert told(port, "::1") == 200


def test_without_a_gateway_nothing_is_waited_for(triton: str) -> None:
    """Who has asked within the last seconds has to see the end first."""
    readiness = Readiness(triton)
    assert readiness.is_seen()
    readiness.answer()
    assert not readiness.is_seen()
    readiness.end()
    assert not readiness.is_seen()


def test_gateways_have_seen_it_after_a_while(triton: str, wait_until: WaitUntil) -> None:
    """They go on asking, and the end goes on."""
    readiness = Readiness(triton)
    readiness.end()

    def asked_and_seen() -> bool:
        return not readiness.answer() and readiness.is_seen()

    assert not asked_and_seen()
    wait_until(asked_and_seen)


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
        "metrics_url": "http://127.0.0.1:1/metrics",
        "exit_timeout_seconds": 60,
        "ready_url": triton,
        "readiness_port": port,
        "plain_address": ADDRESS,
    }
    file = tmp_path / "supervisor.json"
    file.write_text(json.dumps(specification), encoding="utf-8")
    argv = [sys.executable, "-m", "tritonctl.server.supervisor", str(file)]
    return int(subprocess.run(argv, capture_output=True, timeout=30, check=True).stdout)


def test_a_supervised_server_goes_when_gateways_know(
    tmp_path: Path, triton: str, wait_until: WaitUntil
) -> None:
    """SIGTERM: they are told at once, while the server still runs; then it ends, and the port."""
    port = free_port()
    pid = supervise(tmp_path, triton, port, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    try:
        wait_until(lambda: told(port) == 200)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: told(port) == 503)
        server = int((tmp_path / "pid").read_text(encoding="utf-8"))
        assert process_started(server) is not None
        wait_until(lambda: told(port) is None)
        wait_until((tmp_path / "exit.json").exists)
        assert process_started(server) is None
    finally:
        if process_started(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_port_that_is_taken(tmp_path: Path, triton: str, wait_until: WaitUntil) -> None:
    """Somebody was faster than the supervisor: the log tells, and no server is started."""
    with socket.create_server((ADDRESS, 0)) as held:
        port = held.getsockname()[1]
        pid = supervise(tmp_path, triton, port, f"touch {tmp_path}/started; exec sleep 600")
        wait_until(lambda: process_started(pid) is None)
    assert f"port {port} (server.readiness_port)" in (tmp_path / "log").read_text(encoding="utf-8")
    assert not (tmp_path / "started").exists()
