# SPDX-License-Identifier: Apache-2.0
"""Start, find and stop the tritonserver of a project, embedded or in containers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tritonctl.errors import RepositoryError, ServerError
from tritonctl.gateway.placement import gateway_of
from tritonctl.host.files import exclusive, try_exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.slots import Slot, controller_lock, stable_slot
from tritonctl.repository.contents import folders_without_config
from tritonctl.repository.publish import RenderedRepository
from tritonctl.runtimes.discovery import current_server, known_server, refresh_server
from tritonctl.runtimes.docker import lifecycle as containers
from tritonctl.runtimes.docker.discovery import containers as containers_of
from tritonctl.runtimes.docker.discovery import server_in_container
from tritonctl.runtimes.docker.openai_url import OpenAiApi, deployment_api
from tritonctl.runtimes.embedded import frontend, gateway
from tritonctl.runtimes.embedded import lifecycle as embedded
from tritonctl.runtimes.embedded.program import is_alive
from tritonctl.runtimes.health import ServerHealth, check_health
from tritonctl.runtimes.server_state import EmbeddedServer, Server, ServerFiles, read_state
from tritonctl.security.certificate_checks import check_server_tls, exposed_keys
from tritonctl.security.digests import verify_repository
from tritonctl.supervision.progress import read_frozen
from tritonctl.supervision.restarts import Crash, describe_crashes, read_restarts

# The Python backend of tritonserver 2.51 passes paths to a shell unquoted.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def start(
    project: Project, rendered: RenderedRepository, progress: Progress
) -> tuple[Server, bool]:
    """Start the project's server, wait until every model is ready, then start the gateway, if any.

    Returns the server and whether this call started it; a running server with the same settings
    stays. Raises ServerError with Triton's message and the end of its log, after stopping what was
    started, and HostError for a port in use.
    """
    _require_models(project, rendered)
    if project.server.mode != "docker":
        embedded.require_servable(project, rendered)
    files = ServerFiles.of(project)
    with exclusive(files.lock, progress, "start or stop the server"):
        running = _running(files)
        if running:
            if (
                rendered.changed
                or rendered.removed
                or running.settings != settings_fingerprint(project)
                or running.models != rendered.plan.model_names
                or running.release != rendered.plan.release_name
            ):
                models_option = (
                    f" --models {','.join(sorted(project.chosen))}" if project.chosen else ""
                )
                raise ServerError(
                    "a server is already running with settings or models unlike the project's",
                    remedy=f"run `tritonctl down`, then `tritonctl up{models_option}` again",
                )
            with gateway.reserved_ports_if_stopped(project, progress) as ports:
                running = _ensure_frontend(project, running, files, progress)
                _ensure_gateway(project, running, ports, progress)
            return running, False
        if project.chosen is None and (skipped := folders_without_config(project)):
            repository = project.model_repository
            progress.note(f"skipped {', '.join(skipped)}: no config.pbtxt in {repository}")
        with gateway.reserved_ports_if_stopped(project, progress) as ports:
            slot = stable_slot(project)
            server = start_servers(project, rendered, settings_fingerprint(project), slot, progress)
            try:
                _ensure_gateway(project, server, ports, progress)
            except BaseException:
                _stop_server(server, files)
                raise
        return server, True


def start_servers(
    project: Project,
    rendered: RenderedRepository,
    settings: str,
    slot: Slot,
    progress: Progress,
    fallbacks: Sequence[str] = (),
) -> Server:
    """Start the servers and the frontend of a slot. The caller holds the lock of the slot's files.

    settings: the `settings_fingerprint`. fallbacks: servers that the frontend uses once these are
    gone. Raises as `start`.
    """
    _refuse_names(rendered)
    tls = check_server_tls(project)
    for warning in exposed_keys(project):
        progress.note(warning)
    verify_repository(project, rendered.plan, progress)
    files = ServerFiles.of(project, slot)
    if project.server.mode == "docker":
        gateway_slot = slot if gateway.has_gateway(project) else None
        return containers.start(project, rendered, settings, files, progress, tls, gateway_slot)
    with frontend.reserved_port(project) as port:
        server = embedded.start(project, rendered, settings, files, progress, tls)
        if port is None:
            return server
        try:
            return frontend.start(project, server, port, files, progress, fallbacks)
        except BaseException:
            _stop_server(read_state(files) or server, files)
            raise


def _ensure_frontend(
    project: Project, running: Server, files: ServerFiles, progress: Progress
) -> Server:
    """Restart a running server's frontend if it has stopped for good; return the server."""
    if not isinstance(running, EmbeddedServer) or running.frontend is None:
        return running
    if is_alive(running.frontend):
        return running
    with frontend.reserved_port(project) as port:
        return running if port is None else frontend.start(project, running, port, files, progress)


def _ensure_gateway(
    project: Project, server: Server, ports: tuple[int, int] | None, progress: Progress
) -> None:
    """Register a ready server with the gateway, or start the gateway on `ports`.

    A new gateway routes all users to stable. With a running one, a candidate keeps its users only
    while a rollout controller watches them.
    """
    if not gateway.has_gateway(project):
        return
    stable = stable_slot(project)
    if ports is None:
        gateway.write_endpoints(project, stable, server)
        _reset_unwatched_rollout(project, progress)
        gateway.wait_until_healthy(project, stable, progress)
        return
    standby = current_server(ServerFiles.of(project, stable.opposite))
    groups = {stable: server}
    if standby is not None:
        groups[stable.opposite] = standby
    gateway.start(project, ports, groups, progress)


