# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and stops the embedded tritonserver of a project."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tritonctl.errors import ServerError
from tritonctl.host import exclusive, write_atomically
from tritonctl.progress import Progress
from tritonctl.project import Project
from tritonctl.triton import supervisor
from tritonctl.triton.embedded import Installation, install
from tritonctl.triton.health import Health, health
from tritonctl.triton.ports import choose_ports
from tritonctl.triton.probe import probe
from tritonctl.triton.repository import Rendered
from tritonctl.triton.server_log import explain_failure
from tritonctl.triton.server_state import (
    ServerFiles,
    ServerState,
    process_started,
    read_state,
    write_state,
)

_POLL_SECONDS = 0.1


def start(project: Project, rendered: Rendered, progress: Progress) -> tuple[ServerState, bool]:
    """Start the project's server and wait until every model is ready.

    Returns its state and whether this call started it; a server already running on the same
    settings is left alone. Raises ServerError, with Triton's own message and the end of its log,
    after removing whatever had started.
    """
    _refuse_docker(project)
    _refuse_native(project, rendered)
    files = ServerFiles.of(project)
    with exclusive(files.lock, progress, "start or stop the server"):
        running = _running(files)
        if running:
            _same_or_refuse(running, project, rendered)
            return running, False
        installation = install(rendered.plan.backends, progress)
        state = _launch(project, rendered, installation, files)
        try:
            _wait_until_ready(project, state, files, progress)
            probe(project, state, progress)
        except BaseException:
            _end(state, files)
            raise
    return state, True


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
    """The state of the running server. Raises ServerError when there is none."""
    files = ServerFiles.of(project)
    state = read_state(files)
    if state is not None and state.alive():
        return state
    crashed = "; the last one ended by itself" if state is not None else ""
    raise ServerError(
        f"no server is running for this project{crashed}",
        remedy="start one with `tritonctl up`" + ("; see `tritonctl logs`" if crashed else ""),
    )


def status(project: Project) -> tuple[ServerState, Health]:
    """The running server's state and health. Raises ServerError when none is running."""
    state = running_server(project)
    return state, health(state)


def _refuse_docker(project: Project) -> None:
    if project.server.mode == "docker":
        raise ServerError(
            "server.mode docker cannot be started by this version of tritonctl",
            remedy="use `--set server.mode=embedded`, or point your own Triton container at "
            f"{project.repository}",
        )


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
    if state is None or state.alive():
        return state
    _end(state, files)
    return None


def _same_or_refuse(state: ServerState, project: Project, rendered: Rendered) -> None:
    if rendered.changed or rendered.removed or state.settings != _settings(project):
        raise ServerError(
            "a server is already running, but on other settings or models than the project's",
            remedy="run `tritonctl down`, then `tritonctl up` again",
        )


def _settings(project: Project) -> str:
    return json.dumps(project.server.model_dump(mode="json"), sort_keys=True)


def _launch(
    project: Project, rendered: Rendered, installation: Installation, files: ServerFiles
) -> ServerState:
    server = project.server
    grpc, http, metrics = choose_ports(
        server.address,
        {
            "grpc_port": server.grpc_port,
            "http_port": server.http_port,
            "metrics_port": server.metrics_port,
        },
    )
    prefix = f"tritonctl_{uuid.uuid4().hex[:12]}_"
    argv = _arguments(project, installation, (grpc, http, metrics), prefix)
    pid = _supervise(argv, installation, project, rendered, files, prefix, metrics)
    state = ServerState(
        pid=pid,
        process_started=process_started(pid) or 0,
        address=server.address,
        grpc_port=grpc,
        http_port=http,
        metrics_port=metrics,
        repository=str(project.repository),
        models=sorted(_names(rendered)),
        settings=_settings(project),
        shm_prefix=prefix,
        exit_timeout_seconds=server.exit_timeout_seconds,
    )
    write_state(files, state)
    return state


def _arguments(
    project: Project, installation: Installation, ports: tuple[int, int, int], prefix: str
) -> list[str]:
    server = project.server
    grpc, http, metrics = ports
    return [
        str(installation.binary),
        f"--model-repository={project.repository}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--disable-auto-complete-config",  # what was rendered is what runs
        "--exit-on-error=true",
        f"--exit-timeout-secs={server.exit_timeout_seconds}",
        f"--backend-directory={installation.backends}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        f"--grpc-address={server.address}",
        f"--grpc-port={grpc}",
        f"--http-address={server.address}",
        f"--http-port={http}",
        f"--metrics-address={server.address}",
        f"--metrics-port={metrics}",
        "--allow-gpu-metrics=false",
    ]


def _supervise(
    argv: list[str],
    installation: Installation,
    project: Project,
    rendered: Rendered,
    files: ServerFiles,
    prefix: str,
    metrics_port: int,
) -> int:
    """Start the supervisor, which outlives this command and its terminal; returns its pid."""
    files.exit.unlink(missing_ok=True)
    _keep_previous(files.log)
    specification = {
        "argv": argv,
        "environment": installation.environment,
        "log": str(files.log),
        "exit_file": str(files.exit),
        "shm_prefix": prefix,
        "metrics_url": f"http://{project.server.address}:{metrics_port}/metrics",
        "composing_models": sorted(_names(rendered) - set(project.models)),
        "exit_timeout_seconds": project.server.exit_timeout_seconds,
    }
    write_atomically(files.specification, json.dumps(specification, indent=2))
    done = subprocess.run(
        [sys.executable, "-m", "tritonctl.triton.supervisor", str(files.specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def _names(rendered: Rendered) -> set[str]:
    return {model.name for model in rendered.plan.models}


def _keep_previous(log: Path) -> None:
    if log.exists():
        os.replace(log, log.with_suffix(".previous.log"))


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
