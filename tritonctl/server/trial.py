# SPDX-License-Identifier: Apache-2.0
"""Asks a release of which nobody is a user: a server of its own, on free ports, ended afterwards.

Nothing of the project's running server is touched: neither its ports nor its state.
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
from tritonctl.releases.manifest import Smoked
from tritonctl.repository.publish import Rendered
from tritonctl.server.embedded import lifecycle as embedded
from tritonctl.server.smoke.run import Plan, smoke_server
from tritonctl.server.state import EmbeddedServer, ServerFiles, read_state

_TRIAL, _BESIDE = "trial-", "beside-"
_FREE = {"grpc_port": 0, "http_port": 0, "metrics_port": 0, "readiness_port": None}
_LOOPBACK = {"address": "127.0.0.1", "tls": None, "tracing": None}


def not_asked(project: Project, rendered: Rendered, progress: Progress, *, reason: str) -> Smoked:
    """No server was asked, and why."""
    del project, rendered, progress
    return Smoked(status="not run", reason=reason)


def smoke_release(project: Project, rendered: Rendered, progress: Progress) -> Smoked:
    """Serve the release, ask every model, end the server. Raises ServerError for a bad answer.

    What runs only in containers is not asked: they would take the names of those that serve.
    """
    if project.server.mode != "embedded":
        reason = f"server.mode is {project.server.mode}: only an embedded server is started for it"
        return not_asked(project, rendered, progress, reason=reason)
    if rendered.plan.native:
        native = ", ".join(rendered.plan.native)
        return not_asked(project, rendered, progress, reason=f"the embedded server has no {native}")
    _end_leftovers(project)
    folder = project.state / f"{_TRIAL}{uuid.uuid4().hex[:8]}"
    try:
        return _asked(_alone(project), rendered, ServerFiles(folder), progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def serving_beside(
    project: Project, rendered: Rendered, progress: Progress
) -> Iterator[EmbeddedServer]:
    """Serve what was rendered until the block ends. Raises what a server raises that fails.

    What a command has left that was killed is ended first; several commands may serve at a time.
    """
    for folder in project.state.glob(f"{_BESIDE}*"):
        if not _lives(folder.name.split("-")[1]):
            _end(folder)
    folder = project.state / f"{_BESIDE}{os.getpid()}-{uuid.uuid4().hex[:8]}"
    files = ServerFiles(folder)
    try:
        state = embedded.start(_alone(project), rendered, "", files, progress)
        try:
            yield state
        finally:
            embedded.stop(state, files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _alone(project: Project) -> Project:
    server = project.server.model_copy(update={**_FREE, **_LOOPBACK, "restart": False})
    return project.model_copy(update={"server": server, "gateway": None, "frontend": None})


def _lives(process: str) -> bool:
    return process.isdecimal() and Path(f"/proc/{process}").exists()


def _end_leftovers(project: Project) -> None:
    """End the server of a command that was killed. Only one release is published at a time."""
    for folder in project.state.glob(f"{_TRIAL}*"):
        _end(folder)


def _end(folder: Path) -> None:
    files = ServerFiles(folder)
    if isinstance(state := read_state(files), EmbeddedServer):
        embedded.stop(state, files)
    shutil.rmtree(folder, ignore_errors=True)


def _asked(project: Project, rendered: Rendered, files: ServerFiles, progress: Progress) -> Smoked:
    asked = time.monotonic()
    state = embedded.start(project, rendered, "", files, progress)
    seconds = round(time.monotonic() - asked, 1)
    try:
        plan = Plan(state.endpoint, metrics=partial(scrape, state.metrics_url), project=project)
        report = smoke_server(plan, progress)
    finally:
        embedded.stop(state, files)
    if report.failures:
        first = report.failures[0]
        raise ServerError(
            f"the release does not answer as it should: {first.model}: {first.check}: "
            f"{first.detail}",
            remedy="start it and look: `tritonctl up`, then `tritonctl smoke`",
        )
    return Smoked(
        status="passed",
        passed=report.count("pass"),
        skipped=report.count("skipped"),
        ready_seconds=seconds,
    )
