# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and stops a project's server in containers: `server.mode: docker`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tritonctl.errors import CommandFailedError, HostError, ServerError
from tritonctl.host.containers import ContainerEngine
from tritonctl.host.files import explained
from tritonctl.host.gpus import installed_gpus
from tritonctl.host.progress import Progress
from tritonctl.project.compatibility.exposure import plain_address
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.restrictions import new_token
from tritonctl.repository.publish import Rendered
from tritonctl.repository.standby import emptied
from tritonctl.server.containers.api import GATEWAY, api_of
from tritonctl.server.containers.api import SERVICE as FRONTEND
from tritonctl.server.containers.compose import COMPOSE_FILE, deployment_name, render_compose
from tritonctl.server.containers.compose_command import (
    Compose,
    container_status,
    port_error,
    refuse_other_owner,
    require_docker,
    require_image,
)
from tritonctl.server.containers.entrypoint import BESIDE_VARIABLE, TOKEN_VARIABLE
from tritonctl.server.containers.images import gpu_models
from tritonctl.server.containers.presence import PORTS, at, containers
from tritonctl.server.containers.publishing import bring_up_to_date, publish
from tritonctl.server.containers.readability import (
    require_readable_models,
    require_readable_secrets,
)
from tritonctl.server.gateway.files import COMPOSE_SERVICE
from tritonctl.server.health import Health, health
from tritonctl.server.log import explain_failure, keep_previous, still_loading
from tritonctl.server.ports import held_ports, held_range
from tritonctl.server.probe import probe
from tritonctl.server.security.certificate_checks import check_gateway
from tritonctl.server.security.digests import verify_image
from tritonctl.server.slots import Slot
from tritonctl.server.state import ContainerServer, Deployment, ServerFiles, write_state

FOLDER = "deploy"
_OVERRIDE = "compose.override.yaml"
_CLEAR_LINE = "\x1b[2K"  # compose prints it even without a terminal
_POLL_SECONDS = 0.3
_FRONTEND_SECONDS = 60
_LAST_LINES = ("--no-log-prefix", "--tail", "20")
LOOPBACK = "127.0.0.1"  # where several servers are published
_ALIVE = ("created", "running", "restarting")
_VARIABLES = {
    "grpc": "TRITON_GRPC_PORT",
    "http": "TRITON_HTTP_PORT",
    "metrics": "TRITON_METRICS_PORT",
}


def start(
    project: Project,
    rendered: Rendered,
    settings: str,
    files: ServerFiles,
    progress: Progress,
    tls: ClientTls | None = None,
    slot: Slot | None = None,
) -> ContainerServer:
    """Build what has to be built, start the containers, wait until every model is ready.

    slot: of a group behind a gateway that runs beside the containers. Raises HostError for what
    this machine lacks and ServerError for a server that does not come up, after removing what had
    started.
    """
    docker = require_docker()
    gpu = bool(gpu_models(project))
    service, served = ("triton-gpu", "gpu") if gpu else ("triton", "cpu")
    inside = project.gateway if slot is None else None
    more = {GATEWAY: inside, FRONTEND: project.frontend}
    profiles = (served, *(name for name, wanted in more.items() if wanted))
    require_gpu(project)
    if slot is None:
        check_gateway(project, COMPOSE_SERVICE)
    require_readable_models(project, rendered.plan.served)
    require_readable_secrets(project)
    folder = deployment_folder(project, rendered, files, progress, slot)
    token = new_token()
    beside = emptied(files.beside)
    # Held until Docker listens on them: building an image takes a while.
    with _held_ports(project, slot) as ports:
        variables = {**ports, TOKEN_VARIABLE: token, BESIDE_VARIABLE: str(beside)}
        compose = Compose(docker, folder, deployment_name(project, slot), profiles, variables)
        refuse_other_owner(compose)
        with progress.step("Building or finding the image") as step:
            require_image(compose, service, rendered.plan.programs, step.update)
            if project.docker.image:
                verify_image(ContainerEngine("docker", docker, ""), project.docker.image)
        keep_previous(files.log)
        try:
            state = _launch(compose, project, rendered, service, settings, progress)
            state = replace(state, token=token, tls=tls.to_record() if tls else None)
            write_state(files, state)
            _wait_until_ready(project, rendered, state, files, progress)
            probe(project, state, progress)
            _wait_for_frontend(project, state.deployment, progress)
        except BaseException:
            _remove(compose, service, files)
            raise
    return state


