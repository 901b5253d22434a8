# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and stops a project's server in this environment: `server.mode: embedded`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tritonctl.errors import ServerError
from tritonctl.host.files import PRIVATE, write_atomically
from tritonctl.host.process import process_started
from tritonctl.host.progress import Progress
from tritonctl.project.compatibility.exposure import plain_address, refuse_known_holes
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.restrictions import new_token
from tritonctl.repository.plan import startup_models
from tritonctl.repository.publish import Rendered, compile_python
from tritonctl.repository.server_environment import SERVER_VERSION
from tritonctl.repository.standby import emptied
from tritonctl.server import supervisor
from tritonctl.server.arguments import server_arguments
from tritonctl.server.embedded.ended import described_end
from tritonctl.server.embedded.imports import refuse_missing_imports
from tritonctl.server.embedded.installation import Installation, install
from tritonctl.server.embedded.plain_paths import PlainPaths
from tritonctl.server.health import health
from tritonctl.server.log import explain_failure, keep_previous, lost_lock, still_loading
from tritonctl.server.ports import held_ports, refuse_names
from tritonctl.server.presence import alive
from tritonctl.server.probe import probe
from tritonctl.server.state import EmbeddedServer, ServerFiles, write_state

_POLL_SECONDS = 0.1


def require_servable(project: Project, rendered: Rendered) -> None:
    """Raise ServerError or ConfigurationError for what an embedded server cannot serve."""
    if native := rendered.plan.native:
        server = "NVIDIA's server image"
        if "tensorrtllm" in native:
            server += " with TensorRT-LLM (up to 26.07)"
        raise ServerError(
            f"the embedded server has no backend {' and no backend '.join(native)}",
            remedy=f"start {server} at {project.repository}, or remove `serving.backend`",
        )
    refuse_names(project.server.address)


def start(
    project: Project,
    rendered: Rendered,
    settings: str,
    files: ServerFiles,
    progress: Progress,
    tls: ClientTls | None = None,
) -> EmbeddedServer:
    """Install what is missing, start the server, wait until every model is ready and answers.

    Raises HostError for what this machine lacks and ServerError for a server that does not come
    up, after removing what had started. A Triton that dies of a lock of its own is started twice.
    """
    refuse_known_holes(project, SERVER_VERSION)
    # Held until Triton listens on them: installing and loading take minutes, and nobody wants to
    # hear only then of a port that is taken.
    with held_ports(project.server.address, project.server.wanted_ports) as ports:
        installation = install(rendered.plan.programs, progress)
        refuse_missing_imports(rendered.plan.backends, installation)
        compile_python(rendered.repository / model for model in rendered.plan.served)
        launch = partial(_launch, project, rendered, installation, settings, files, tls, ports)
        try:
            return _ready(launch, project, rendered, files, progress)
        except ServerError:
            if not lost_lock(files.log):
                raise
        progress.note("Triton lost a lock of its own, as on a busy machine: starting it again")
        return _ready(launch, project, rendered, files, progress)


def _ready(
    launch: Callable[[], EmbeddedServer],
    project: Project,
    rendered: Rendered,
    files: ServerFiles,
    progress: Progress,
) -> EmbeddedServer:
    server = launch()
    try:
        _wait_until_ready(project, rendered, server, files, progress)
        probe(project, server, progress)
    except BaseException:
        stop(server, files)
        raise
    return server


def stop(server: EmbeddedServer, files: ServerFiles) -> None:
    """End a server and everything it started, then forget it; streams under way may finish."""
    if alive(server):
        os.kill(server.pid, signal.SIGTERM)
        patience = server.exit_timeout_seconds + 2 * supervisor.KILL_MARGIN_SECONDS
        deadline = time.monotonic() + patience
        while alive(server) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if alive(server):
        os.killpg(server.pid, signal.SIGKILL)
    supervisor.clean_up(server.shm_prefix)
    files.state.unlink(missing_ok=True)


def kill(server: EmbeddedServer, files: ServerFiles) -> None:
    """End a server at once, then forget it: streams under way break."""
    if alive(server):
        os.kill(server.pid, signal.SIGKILL)  # first who would start it again
    supervisor.clean_up(server.shm_prefix)
    files.state.unlink(missing_ok=True)


