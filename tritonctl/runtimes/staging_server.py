# SPDX-License-Identifier: Apache-2.0
"""Run a release on a temporary server on free ports, without users.

The project's running server keeps its ports and state.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tritonctl.errors import ServerError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.metrics import scrape
from tritonctl.releases.manifest import SmokeTestSummary
from tritonctl.repository.publish import RenderedRepository
from tritonctl.runtimes.embedded import lifecycle as embedded
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles, read_state
from tritonctl.smoke.run import SmokePlan, smoke_server

_SMOKE_PREFIX, _STAGING_PREFIX = "trial-", "beside-"
_FREE_PORTS = {"grpc_port": 0, "http_port": 0, "metrics_port": 0, "readiness_port": None}
_LOOPBACK = {"address": "127.0.0.1", "tls": None, "tracing": None}


def skip_smoke_test(
    project: Project, rendered: RenderedRepository, progress: Progress, *, reason: str
) -> SmokeTestSummary:
    """Record that no server was tested, with the reason."""
    del project, rendered, progress
    return SmokeTestSummary(status="not run", reason=reason)


def smoke_test_release(
    project: Project, rendered: RenderedRepository, progress: Progress
) -> SmokeTestSummary:
    """Start the release, test every model, stop the server. Raises ServerError on a failure.

    Releases that need containers are skipped: their names would clash with the live containers.
    """
    if project.server.mode != "embedded":
        reason = f"server.mode is {project.server.mode}: tests only start embedded servers"
        return skip_smoke_test(project, rendered, progress, reason=reason)
    if rendered.plan.native:
        native = ", ".join(rendered.plan.native)
        return skip_smoke_test(
            project, rendered, progress, reason=f"the embedded server has no {native}"
        )
    _stop_leftovers(project)
    folder = project.state / f"{_SMOKE_PREFIX}{uuid.uuid4().hex[:8]}"
    try:
        return _smoke_test(_staging_project(project), rendered, ServerFiles(folder), progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_staging_server(
    project: Project, rendered: RenderedRepository, progress: Progress
) -> Iterator[EmbeddedServer]:
    """Serve the rendered repository until the block ends; raises as `embedded.start`.

    Servers left by killed commands are stopped first. Several commands may serve at a time.
    """
    for folder in project.state.glob(f"{_STAGING_PREFIX}*"):
        if not _is_running(folder.name.split("-")[1]):
            _stop_recorded_server(folder)
    folder = project.state / f"{_STAGING_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}"
    files = ServerFiles(folder)
    try:
        state = embedded.start(_staging_project(project), rendered, "", files, progress)
        try:
            yield state
        finally:
            embedded.stop(state, files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _staging_project(project: Project) -> Project:
    server = project.server.model_copy(update={**_FREE_PORTS, **_LOOPBACK, "restart": False})
    return project.model_copy(update={"server": server, "gateway": None, "frontend": None})


def _is_running(process: str) -> bool:
    return process.isdecimal() and Path(f"/proc/{process}").exists()


def _stop_leftovers(project: Project) -> None:
    """Stop the servers of killed commands. Only one release is published at a time."""
    for folder in project.state.glob(f"{_SMOKE_PREFIX}*"):
        _stop_recorded_server(folder)


def _stop_recorded_server(folder: Path) -> None:
    files = ServerFiles(folder)
    if isinstance(state := read_state(files), EmbeddedServer):
        embedded.stop(state, files)
    shutil.rmtree(folder, ignore_errors=True)


def _smoke_test(
    project: Project, rendered: RenderedRepository, files: ServerFiles, progress: Progress
) -> SmokeTestSummary:
    start_time = time.monotonic()
    state = embedded.start(project, rendered, "", files, progress)
    seconds = round(time.monotonic() - start_time, 1)
    try:
        plan = SmokePlan(
            state.endpoint, metrics=partial(scrape, state.metrics_url), project=project
        )
        report = smoke_server(plan, progress)
    finally:
        embedded.stop(state, files)
    if report.failures:
        first = report.failures[0]
        raise ServerError(
            f"the release fails its smoke test: {first.model}: {first.check}: {first.detail}",
            remedy="reproduce it: `tritonctl up`, then `tritonctl smoke`",
        )
    return SmokeTestSummary(
        status="passed",
        passed=report.count("pass"),
        skipped=report.count("skipped"),
        ready_seconds=seconds,
    )