def stop(state: ContainerServer, files: ServerFiles) -> None:
    """Stop the containers; streams under way may finish. Its log stays."""
    compose = compose_of(state.deployment)
    _remove(compose, state.deployment.service, files)


def kill(state: ContainerServer, files: ServerFiles) -> None:
    """Stop the servers at once, so that what they stream breaks; then the rest, as `stop` does."""
    service = state.deployment.service
    compose_of(state.deployment).run("kill", service, remedy=f"by hand: `docker kill {service}`")
    stop(state, files)


def print_log(
    deployment: Deployment,
    lines: int,
    *,
    follow: bool,
    write: Callable[[str], None],
    frontend: bool = False,
) -> None:
    """Write each line at the end of the servers' log, or the frontend's; with `follow` new ones."""
    arguments = ["logs", "--no-log-prefix", "--tail", str(lines)]
    arguments += ["--follow"] if follow else []
    compose_of(deployment).run(
        *arguments,
        FRONTEND if frontend else deployment.service,
        on_line=lambda line: write(_clean(line)),
        remedy=f"see `docker logs {deployment.container[:12]}`",
    )


def compose_of(deployment: Deployment) -> Compose:
    """Docker Compose for a deployment that was started. Raises HostError."""
    docker = require_docker(deployment.variables)
    profiles = tuple(deployment.profiles)
    folder = Path(deployment.folder)
    return Compose(docker, folder, deployment.name, profiles, deployment.variables)


def require_gpu(project: Project) -> None:
    """Raise HostError where models need a GPU and this machine has none."""
    names = gpu_models(project)
    if not names:
        return
    gpus, problem = installed_gpus()
    if not gpus:
        raise HostError(
            f"models of the project need an NVIDIA GPU, and this machine has none "
            f"({', '.join(names)}): {problem}",
            remedy="run it where the GPU is, choose a profile whose engines run on a CPU "
            "(`--env`), or serve the others (`--models`)",
        )


@contextmanager
def _held_ports(project: Project, slot: Slot | None) -> Iterator[dict[str, str]]:
    """The ports to publish, as the variables of compose.yaml; 0 becomes a free one.

    slot: the gateway beside the containers asks the frontend, too; and of several servers each has
    its ports out of ranges that hold no others, so that one that is started again finds its own.
    """
    server, replicas = project.server, project.docker.replicas
    if replicas > 1 and slot is None:
        yield {}  # Docker chooses
        return
    wanted = {f"{name}_port": int(getattr(server, f"{name}_port")) for name in PORTS}
    with ExitStack() as held:
        if replicas > 1:
            every = held.enter_context(held_range(LOOPBACK, replicas * len(PORTS)))
            firsts = every[::replicas]
            ports = [f"{first}-{first + replicas - 1}" for first in firsts]
        else:
            ports = [str(port) for port in held.enter_context(held_ports(server.address, wanted))]
        variables = {_VARIABLES[name]: port for name, port in zip(PORTS, ports, strict=True)}
        if slot is not None and project.frontend is not None:
            own = held_ports(project.frontend.address, {"port": project.frontend.port}, FRONTEND)
            [port] = held.enter_context(own)
            variables["FRONTEND_PORT"] = str(port)
        yield variables


def deployment_folder(
    project: Project,
    rendered: Rendered,
    files: ServerFiles,
    progress: Progress,
    slot: Slot | None = None,
) -> Path:
    """The user's own deployment, brought up to date, or else a rendering of ours.

    slot: one of two groups, each with a rendering of ours, and with what the user's own deployment
    overrides. Raises ConfigurationError where that would overwrite what the user changed.
    """
    own = project.root / FOLDER
    if slot is not None or not (own / COMPOSE_FILE).is_file():
        folder = files.folder / FOLDER
        texts = dict(render_compose(project, rendered.plan, folder, slot).files)
        with suppress(FileNotFoundError):
            texts[_OVERRIDE] = (own / _OVERRIDE).read_text(encoding="utf-8")
        publish(texts, folder, force=True)
        return folder
    fresh = render_compose(project, rendered.plan, own).files
    done = bring_up_to_date(fresh, own)
    if changed := [*done.written, *done.removed]:
        progress.note(f"{own} was outdated and has been rendered again: {', '.join(changed)}")
    return own