def _launch(
    project: Project,
    rendered: Rendered,
    installation: Installation,
    settings: str,
    files: ServerFiles,
    tls: ClientTls | None,
    ports: Sequence[int],
) -> EmbeddedServer:
    wanted = project.server
    grpc, http, metrics, *readiness = ports
    prefix = f"tritonctl_{uuid.uuid4().hex[:12]}_"
    token, http_address = new_token(), plain_address(project)
    paths, repository = PlainPaths(files.paths), rendered.plan.repository_of(project)
    caches = rendered.plan.caches
    argv = [
        str(installation.binary),
        *server_arguments(
            project,
            repository=paths.of(repository, "repository"),
            models=startup_models(project, rendered.plan),
            address=wanted.address,
            ports=(grpc, http, metrics),
            token=token,
            plain_address=http_address,
            with_cache=caches,
        ),
        *([f"--cache-directory={paths.of(installation.caches, 'caches')}"] if caches else ()),
        f"--model-repository={paths.of(emptied(files.beside), 'beside')}",
        f"--backend-directory={paths.of(installation.backends, 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
    ]
    server = EmbeddedServer(
        pid=0,
        process_started=0,
        address=wanted.address,
        grpc_port=grpc,
        http_port=http,
        metrics_port=metrics,
        repository=str(repository),
        models=rendered.plan.served,
        settings=settings,
        shm_prefix=prefix,
        exit_timeout_seconds=wanted.exit_timeout_seconds,
        plain_address=http_address,
        token=token,
        tls=tls.to_record() if tls else None,
        readiness_port=readiness[0] if readiness else None,
        release=rendered.plan.release_name,
    )
    pid = _supervise(argv, installation, project, server, files)
    server = replace(server, pid=pid, process_started=process_started(pid) or 0)
    write_state(files, server)
    return server


def _supervise(
    argv: list[str],
    installation: Installation,
    project: Project,
    server: EmbeddedServer,
    files: ServerFiles,
) -> int:
    """Start the supervisor, which outlives this command and its terminal; returns its pid."""
    for file in (files.exit, files.restarts):
        file.unlink(missing_ok=True)
    keep_previous(files.log)
    specification = {
        "argv": argv,
        "environment": installation.environment,
        "folder": str(files.paths),
        "log": str(files.log),
        "exit_file": str(files.exit),
        "restart": project.server.restart,
        "restarts_file": str(files.restarts),
        "beside": str(files.beside),
        "ports": _ports(server),
        "shm_prefix": server.shm_prefix,
        "metrics_url": server.metrics_url,
        "ready_url": f"{server.http_url}/v2/health/ready",
        "plain_address": server.http_address,
        "readiness_port": server.readiness_port,
        "composing_models": supervisor.composing_models(project.repository, server.models),
        "exit_timeout_seconds": project.server.exit_timeout_seconds,
    }
    text = json.dumps(specification, indent=2)  # with the token
    write_atomically(files.specification, text, mode=PRIVATE)
    done = subprocess.run(
        [sys.executable, "-m", "tritonctl.server.embedded.supervise", str(files.specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def _ports(server: EmbeddedServer) -> dict[str, dict[str, int]]:
    """What a restarted server needs again: by address, each port by its field."""
    ports: dict[str, dict[str, int]] = {server.address: {"grpc_port": server.grpc_port}}
    plain = {"http_port": server.http_port, "metrics_port": server.metrics_port}
    ports.setdefault(server.http_address, {}).update(plain)
    return ports


def _wait_until_ready(
    project: Project,
    rendered: Rendered,
    server: EmbeddedServer,
    files: ServerFiles,
    progress: Progress,
) -> None:
    owners = rendered.plan.owners
    deadline = time.monotonic() + project.server.ready_timeout_seconds
    with progress.step("Starting Triton") as step:
        while alive(server):
            seen = health(server)
            if seen.ready:
                return
            if time.monotonic() > deadline:
                raise explain_failure(
                    files.log,
                    f"not every model was ready within {project.server.ready_timeout_seconds} s",
                    owners,
                    still_loading(files.log),
                )
            step.update(seen.summary())
            time.sleep(_POLL_SECONDS)
        how = described_end(files.exit)
        raise explain_failure(files.log, f"tritonserver ended while it started: {how}", owners)