def _reset_unwatched_rollout(project: Project, progress: Progress) -> None:
    """After a crash during a rollout, take all users back from the unwatched candidate."""
    with try_exclusive(controller_lock(project)) as is_unwatched:
        if is_unwatched and not gateway.is_all_stable(project):
            gateway.route_all_to_stable(project)
            progress.note("no rollout is running: all users are back on the stable release")


def _require_models(project: Project, rendered: RenderedRepository) -> None:
    if not rendered.plan.model_names:
        raise RepositoryError(
            f"there is nothing to serve: `models:` is empty, and {project.repository} has no model",
            remedy="`tritonctl init CHECKPOINT` writes an entry for a checkpoint; a handwritten "
            "model is a folder of the repository with a config.pbtxt",
        )


def _refuse_names(rendered: RenderedRepository) -> None:
    for model in rendered.plan.handwritten:
        if not _SAFE_NAME.fullmatch(model.name):
            raise RepositoryError(
                f"{model.folder}: tritonserver crashes on this model name",
                remedy="rename the folder, and the model in its config.pbtxt: use letters, digits, "
                "`_`, `-` and `.`",
            )


def require_machine(project: Project) -> None:
    """Raise HostError if this machine cannot serve the project."""
    if project.server.mode == "docker":
        containers.require_gpu(project)


def stop(project: Project, progress: Progress) -> Server | None:
    """Stop the project's servers and gateway; streams may finish within `exit_timeout_seconds`.

    Returns the stopped server, or the one cleaned up after a crash; None if nothing ran.
    """
    stable = stable_slot(project)
    candidate = stop_servers(project, stable.opposite, progress)
    server = stop_servers(project, stable, progress)
    gateway.stop(project)  # last: it carries the streams that finish
    return server or candidate


def stop_servers(project: Project, slot: Slot, progress: Progress) -> Server | None:
    """Stop only the servers of a slot, as `stop` does."""
    files = ServerFiles.of(project, slot)
    if not files.folder.exists() and known_server(files) is None:
        return None
    with exclusive(files.lock, progress, "start or stop the server"):
        server = known_server(files)
        if server is None:
            return None
        if gateway.running_gateway(project) is not None:
            gateway.write_endpoints(project, slot, None)  # open streams continue
        with progress.step("Stopping Triton"):
            _stop_server(server, files)
    return server


def running_server(project: Project) -> Server:
    """Return the running server with its current ports. Raises ServerError if none runs.

    Raises HostError if the server runs in containers and Docker does not answer.
    """
    files = ServerFiles.of(project)
    state = current_server(files)
    if state is not None:
        return state
    crashes = read_restarts(files.restarts)
    crash_summary = describe_crashes(crashes) if crashes else "crashed"
    crashed = f"; the last one {crash_summary}" if files.state.exists() else ""
    raise ServerError(
        f"no server is running for this project{crashed}",
        remedy="start one with `tritonctl up`" + ("; see `tritonctl logs`" if crashed else ""),
    )


@dataclass(frozen=True)
class ServerStatus:
    """One server with its current ports and health."""

    state: Server
    health: ServerHealth
    container: str | None = None  # Docker's name for the container's state
    crashes: Sequence[Crash] = ()  # of an embedded server since `up`
    api: OpenAiApi | None = None


def openai_api_of(project: Project, state: Server) -> OpenAiApi | None:
    """Return the OpenAI API of a running server; None without a frontend.

    Raises HostError if Docker does not answer.
    """
    if not isinstance(state, EmbeddedServer):
        return deployment_api(project, state.deployment)
    process = state.frontend
    if process is None:
        return None
    return OpenAiApi(process.api_url, process.pid, frontend.is_answering(process))


def server_statuses(project: Project) -> list[ServerStatus]:
    """Return every server of the project, replicas by number. Raises ServerError if none runs."""
    state = running_server(project)
    if isinstance(state, EmbeddedServer):
        files = ServerFiles.of(project)
        health = check_health(state).with_frozen(read_frozen(files.frozen))
        crashes, api = read_restarts(files.restarts), openai_api_of(project, state)
        return [ServerStatus(state, health, crashes=crashes, api=api)]
    openai_api = openai_api_of(project, state)
    return [
        ServerStatus(server, check_health(server), container.status, api=openai_api)
        for container in containers_of(state.deployment)
        for server in [server_in_container(state, container)]
    ]


def _running(files: ServerFiles) -> Server | None:
    """Return the server if it is alive; clean up after a dead one."""
    state = known_server(files)
    running = None if state is None else refresh_server(state)
    if state is not None and running is None:
        _stop_server(state, files)
    return running


def settings_fingerprint(project: Project) -> str:
    """Return the project settings that a running server depends on, as JSON."""
    settings = project.server.model_dump(mode="json")
    if project.frontend is not None:
        settings |= {"frontend": project.frontend.model_dump(mode="json")}
    if project.server.mode == "docker":
        settings |= {"docker": project.docker.model_dump(mode="json")}
    if gateway.has_gateway(project):
        headers = {"user_header", "release_header"}
        settings |= {
            "gateway": gateway_of(project).model_dump(mode="json"),
            "rollout": project.rollout.model_dump(mode="json", include=headers),
        }
    return json.dumps(settings, sort_keys=True)


def _stop_server(server: Server, files: ServerFiles) -> None:
    """Stop the frontend, then the server with everything it started; remove its record."""
    if isinstance(server, EmbeddedServer):
        if server.frontend is not None:
            frontend.stop(server.frontend, files, server.exit_timeout_seconds)
        embedded.stop(server, files)
    else:
        containers.stop(server, files)
