# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the frontend beside an embedded server: `frontend:` in tritonctl.yaml."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from tritonctl.errors import ServerError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.draining import PROBE
from tritonctl.host.files import PRIVATE, write_atomically
from tritonctl.host.frontend_extra import require_extra
from tritonctl.host.process import process_started
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.server.embedded.ended import described_end
from tritonctl.server.log import keep_previous, tail
from tritonctl.server.ports import held_ports
from tritonctl.server.state import EmbeddedServer, FrontendProcess, ServerFiles, write_state
from tritonctl.server.supervisor import KILL_MARGIN_SECONDS

_POLL_SECONDS = 0.05
_READY_SECONDS = 30
_ANSWER_SECONDS = 3
_LIVE, _READY = "/health/live", "/health/ready"


@contextmanager
def held_port(project: Project) -> Iterator[int | None]:
    """The frontend's port, reserved during the context; None without a frontend.

    Raises HostError for one that is taken, or where the frontend's packages are missing.
    """
    if project.frontend is None:
        yield None
        return
    require_extra(project.frontend)
    address, port = project.frontend.address, project.frontend.port
    with held_ports(address, {"port": port}, section="frontend") as (chosen,):
        yield chosen


def start(
    project: Project, server: EmbeddedServer, port: int, files: ServerFiles, progress: Progress
) -> EmbeddedServer:
    """Start it for a server that is ready, and wait until it says that it is; records both.

    Raises ServerError, with the end of its log, for one that does not come up.
    """
    config = FrontendConfig.of(
        project,
        [server.grpc_url],
        tls=server.client_tls,
        port=port,
        metrics_ports={server.grpc_url: server.metrics_port},
    )
    config = config.model_copy(update={"repository": Path(server.repository)})
    settings = config.settings
    config.write(files.frontend_config)
    process = FrontendProcess(pid=0, process_started=0, address=settings.address, port=port)
    pid = _supervise(project, process, files)
    process = replace(process, pid=pid, process_started=process_started(pid) or 0)
    server = replace(server, frontend=process)
    write_state(files, server)
    _wait_until_ready(process, files, progress)
    return server


def stop(process: FrontendProcess, files: ServerFiles, exit_timeout_seconds: int) -> None:
    """End it; streams under way may finish within that time."""
    if is_alive(process):
        os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + exit_timeout_seconds + 2 * KILL_MARGIN_SECONDS
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if is_alive(process):
        os.kill(process.pid, signal.SIGKILL)  # the kernel then asks the frontend to end
    files.frontend_config.unlink(missing_ok=True)


def is_alive(process: FrontendProcess) -> bool:
    """Whether its supervisor still runs."""
    return process_started(process.pid) == process.process_started


def is_answering(process: FrontendProcess) -> bool:
    """Whether it says that it is ready."""
    return is_alive(process) and _is_ready(process)


def _is_ready(process: FrontendProcess) -> bool:
    """As PROBE, which sends no requests afterwards: at its end it need not wait for us."""
    connection = http.client.HTTPConnection(process.address, process.port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", _READY, headers={"User-Agent": PROBE})
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _supervise(project: Project, process: FrontendProcess, files: ServerFiles) -> int:
    """Start the supervisor, which outlives this command and its terminal; returns its pid."""
    for file in (files.frontend_exit, files.frontend_restarts):
        file.unlink(missing_ok=True)
    keep_previous(files.frontend_log)
    specification = {
        "argv": [sys.executable, "-m", "tritonctl.frontend", str(files.frontend_config)],
        "folder": str(files.folder),
        "log": str(files.frontend_log),
        "exit_file": str(files.frontend_exit),
        "restart": project.server.restart,
        "restarts_file": str(files.frontend_restarts),
        "live_url": process.url + _LIVE,
        "exit_timeout_seconds": project.server.exit_timeout_seconds,
    }
    text = json.dumps(specification, indent=2)
    write_atomically(files.frontend_specification, text, mode=PRIVATE)
    program = "tritonctl.server.embedded.supervise_frontend"
    done = subprocess.run(
        [sys.executable, "-m", program, str(files.frontend_specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def _wait_until_ready(process: FrontendProcess, files: ServerFiles, progress: Progress) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    with progress.step("Starting the frontend"):
        while is_alive(process):
            if _is_ready(process):
                return
            if time.monotonic() > deadline:
                raise _failure(f"the frontend was not ready within {_READY_SECONDS} s", files)
            time.sleep(_POLL_SECONDS)
    how = described_end(files.frontend_exit)
    raise _failure(f"the frontend ended while it started: {how}", files)


def _failure(problem: str, files: ServerFiles) -> ServerError:
    lines = tail(files.frontend_log)
    return ServerError(
        problem,
        remedy=f"read its log: {files.frontend_log}",
        details="\n".join(lines) or "(empty log)",
    )
