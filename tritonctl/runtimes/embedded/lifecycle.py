# SPDX-License-Identifier: Apache-2.0
"""Start, watch and stop a project's server in this environment: `server.mode: embedded`."""

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

from tritonctl.checks.checker import path_for_display
from tritonctl.errors import ServerError
from tritonctl.host.files import PRIVATE, create_private, write_atomically
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Progress
from tritonctl.project.compatibility.exposure import refuse_known_holes, unencrypted_address
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.restrictions import new_token
from tritonctl.repository.contents import CONFIG
from tritonctl.repository.plan import startup_models
from tritonctl.repository.publish import RenderedRepository, compile_python
from tritonctl.repository.server_environment import SERVER_VERSION
from tritonctl.repository.standby import prepare_repository
from tritonctl.runtimes.discovery import is_running
from tritonctl.runtimes.embedded.exit_record import exit_summary
from tritonctl.runtimes.embedded.imports import refuse_missing_imports
from tritonctl.runtimes.embedded.installation import (
    BACKEND,
    ServerInstallation,
    install_server,
)
from tritonctl.runtimes.embedded.shell_safe_paths import ShellSafePaths
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.ports import require_ipv4_address, reserved_ports
from tritonctl.runtimes.server_arguments import server_arguments
from tritonctl.runtimes.server_log import archive_log, has_lost_lock, loading_models
from tritonctl.runtimes.server_state import (
    EmbeddedServer,
    ServerFiles,
    remove_state,
    write_state,
)
from tritonctl.runtimes.startup_error import startup_error
from tritonctl.runtimes.startup_probe import probe_models
from tritonctl.supervision import supervisor
from tritonctl.supervision.new_requests import outer_ensembles

_POLL_SECONDS = 0.1


def require_servable(project: Project, rendered: RenderedRepository) -> None:
    """Raise ServerError or ConfigurationError if an embedded server cannot serve the project."""
    if native := rendered.plan.native:
        server = "NVIDIA's server image"
        if "tensorrtllm" in native:
            server += " with TensorRT-LLM (up to 26.07)"
        raise ServerError(
            f"the embedded server lacks the backend {' and the backend '.join(native)}",
            remedy=f"start {server} at {project.repository}, or remove `serving.backend`",
        )
    _refuse_missing_backends(rendered)
    require_ipv4_address(project.server.address)


def _refuse_missing_backends(rendered: RenderedRepository) -> None:
    """Raise ServerError for a handwritten model whose backend the embedded server lacks."""
    for model in rendered.plan.handwritten:
        backend = model.backend
        if backend not in (None, "ensemble", BACKEND):
            raise ServerError(
                f"{path_for_display(model.folder / CONFIG)}: {model.name} needs the backend "
                f"{backend}, and the embedded server has only the {BACKEND} backend",
                remedy="serve it in containers with NVIDIA's image (`--mode docker`), build its "
                "graph as a model of the project (`tritonctl init FILE.onnx`), or leave it out "
                "with `--models`",
            )


def start(
    project: Project,
    rendered: RenderedRepository,
    settings: str,
    files: ServerFiles,
    progress: Progress,
    tls: ClientTls | None = None,
) -> EmbeddedServer:
    """Install missing packages, start the server, wait until every model is ready and answers.

    Raises HostError for missing requirements of this machine, and ServerError, after cleaning up,
    for a server that does not start. A Triton that dies of a lost lock is started a second time.
    """
    refuse_known_holes(project, SERVER_VERSION)
    # Reserved until Triton listens on them: installing and loading take minutes, and a port
    # conflict should fail before that.
    with reserved_ports(project.server.address, project.server.configured_ports) as ports:
        installation = install_server(rendered.plan.programs, progress)
        refuse_missing_imports(rendered.plan.backends, installation)
        compile_python(rendered.repository / model for model in rendered.plan.model_names)
        launch = partial(_launch, project, rendered, installation, settings, files, tls, ports)
        try:
            return _launch_and_wait(launch, project, rendered, files, progress)
        except ServerError:
            if not has_lost_lock(files.log):
                raise
        progress.note("Triton lost an internal lock, as on a busy machine: restarting it")
        return _launch_and_wait(launch, project, rendered, files, progress)


def _launch_and_wait(
    launch: Callable[[], EmbeddedServer],
    project: Project,
    rendered: RenderedRepository,
    files: ServerFiles,
    progress: Progress,
) -> EmbeddedServer:
    server = launch()
    try:
        _wait_until_ready(project, rendered, server, files, progress)
        probe_models(project, server, progress)
    except BaseException:
        stop(server, files)
        raise
    return server


def stop(server: EmbeddedServer, files: ServerFiles) -> None:
    """Stop a server and everything it started, and remove its record; streams may finish."""
    if is_running(server):
        os.kill(server.pid, signal.SIGTERM)
        grace_seconds = server.exit_timeout_seconds + 2 * supervisor.KILL_MARGIN_SECONDS
        deadline = time.monotonic() + grace_seconds
        while is_running(server) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if is_running(server):
        os.killpg(server.pid, signal.SIGKILL)
    supervisor.kill_and_remove_shm(server.shm_prefix)
    remove_state(files)


