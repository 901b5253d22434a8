# SPDX-License-Identifier: Apache-2.0
"""Start, watch and stop a project's server in containers: `server.mode: docker`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tritonctl.errors import CommandFailedError, HostError, ServerError
from tritonctl.gateway.files import COMPOSE_SERVICE
from tritonctl.host.containers import ContainerEngine
from tritonctl.host.files import as_host_error, create_private
from tritonctl.host.gpus import installed_gpus
from tritonctl.host.progress import Progress
from tritonctl.project.compatibility.exposure import unencrypted_address
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.restrictions import new_token
from tritonctl.releases.slots import Slot
from tritonctl.repository.publish import RenderedRepository
from tritonctl.repository.standby import prepare_repository
from tritonctl.runtimes.docker.compose import COMPOSE_FILE, deployment_name, render_compose
from tritonctl.runtimes.docker.compose_command import (
    Compose,
    container_status,
    port_error,
    refuse_name_conflict,
    require_docker,
    require_image,
)
from tritonctl.runtimes.docker.deployment_files import update_files, write_files
from tritonctl.runtimes.docker.discovery import PORTS, containers, server_in_container
from tritonctl.runtimes.docker.entrypoint import STANDBY_VARIABLE, TOKEN_VARIABLE
from tritonctl.runtimes.docker.file_permissions import (
    require_readable_models,
    require_readable_secrets,
)
from tritonctl.runtimes.docker.images import gpu_models
from tritonctl.runtimes.docker.openai_url import GATEWAY, deployment_api
from tritonctl.runtimes.docker.openai_url import SERVICE as FRONTEND
from tritonctl.runtimes.health import ServerHealth, check_health
from tritonctl.runtimes.ports import reserved_port_range, reserved_ports
from tritonctl.runtimes.server_log import archive_log, loading_models
from tritonctl.runtimes.server_state import (
    ContainerServer,
    Deployment,
    ServerFiles,
    remove_state,
    write_state,
)
from tritonctl.runtimes.startup_error import startup_error
from tritonctl.runtimes.startup_probe import probe_models
from tritonctl.security.certificate_checks import check_gateway
from tritonctl.security.digests import verify_image

FOLDER = "deploy"
_OVERRIDE = "compose.override.yaml"
_CLEAR_LINE = "\x1b[2K"  # compose prints this escape even without a terminal
_POLL_SECONDS = 0.3
_FRONTEND_SECONDS = 60
_LAST_LINES = ("--no-log-prefix", "--tail", "20")
LOOPBACK = "127.0.0.1"  # publishes several servers
_ALIVE = ("created", "running", "restarting")
_VARIABLES = {
    "grpc": "TRITON_GRPC_PORT",
    "http": "TRITON_HTTP_PORT",
    "metrics": "TRITON_METRICS_PORT",
}


def start(
    project: Project,
    rendered: RenderedRepository,
    settings: str,
    files: ServerFiles,
    progress: Progress,
    tls: ClientTls | None = None,
    slot: Slot | None = None,
) -> ContainerServer:
    """Build the image if needed, start the containers, wait until every model is ready.

    slot: of a server behind a gateway outside the containers. Raises HostError for missing
    requirements of this machine, and ServerError, after cleaning up, if the server does not start.
    """
    docker = require_docker()
    gpu = bool(gpu_models(project))
    service, profile = ("triton-gpu", "gpu") if gpu else ("triton", "cpu")
    gateway = project.gateway if slot is None else None
    optional_services = {GATEWAY: gateway, FRONTEND: project.frontend}
    profiles = (
        profile,
        *(name for name, settings_section in optional_services.items() if settings_section),
    )
    require_gpu(project)
    if slot is None:
        check_gateway(project, COMPOSE_SERVICE)
    require_readable_models(project, rendered.plan.model_names)
    require_readable_secrets(project)
    folder = deployment_folder(project, rendered, files, progress, slot)
    token = new_token()
    standby = prepare_repository(files.standby)
    # Reserved until Docker listens on them: building an image takes a while.
    with _reserved_ports(project, slot) as ports:
        variables = {**ports, TOKEN_VARIABLE: token, STANDBY_VARIABLE: str(standby)}
        compose = Compose(docker, folder, deployment_name(project, slot), profiles, variables)
        refuse_name_conflict(compose)
        with progress.step("Building or finding the image") as step:
            require_image(compose, service, rendered.plan.programs, step.update)
            if project.docker.image:
                verify_image(ContainerEngine("docker", docker, ""), project.docker.image)
        archive_log(files.log)
        try:
            state = _launch(compose, project, rendered, service, settings, progress)
            state = replace(state, token=token, tls=tls.to_record() if tls else None)
            write_state(files, state)
            _wait_until_ready(project, rendered, state, files, progress)
            probe_models(project, state, progress)
            _wait_for_frontend(project, state.deployment, progress)
        except BaseException:
            _remove(compose, service, files)
            raise
    return state


def stop(state: ContainerServer, files: ServerFiles) -> None:
    """Stop the containers; open streams may finish. The log stays."""
    compose = running_compose(state.deployment)
    _remove(compose, state.deployment.service, files)


def kill(state: ContainerServer, files: ServerFiles) -> None:
    """Kill the servers, which breaks their streams; then stop the rest as `stop` does."""
    service = state.deployment.service
    running_compose(state.deployment).run("kill", service, remedy=f"run `docker kill {service}`")
    stop(state, files)


def print_log(
    deployment: Deployment,
    lines: int,
    *,
    follow: bool,
    write: Callable[[str], None],
    frontend: bool = False,
) -> None:
    """Write the last lines of the servers' or frontend's log; `follow`: then the new ones."""
    arguments = ["logs", "--no-log-prefix", "--tail", str(lines)]
    arguments += ["--follow"] if follow else []
    running_compose(deployment).run(
        *arguments,
        FRONTEND if frontend else deployment.service,
        on_line=lambda line: write(_without_escape(line)),
        remedy=f"see `docker logs {deployment.container[:12]}`",
    )


def running_compose(deployment: Deployment) -> Compose:
    """Return Docker Compose for a started deployment. Raises HostError."""
    docker = require_docker(deployment.variables)
    profiles = tuple(deployment.profiles)
    folder = Path(deployment.folder)
    return Compose(docker, folder, deployment.name, profiles, deployment.variables)


def require_gpu(project: Project) -> None:
    """Raise HostError if models need a GPU and this machine has none."""
    names = gpu_models(project)
    if not names:
        return
    gpus, problem = installed_gpus()
    if not gpus:
        raise HostError(
            f"models of the project need an NVIDIA GPU, and this machine has none "
            f"({', '.join(names)}): {problem}",
            remedy="run it on a machine with a GPU, choose a profile with engines for a CPU "
            "(`--env`), or serve the other models (`--models`)",
        )


@contextmanager
def _reserved_ports(project: Project, slot: Slot | None) -> Iterator[dict[str, str]]:
    """Reserve the ports to publish, as variables of compose.yaml; 0 becomes a free port.

    With a slot, the gateway also needs the frontend's port, and several servers share ranges of
    exactly their number, so that a restarted server gets its port back.
    """
    server, replicas = project.server, project.docker.replicas
    if replicas > 1 and slot is None:
        yield {}  # Docker chooses
        return
    requested = {f"{name}_port": int(getattr(server, f"{name}_port")) for name in PORTS}
    with ExitStack() as reservations:
        if replicas > 1:
            port_range = reservations.enter_context(
                reserved_port_range(LOOPBACK, replicas * len(PORTS))
            )
            firsts = port_range[::replicas]
            ports = [f"{first}-{first + replicas - 1}" for first in firsts]
        else:
            ports = [
                str(port)
                for port in reservations.enter_context(reserved_ports(server.address, requested))
            ]
        variables = {_VARIABLES[name]: port for name, port in zip(PORTS, ports, strict=True)}
        if slot is not None and project.frontend is not None:
            frontend_port = reserved_ports(
                project.frontend.address, {"port": project.frontend.port}, FRONTEND
            )
            [port] = reservations.enter_context(frontend_port)
            variables["FRONTEND_PORT"] = str(port)
        yield variables


def deployment_folder(
    project: Project,
    rendered: RenderedRepository,
    files: ServerFiles,
    progress: Progress,
    slot: Slot | None = None,
) -> Path:
    """Update the user's deployment folder, or render a private one; return the folder.

    With a slot, or without a user's folder, the rendering is private and includes the user's
    overrides. Raises ConfigurationError rather than overwrite files that the user edited.
    """
    user_folder = project.root / FOLDER
    if slot is not None or not (user_folder / COMPOSE_FILE).is_file():
        folder = files.folder / FOLDER
        texts = dict(render_compose(project, rendered.plan, folder, slot).files)
        with suppress(FileNotFoundError):
            texts[_OVERRIDE] = (user_folder / _OVERRIDE).read_text(encoding="utf-8")
        write_files(texts, folder, force=True)
        return folder
    rendering = render_compose(project, rendered.plan, user_folder).files
    result = update_files(rendering, user_folder)
    if changed := [*result.written, *result.removed]:
        progress.note(f"{user_folder} was outdated and was rendered again: {', '.join(changed)}")
    return user_folder


def _launch(
    compose: Compose,
    project: Project,
    rendered: RenderedRepository,
    service: str,
    settings: str,
    progress: Progress,
) -> ContainerServer:
    with progress.step("Starting containers") as step:
        try:
            compose.run("up", "--detach", on_line=step.update, remedy="read the lines above")
        except CommandFailedError as error:
            raise port_error(error) or error from error
    deployment = Deployment(
        container="",
        folder=str(compose.folder),
        name=compose.name,
        service=service,
        profiles=list(compose.profiles),
        docker_host=os.environ.get("DOCKER_HOST", ""),
    )
    state = ContainerServer(
        pid=0,
        address=project.server.address,
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        repository=str(rendered.plan.repository_of(project)),
        models=rendered.plan.model_names,
        settings=settings,
        exit_timeout_seconds=project.server.exit_timeout_seconds,
        plain_address=unencrypted_address(project),
        deployment=deployment,
        release=rendered.plan.release_name,
    )
    return server_in_container(state, containers(deployment)[0])


def _wait_until_ready(
    project: Project,
    rendered: RenderedRepository,
    state: ContainerServer,
    files: ServerFiles,
    progress: Progress,
) -> None:
    """Wait until every model of every server is ready. Raises ServerError."""
    deployment = state.deployment
    servers = [server_in_container(state, container) for container in containers(deployment)]
    limit = project.server.ready_timeout_seconds
    deadline = time.monotonic() + limit
    with progress.step("Starting Triton") as step:
        for problem in _watch_containers(servers):
            slowest = min(
                (check_health(server) for server in servers), key=ServerHealth.count_ready
            )
            if slowest.ready:
                return
            is_late = time.monotonic() > deadline
            if problem or is_late:
                _save_log(running_compose(deployment), deployment.service, files)
                problem_text = problem or f"some models were not ready within {limit} s"
                loading = [] if problem else loading_models(files.log)
                raise startup_error(project, rendered, files.log, problem_text, loading)
            step.update(slowest.summary())


def _wait_for_frontend(project: Project, deployment: Deployment, progress: Progress) -> None:
    """Wait until the OpenAI API answers, if there is one. Raises ServerError."""
    if deployment_api(project, deployment) is None:
        return
    deadline = time.monotonic() + _FRONTEND_SECONDS
    with progress.step("Starting the frontend"):
        while (api := deployment_api(project, deployment)) is not None and not api.ready:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the frontend's container was not ready within {_FRONTEND_SECONDS} s",
                    remedy="read the last lines of its log above",
                    details=running_compose(deployment).output_of("logs", *_LAST_LINES, FRONTEND),
                )
            time.sleep(_POLL_SECONDS)


def _watch_containers(servers: Sequence[ContainerServer]) -> Iterator[str]:
    """Yield, every 0.3 s, why a container exited; "" while all run."""
    while True:
        for deployment in (server.deployment for server in servers):
            status = container_status("docker", deployment.container, deployment.variables)
            if not status or status["Status"] not in _ALIVE or status["RestartCount"]:
                yield exit_problem(status)
        yield ""
        time.sleep(_POLL_SECONDS)


def exit_problem(status: Mapping[str, object]) -> str:
    """Describe why a container exited or restarted during startup."""
    if status.get("OOMKilled"):
        return "the container ran out of memory (docker.memory)"
    # Docker forgets the exit code of a restarted container.
    code = status.get("ExitCode")
    return "tritonserver exited during startup" + (f" with status {code}" if code else "")


def _save_log(compose: Compose, service: str, files: ServerFiles) -> None:
    """Save the servers' output, which `tritonctl logs` shows after they are removed."""
    create_private(files.log)
    with as_host_error(files.log), files.log.open("w", encoding="utf-8") as log:
        compose.run(
            "logs",
            "--no-log-prefix",
            service,
            on_line=lambda line: log.write(f"{_without_escape(line)}\n"),
            remedy="see `docker logs`",
        )


def _without_escape(line: str) -> str:
    return line.removeprefix(_CLEAR_LINE)


def _remove(compose: Compose, service: str, files: ServerFiles) -> None:
    """Stop the servers first, while the gateway carries their last streams; then remove all."""
    remedy = f"run `docker compose -p {compose.name} down`"
    compose.run("stop", service, remedy=remedy)
    _save_log(compose, service, files)
    compose.run("down", "--remove-orphans", remedy=remedy)
    remove_state(files)