def _launch(
    compose: Compose,
    project: Project,
    rendered: Rendered,
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
        models=rendered.plan.served,
        settings=settings,
        exit_timeout_seconds=project.server.exit_timeout_seconds,
        plain_address=plain_address(project),
        deployment=deployment,
        release=rendered.plan.release_name,
    )
    return at(state, containers(deployment)[0])


def _wait_until_ready(
    project: Project,
    rendered: Rendered,
    state: ContainerServer,
    files: ServerFiles,
    progress: Progress,
) -> None:
    """Wait until every model of every server is ready. Raises ServerError."""
    deployment = state.deployment
    servers = [at(state, container) for container in containers(deployment)]
    limit = project.server.ready_timeout_seconds
    deadline = time.monotonic() + limit
    with progress.step("Starting Triton") as step:
        for problem in _problems(servers):
            slowest = min((health(server) for server in servers), key=Health.count_ready)
            if slowest.ready:
                return
            late = time.monotonic() > deadline
            if problem or late:
                _save_log(compose_of(deployment), deployment.service, files)
                why = problem or f"not every model was ready within {limit} s"
                loading = [] if problem else still_loading(files.log)
                raise explain_failure(files.log, why, rendered.plan.owners, loading)
            step.update(slowest.summary())


def _wait_for_frontend(project: Project, deployment: Deployment, progress: Progress) -> None:
    """Wait until the OpenAI API answers, where there is one. Raises ServerError."""
    if api_of(project, deployment) is None:
        return
    deadline = time.monotonic() + _FRONTEND_SECONDS
    with progress.step("Starting the frontend"):
        while (api := api_of(project, deployment)) is not None and not api.ready:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the frontend's container was not ready within {_FRONTEND_SECONDS} s",
                    remedy="read the end of its log above",
                    details=compose_of(deployment).ask("logs", *_LAST_LINES, FRONTEND),
                )
            time.sleep(_POLL_SECONDS)


def _problems(servers: Sequence[ContainerServer]) -> Iterator[str]:
    """Every 0.3 s: why a container ended; "" while all run."""
    while True:
        for deployment in (server.deployment for server in servers):
            status = container_status("docker", deployment.container, deployment.variables)
            if not status or status["Status"] not in _ALIVE or status["RestartCount"]:
                yield why_ended(status)
        yield ""
        time.sleep(_POLL_SECONDS)


def why_ended(status: Mapping[str, object]) -> str:
    """What Docker knows of a container that ended while it started, or was started again."""
    if status.get("OOMKilled"):
        return "the container ran out of memory (docker.memory)"
    # Docker forgets the status of the container that it has started again.
    code = status.get("ExitCode")
    return "tritonserver ended while it started" + (f", with status {code}" if code else "")


def _save_log(compose: Compose, service: str, files: ServerFiles) -> None:
    """What the servers printed so far; `tritonctl logs` shows it when they have gone."""
    with explained(files.log), files.log.open("w", encoding="utf-8") as log:
        compose.run(
            "logs",
            "--no-log-prefix",
            service,
            on_line=lambda line: log.write(f"{_clean(line)}\n"),
            remedy="see `docker logs`",
        )


def _clean(line: str) -> str:
    return line.removeprefix(_CLEAR_LINE)


def _remove(compose: Compose, service: str, files: ServerFiles) -> None:
    """Servers first, so that the gateway still carries what they finish; then everything."""
    by_hand = f"by hand: `docker compose -p {compose.name} down`"
    compose.run("stop", service, remedy=by_hand)
    _save_log(compose, service, files)
    compose.run("down", "--remove-orphans", remedy=by_hand)
    files.state.unlink(missing_ok=True)