def kill(server: EmbeddedServer, files: ServerFiles) -> None:
    """Kill a server, which breaks its streams, and remove its record."""
    if is_running(server):
        os.kill(server.pid, signal.SIGKILL)  # the supervisor first: it would restart the server
    supervisor.kill_and_remove_shm(server.shm_prefix)
    remove_state(files)


def _launch(
    project: Project,
    rendered: RenderedRepository,
    installation: ServerInstallation,
    settings: str,
    files: ServerFiles,
    tls: ClientTls | None,
    ports: Sequence[int],
) -> EmbeddedServer:
    server_settings = project.server
    grpc, http, metrics, *readiness = ports
    prefix = f"tritonctl_{uuid.uuid4().hex[:12]}_"
    token, http_address = new_token(), unencrypted_address(project)
    paths, repository = ShellSafePaths(files.paths), rendered.plan.repository_of(project)
    has_cache = rendered.plan.needs_cache
    argv = [
        str(installation.binary),
        *server_arguments(
            project,
            repository=paths.shell_safe(repository, "repository"),
            models=startup_models(project, rendered.plan),
            address=server_settings.address,
            ports=(grpc, http, metrics),
            token=token,
            plain_address=http_address,
            with_cache=has_cache,
        ),
        *(
            [f"--cache-directory={paths.shell_safe(installation.caches, 'caches')}"]
            if has_cache
            else ()
        ),
        f"--model-repository={paths.shell_safe(prepare_repository(files.standby), 'beside')}",
        f"--backend-directory={paths.shell_safe(installation.backends, 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
    ]
    server = EmbeddedServer(
        pid=0,
        process_started=0,
        address=server_settings.address,
        grpc_port=grpc,
        http_port=http,
        metrics_port=metrics,
        repository=str(repository),
        models=rendered.plan.model_names,
        settings=settings,
        shm_prefix=prefix,
        exit_timeout_seconds=server_settings.exit_timeout_seconds,
        plain_address=http_address,
        token=token,
        tls=tls.to_record() if tls else None,
        readiness_port=readiness[0] if readiness else None,
        release=rendered.plan.release_name,
    )
    pid = _supervise(argv, installation, project, server, files)
    server = replace(server, pid=pid, process_started=process_start_time(pid) or 0)
    write_state(files, server)
    return server


def _supervise(
    argv: list[str],
    installation: ServerInstallation,
    project: Project,
    server: EmbeddedServer,
    files: ServerFiles,
) -> int:
    """Start the supervisor, which outlives this command and its terminal; return its pid."""
    for file in (files.exit, files.restarts, files.frozen):
        file.unlink(missing_ok=True)
    archive_log(files.log)
    create_private(files.log)
    specification = {
        "argv": argv,
        "environment": installation.environment,
        "folder": str(files.paths),
        "log": str(files.log),
        "exit_file": str(files.exit),
        "restart": project.server.restart,
        "restarts_file": str(files.restarts),
        "frozen_file": str(files.frozen),
        "beside": str(files.standby),
        "ports": _ports(server),
        "shm_prefix": server.shm_prefix,
        "metrics_url": server.metrics_url,
        "ready_url": f"{server.http_url}/v2/health/ready",
        "plain_address": server.http_address,
        "readiness_port": server.readiness_port,
        "composing_models": supervisor.composing_models(project.repository, server.models),
        "outer_ensembles": outer_ensembles(project.repository, server.models),
        "exit_timeout_seconds": project.server.exit_timeout_seconds,
    }
    text = json.dumps(specification, indent=2)  # with the token
    write_atomically(files.specification, text, mode=PRIVATE)
    result = subprocess.run(
        [sys.executable, "-m", "tritonctl.runtimes.embedded.supervise", str(files.specification)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(result.stdout)


def _ports(server: EmbeddedServer) -> dict[str, dict[str, int]]:
    """Return the ports that a restarted server needs: address to field to port."""
    ports: dict[str, dict[str, int]] = {server.address: {"grpc_port": server.grpc_port}}
    plain = {"http_port": server.http_port, "metrics_port": server.metrics_port}
    ports.setdefault(server.http_address, {}).update(plain)
    return ports


def _wait_until_ready(
    project: Project,
    rendered: RenderedRepository,
    server: EmbeddedServer,
    files: ServerFiles,
    progress: Progress,
) -> None:
    deadline = time.monotonic() + project.server.ready_timeout_seconds
    with progress.step("Starting Triton") as step:
        while is_running(server):
            server_health = check_health(server)
            if server_health.ready:
                return
            if time.monotonic() > deadline:
                raise startup_error(
                    project,
                    rendered,
                    files.log,
                    f"some models were not ready within {project.server.ready_timeout_seconds} s",
                    loading_models(files.log),
                )
            step.update(server_health.summary())
            time.sleep(_POLL_SECONDS)
        exit_description = exit_summary(files.exit)
        raise startup_error(
            project, rendered, files.log, f"tritonserver exited during startup: {exit_description}"
        )
