# SPDX-License-Identifier: Apache-2.0
"""Asks a release before it is published: a server of its own, on free ports, ended afterwards.

Nothing of the project's running server is touched: neither its ports nor its state.
"""

from __future__ import annotations

import shutil
import time
import uuid

from tritonctl.errors import ServerError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.manifest import Smoked
from tritonctl.repository.publish import Rendered
from tritonctl.server.embedded import lifecycle as embedded
from tritonctl.server.smoke.run import Plan, smoke_server
from tritonctl.server.state import EmbeddedServer, ServerFiles, read_state

_TRIAL = "trial-"
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
    server = project.server.model_copy(update={**_FREE, **_LOOPBACK, "restart": False})
    alone = project.model_copy(update={"server": server, "gateway": None, "frontend": None})
    try:
        return _asked(alone, rendered, ServerFiles(folder), progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_leftovers(project: Project) -> None:
    """End the server of a command that was killed. Only one release is published at a time."""
    for folder in project.state.glob(f"{_TRIAL}*"):
        files = ServerFiles(folder)
        if isinstance(state := read_state(files), EmbeddedServer):
            embedded.stop(state, files)
        shutil.rmtree(folder, ignore_errors=True)


def _asked(project: Project, rendered: Rendered, files: ServerFiles, progress: Progress) -> Smoked:
    asked = time.monotonic()
    state = embedded.start(project, rendered, "", files, progress)
    seconds = round(time.monotonic() - asked, 1)
    try:
        plan = Plan(state.endpoint, metrics_url=state.metrics_url, project=project)
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
