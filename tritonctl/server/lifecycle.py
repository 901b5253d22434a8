# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and stops the tritonserver of a project: embedded, or in containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tritonctl.compatibility.exposure import plain_address, refuse_known_holes
from tritonctl.errors import ServerError
from tritonctl.host.files import PRIVATE, exclusive, write_atomically
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.channels import ClientTls
from tritonctl.protocol.restrictions import new_token
from tritonctl.repository.publish import Rendered, compile_python
from tritonctl.repository.server_environment import SERVER_VERSION
from tritonctl.repository.standby import emptied
from tritonctl.server import supervisor
from tritonctl.server.arguments import server_arguments
from tritonctl.server.embedded import Installation, install
from tritonctl.server.health import Health, health
from tritonctl.server.log import explain_failure, keep_previous
from tritonctl.server.plain_paths import PlainPaths
from tritonctl.server.ports import choose_ports, refuse_names
from tritonctl.server.probe import probe
from tritonctl.server.security.certificate_checks import checked_tls
from tritonctl.server.security.digests import verify_repository
from tritonctl.server.state import (
    ServerFiles,
    ServerState,
    present_state,
    process_started,
    read_state,
    write_state,
)

_POLL_SECONDS = 0.1


def start(project: Project, rendered: Rendered, progress: Progress) -> tuple[ServerState, bool]:
    """Start the project's server and wait until every model is ready.

    Returns its state and whether this call started it; a server already running on the same
    settings is left alone. Raises ServerError, with Triton's own message and the end of its log,
    after removing whatever had started, and HostError for a port that is taken.
    """
    docker = project.server.mode == "docker"
    if not docker:
        _refuse_native(project, rendered)
        refuse_names(project.server.address)
    files = ServerFiles.of(project)
    with exclusive(files.lock, progress, "start or stop the server"):
        running = _running(files)
        if running:
            _same_or_refuse(running, project, rendered)
            return running, False
        tls = checked_tls(project)
        verify_repository(project, rendered.plan, progress)
        if docker:
            return _start_in_containers(project, rendered, files, progress, tls), True
        refuse_known_holes(project, SERVER_VERSION)
        installation = install(rendered.plan.backends, progress)
        compile_python(rendered.repository / name for name in _names(rendered))
        state = _launch(project, rendered, installation, files, tls)
        try:
            _wait_until_ready(project, state, files, progress)
            probe(project, state, progress)
        except BaseException:
            _end(state, files)
            raise
    return state, True


def require_machine(project: Project) -> None:
    """Raise HostError where this machine cannot serve the project, whatever is built."""
    if project.server.mode == "docker":
        from tritonctl.server.containers import lifecycle as containers

        containers.require_gpu(project)


def _start_in_containers(
    project: Project,
    rendered: Rendered,
    files: ServerFiles,
    progress: Progress,
    tls: ClientTls | None,
) -> ServerState:
    from tritonctl.server.containers import lifecycle as containers

    return containers.start(project, rendered, _settings(project), files, progress, tls)


def stop(project: Project, progress: Progress) -> ServerState | None:
    """Stop the project's server; streams under way may finish within `exit_timeout_seconds`.

    Returns the state of what was stopped or, after a crash, cleaned up; None if nothing ran.
    """
    files = ServerFiles.of(project)
    with exclusive(files.lock, progress, "start or stop the server"):
        state = read_state(files)
        if state is None:
            return None
        with progress.step("Stopping Triton"):
            _end(state, files)
    return state


def running_server(project: Project) -> ServerState:
    """The state of the running server, as it is now. Raises ServerError when there is none.

    One in containers is looked up in Docker: HostError when that does not answer.
    """
    files = ServerFiles.of(project)
    state = present_state(files)
    if state is not None:
        return state
    crashed = "; the last one ended by itself" if files.state.exists() else ""
    raise ServerError(
        f"no server is running for this project{crashed}",
        remedy="start one with `tritonctl up`" + ("; see `tritonctl logs`" if crashed else ""),
    )


@dataclass(frozen=True)
class Status:
    """One server, where it is now and how it is. `container`: Docker's word for its state."""

    state: ServerState
    health: Health
    container: str | None = None


def status(project: Project) -> list[Status]:
    """Every server of the project, replicas by number. Raises ServerError when none is running."""
    state = running_server(project)
    if state.deployment is None:
        return [Status(state, health(state))]
    from tritonctl.server.containers.presence import at, containers

    return [
        Status(server, health(server), container.status)
        for container in containers(state.deployment)
        for server in [at(state, container)]
    ]


def _refuse_native(project: Project, rendered: Rendered) -> None:
    native = rendered.plan.native
    if native:
        server = "NVIDIA's server image"
        if "tensorrtllm" in native:
            server += " with TensorRT-LLM (up to 26.07)"
        raise ServerError(
            f"the embedded server has no backend {' and no backend '.join(native)}",
            remedy=f"start {server} at {project.repository}, or remove `serving.backend`",
        )


