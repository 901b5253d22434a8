# SPDX-License-Identifier: Apache-2.0
"""A running server without a readable record is found by its processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.host.process import process_start_time
from tritonctl.protocol.restrictions import restriction_arguments
from tritonctl.runtimes.discovery import current_server, is_running
from tritonctl.runtimes.embedded import lifecycle
from tritonctl.runtimes.embedded.lost_record import find_program, find_server
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import WaitUntil

PREFIX = "tritonctl_test_lost_"
ARGUMENTS = (
    "--model-repository=/models",
    "--load-model=a",
    "--load-model=b",
    "--exit-timeout-secs=7",
    "--grpc-address=127.0.0.2",
    "--grpc-port=11",
    "--http-address=127.0.0.1",
    "--http-port=12",
    "--metrics-address=127.0.0.1",
    "--metrics-port=13",
    *restriction_arguments("se=cret"),
    "--model-repository=beside",
    "--backend-directory=backends",
    f"--backend-config=python,shm-region-prefix-name={PREFIX}",
)


@pytest.fixture
def files(tmp_path: Path) -> ServerFiles:
    """Of a project's server."""
    folder = tmp_path / "server"
    folder.mkdir()
    return ServerFiles(folder)


@pytest.fixture
def supervisor(tmp_path: Path, files: ServerFiles, wait_until: WaitUntil) -> Iterator[int]:
    """The pid of a supervisor whose tritonserver is a shell script of that name."""
    binary = tmp_path / "tritonserver"
    shutil.copy("/bin/sh", binary)
    script = tmp_path / "wait"
    script.write_text("while :; do sleep 0.1; done", encoding="utf-8")
    specification = {
        "argv": [str(binary), str(script), *ARGUMENTS],
        "environment": {"PATH": os.environ["PATH"]},
        "folder": str(tmp_path),
        "log": str(files.log),
        "exit_file": str(files.exit),
        "shm_prefix": PREFIX,
        "composing_models": [],
        "metrics_url": "http://127.0.0.1:1/metrics",
        "restart": False,
        "restarts_file": str(files.restarts),
        "ready_url": "http://127.0.0.1:1/",
        "beside": str(files.standby),
        "ports": {},
        "exit_timeout_seconds": 7,
    }
    files.specification.write_text(json.dumps(specification), encoding="utf-8")
    argv = [sys.executable, "-m", "tritonctl.runtimes.embedded.supervise", str(files.specification)]
    pid = int(subprocess.run(argv, capture_output=True, timeout=30, check=True).stdout)
    wait_until(lambda: find_server(files))
    yield pid
    if process_start_time(pid):
        os.kill(pid, signal.SIGTERM)


def test_it_is_found_and_stopped(
    supervisor: int, files: ServerFiles, wait_until: WaitUntil
) -> None:
    """Its ports, its models and its token are on its command line; no file is needed."""
    shutil.rmtree(files.folder)
    server = current_server(files)
    assert isinstance(server, EmbeddedServer)
    assert server.pid == supervisor
    assert (server.grpc_url, server.http_port, server.metrics_port) == ("127.0.0.2:11", 12, 13)
    assert server.http_address == "127.0.0.1"
    assert (server.models, server.repository) == (["a", "b"], "/models")
    assert (server.token, server.shm_prefix) == ("se=cret", PREFIX)
    assert server.exit_timeout_seconds == 7
    files.folder.mkdir()
    lifecycle.stop(server, files)
    wait_until(lambda: not is_running(server))
    assert find_server(files) is None


def test_servers_of_others_are_not_it(supervisor: int, tmp_path: Path) -> None:
    """Another project's files name another supervisor."""
    assert process_start_time(supervisor)
    assert find_server(ServerFiles(tmp_path / "other")) is None
    assert find_program(tmp_path / "server" / "supervisor.json") is None
