# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the frontend beside an embedded server: `frontend:` in tritonctl.yaml."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.draining import PROBE
from tritonctl.host.frontend_extra import require_extra
from tritonctl.host.process import process_started
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.server.embedded import program
from tritonctl.server.embedded.program import (
    Program,
    ProgramFiles,
    is_alive,
    supervise,
    wait_until_ready,
)
from tritonctl.server.ports import held_ports
from tritonctl.server.state import EmbeddedServer, FrontendProcess, ServerFiles, write_state

_NAME = "the frontend"
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
    project: Project,
    server: EmbeddedServer,
    port: int,
    files: ServerFiles,
    progress: Progress,
    fallbacks: Sequence[str] = (),
) -> EmbeddedServer:
    """Start it for a server that is ready, and wait until it says that it is; records both.

    fallbacks: `host:port` of servers of another release, for when this one is gone. Raises
    ServerError, with the end of its log, for one that does not come up.
    """
    config = FrontendConfig.of(
        project,
        [server.grpc_url],
        tls=server.client_tls,
        port=port,
        metrics_ports={server.grpc_url: server.metrics_port},
        fallbacks=fallbacks,
    )
    config = config.model_copy(update={"repository": Path(server.repository)})
    settings = config.settings
    config.write(files.frontend_config)
    process = FrontendProcess(pid=0, process_started=0, address=settings.address, port=port)
    wanted = Program(
        name=_NAME,
        argv=[sys.executable, "-m", "tritonctl.frontend", str(files.frontend_config)],
        live_url=process.url + _LIVE,
        restart=project.server.restart,
        exit_timeout_seconds=project.server.exit_timeout_seconds,
    )
    own = _files(files)
    pid = supervise(wanted, own)
    process = replace(process, pid=pid, process_started=process_started(pid) or 0)
    server = replace(server, frontend=process)
    write_state(files, server)
    wait_until_ready(_NAME, process, lambda: _is_ready(process), own, _READY_SECONDS, progress)
    return server


def stop(process: FrontendProcess, files: ServerFiles, exit_timeout_seconds: int) -> None:
    """End it; streams under way may finish within that time."""
    program.stop(process, exit_timeout_seconds)
    files.frontend_config.unlink(missing_ok=True)


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


def _files(files: ServerFiles) -> ProgramFiles:
    return ProgramFiles(
        folder=files.folder,
        log=files.frontend_log,
        specification=files.frontend_specification,
        restarts=files.frontend_restarts,
        exit=files.frontend_exit,
    )