def _running(files: ServerFiles) -> ServerState | None:
    """The server if it is alive; what a dead one left behind is removed."""
    state = read_state(files)
    running = None if state is None else state.present()
    if state is not None and running is None:
        _end(state, files)
    return running


def _same_or_refuse(state: ServerState, project: Project, rendered: Rendered) -> None:
    if rendered.changed or rendered.removed or state.settings != _settings(project):
        raise ServerError(
            "a server is already running, but on other settings or models than the project's",
            remedy="run `tritonctl down`, then `tritonctl up` again",
        )


def _settings(project: Project) -> str:
    settings = project.server.model_dump(mode="json")
    if project.server.mode == "docker":
        settings |= {"docker": project.docker.model_dump(mode="json")}
    return json.dumps(settings, sort_keys=True)


def _launch(
    project: Project,
    rendered: Rendered,
    installation: Installation,
    files: ServerFiles,
    tls: ClientTls | None,
) -> ServerState:
    server = project.server
    grpc, http, metrics, *readiness = choose_ports(server.address, server.wanted_ports)
    prefix = f"tritonctl_{uuid.uuid4().hex[:12]}_"
    token, http_address = new_token(), plain_address(project)
    paths = PlainPaths(files.paths)
    argv = [
        str(installation.binary),
        *server_arguments(
            project,
            repository=paths.of(project.repository, "repository"),
            address=server.address,
            ports=(grpc, http, metrics),
            token=token,
            plain_address=http_address,
        ),
        f"--model-repository={paths.of(emptied(files.beside), 'beside')}",
        f"--backend-directory={paths.of(installation.backends, 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
    ]
    state = ServerState(
        pid=0,
        process_started=0,
        address=server.address,
        grpc_port=grpc,
        http_port=http,
        metrics_port=metrics,
        repository=str(project.repository),
        models=sorted(_names(rendered)),
        settings=_settings(project),
        shm_prefix=prefix,
        exit_timeout_seconds=server.exit_timeout_seconds,
        plain_address=http_address,
        token=token,
        tls=tls.to_record() if tls else None,
        readiness_port=readiness[0] if readiness else None,
    )
    pid = _supervise(argv, installation, project, state, files)
    state = replace(state, pid=pid, process_started=process_started(pid) or 0)
    write_state(files, state)
    return state


def _supervise(
    argv: list[str],
    installation: Installation,
    project: Project,
    state: ServerState,
    files: ServerFiles,
) -> int:
    """Start the supervisor, which outlives this command and its terminal; returns its pid."""
    files.exit.unlink(missing_ok=True)
    keep_previous(files.log)
    specification = {
        "argv": argv,
        "environment": installation.environment,
        "folder": str(files.paths),
        "log": str(files.log),
        "exit_file": str(files.exit),
        "shm_prefix": state.shm_prefix,
        "metrics_url": state.metrics_url,
        "ready_url": f"{state.http_url}/v2/health/ready",
        "plain_address": state.http_address,
        "readiness_port": state.readiness_port,
        "composing_models": sorted(set(state.models) - set(project.models)),
        "exit_timeout_seconds": project.server.exit_timeout_seconds,
    }
    text = json.dumps(specification, indent=2)  # with the token
    write_atomically(files.specification, text, mode=PRIVATE)
    done = subprocess.run(
        [sys.executable, "-m", "tritonctl.server.supervisor", str(files.specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def _names(rendered: Rendered) -> set[str]:
    return {model.name for model in rendered.plan.models}


def _wait_until_ready(
    project: Project, state: ServerState, files: ServerFiles, progress: Progress
) -> None:
    deadline = time.monotonic() + project.server.ready_timeout_seconds
    with progress.step("Starting Triton") as step:
        for seen in _poll(state):
            if seen is None:
                raise explain_failure(files.log, "tritonserver ended while it started")
            if seen.ready:
                return
            if time.monotonic() > deadline:
                raise explain_failure(
                    files.log,
                    f"not every model was ready within {project.server.ready_timeout_seconds} s",
                )
            step.update(seen.summary())


def _poll(state: ServerState) -> Iterator[Health | None]:
    """The server's health every 0.1 s; None once its supervisor has gone."""
    while True:
        yield health(state) if state.alive() else None
        time.sleep(_POLL_SECONDS)


def _end(state: ServerState, files: ServerFiles) -> None:
    """End a server and everything it started, then forget it."""
    if state.deployment is not None:
        from tritonctl.server.containers import lifecycle as containers

        containers.stop(state, files)
        return
    if state.alive():
        os.kill(state.pid, signal.SIGTERM)
        patience = state.exit_timeout_seconds + 2 * supervisor.KILL_MARGIN_SECONDS
        deadline = time.monotonic() + patience
        while state.alive() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if state.alive():
        os.killpg(state.pid, signal.SIGKILL)
    supervisor.clean_up(state.shm_prefix)
    files.state.unlink(missing_ok=True)
