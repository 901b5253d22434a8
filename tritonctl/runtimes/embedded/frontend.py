# SPDX-License-Identifier: Apache-2.0
"""Start and stop the frontend of an embedded server: `frontend:` in tritonctl.yaml."""

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
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.runtimes.embedded import program
from tritonctl.runtimes.embedded.program import (
    ProgramFiles,
    SupervisedProgram,
    is_alive,
    supervise,
    wait_until_ready,
)
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.runtimes.server_state import (
    EmbeddedServer,
    FrontendProcess,
    ServerFiles,
    write_state,
)

_NAME = "the frontend"
_READY_SECONDS = 30
_TIMEOUT_SECONDS = 3
_LIVE, _READY = "/health/live", "/health/ready"


@contextmanager
def reserved_port(project: Project) -> Iterator[int | None]:
    """Reserve the frontend's port during the context; None without a frontend.

    Raises HostError for a port in use or missing frontend packages.
    """
    if project.frontend is None:
        yield None
        return
    require_extra(project.frontend)
    address, port = project.frontend.address, project.frontend.port
    with reserved_ports(address, {"port": port}, section="frontend") as (chosen,):
        yield chosen


def start(
    project: Project,
    server: EmbeddedServer,
    port: int,
    files: ServerFiles,
    progress: Progress,
    fallbacks: Sequence[str] = (),
) -> EmbeddedServer:
    """Start the frontend of a ready server, record it, and wait until it is ready.

    fallbacks: `host:port` of another release's servers, used once this server is gone. Raises
    ServerError with the end of the log if the frontend does not start.
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
    frontend_program = SupervisedProgram(
        name=_NAME,
        argv=[sys.executable, "-m", "tritonctl.frontend", str(files.frontend_config)],
        live_url=process.url + _LIVE,
        restart=project.server.restart,
        exit_timeout_seconds=project.server.exit_timeout_seconds,
    )
    program_files = _program_files(files)
    pid = supervise(frontend_program, program_files)
    process = replace(process, pid=pid, process_started=process_start_time(pid) or 0)
    server = replace(server, frontend=process)
    write_state(files, server)
    wait_until_ready(
        _NAME, process, lambda: _is_ready(process), program_files, _READY_SECONDS, progress
    )
    return server


def stop(process: FrontendProcess, files: ServerFiles, exit_timeout_seconds: int) -> None:
    """Stop the frontend; open streams may finish within the timeout."""
    program.stop(process, exit_timeout_seconds)
    files.frontend_config.unlink(missing_ok=True)


def is_answering(process: FrontendProcess) -> bool:
    """Whether the frontend is alive and reports ready."""
    return is_alive(process) and _is_ready(process)


def _is_ready(process: FrontendProcess) -> bool:
    """Probe as user agent PROBE, for which a draining frontend does not wait."""
    connection = http.client.HTTPConnection(process.address, process.port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", _READY, headers={"User-Agent": PROBE})
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _program_files(files: ServerFiles) -> ProgramFiles:
    return ProgramFiles(
        folder=files.folder,
        log=files.frontend_log,
        specification=files.frontend_specification,
        restarts=files.frontend_restarts,
        exit=files.frontend_exit,
    )
