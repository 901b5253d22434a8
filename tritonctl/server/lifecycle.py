# SPDX-License-Identifier: Apache-2.0
"""Starts, finds and stops the tritonserver of a project: embedded, or in containers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tritonctl.errors import RepositoryError, ServerError
from tritonctl.host.files import exclusive, if_free
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.repository.contents import without_config
from tritonctl.repository.publish import Rendered
from tritonctl.server.containers import lifecycle as containers
from tritonctl.server.containers.api import Api, api_of
from tritonctl.server.containers.presence import at
from tritonctl.server.containers.presence import containers as containers_of
from tritonctl.server.embedded import frontend, gateway
from tritonctl.server.embedded import lifecycle as embedded
from tritonctl.server.embedded.program import is_alive
from tritonctl.server.gateway.placement import gateway_of
from tritonctl.server.health import Health, health
from tritonctl.server.presence import current, current_server
from tritonctl.server.restarts import Crash, described, read_restarts
from tritonctl.server.security.certificate_checks import checked_tls
from tritonctl.server.security.digests import verify_repository
from tritonctl.server.slots import Slot, controller_lock, stable_slot
from tritonctl.server.state import EmbeddedServer, Server, ServerFiles, read_state

# The Python backend of tritonserver 2.51 passes paths to a shell unquoted.
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def start(project: Project, rendered: Rendered, progress: Progress) -> tuple[Server, bool]:
    """Start the project's server and wait until every model is ready; then the gateway, if any.

    Returns the server and whether this call started it; one already running on the same settings is
    left alone. Raises ServerError, with Triton's own message and the end of its log, after removing
    what had started, and HostError for a port that is taken.
    """
    if project.server.mode != "docker":
        embedded.require_servable(project, rendered)
    files = ServerFiles.of(project)
    with exclusive(files.lock, progress, "start or stop the server"):
        running = _running(files)
        if running:
            if (
                rendered.changed
                or rendered.removed
                or running.settings != settings_of(project)
                or running.models != rendered.plan.served
                or running.release != rendered.plan.release_name
            ):
                alone = f" --models {','.join(sorted(project.chosen))}" if project.chosen else ""
                raise ServerError(
                    "a server is already running, with other settings or models than the project's",
                    remedy=f"run `tritonctl down`, then `tritonctl up{alone}` again",
                )
            with gateway.held(project, progress) as ports:
                running = _with_frontend(project, running, files, progress)
                _with_gateway(project, running, ports, progress)
            return running, False
        if project.chosen is None and (none := without_config(project)):
            where = project.model_repository
            progress.note(f"no model, for want of config.pbtxt: {', '.join(none)} in {where}")
        with gateway.held(project, progress) as ports:
            slot = stable_slot(project)
            server = start_servers(project, rendered, settings_of(project), slot, progress)
            try:
                _with_gateway(project, server, ports, progress)
            except BaseException:
                _end(server, files)
                raise
        return server, True


def start_servers(
    project: Project,
    rendered: Rendered,
    settings: str,
    slot: Slot,
    progress: Progress,
    fallbacks: Sequence[str] = (),
) -> Server:
    """Start the servers of a slot, and its frontend. The caller holds the lock of its files.

    settings: by which they are known again, as `settings_of`. fallbacks: servers that the frontend
    asks once these are gone. Raises as `start`.
    """
    _refuse_names(rendered)
    tls = checked_tls(project)
    verify_repository(project, rendered.plan, progress)
    files = ServerFiles.of(project, slot)
    if project.server.mode == "docker":
        own = slot if gateway.is_wanted(project) else None
        return containers.start(project, rendered, settings, files, progress, tls, own)
    with frontend.held_port(project) as port:
        server = embedded.start(project, rendered, settings, files, progress, tls)
        if port is None:
            return server
        try:
            return frontend.start(project, server, port, files, progress, fallbacks)
        except BaseException:
            _end(read_state(files) or server, files)
            raise


def _with_frontend(
    project: Project, running: Server, files: ServerFiles, progress: Progress
) -> Server:
    """A running server with its frontend, started again where that has ended for good."""
    if not isinstance(running, EmbeddedServer) or running.frontend is None:
        return running
    if is_alive(running.frontend):
        return running
    with frontend.held_port(project) as port:
        return running if port is None else frontend.start(project, running, port, files, progress)


def _with_gateway(
    project: Project, server: Server, ports: tuple[int, int] | None, progress: Progress
) -> None:
    """A server that is ready, known to the gateway; a candidate keeps only users that are judged.

    ports: of a gateway that is to be started: all users are stable's then.
    """
    if not gateway.is_wanted(project):
        return
    stable = stable_slot(project)
    if ports is None:
        gateway.write_endpoints(project, stable, server)
        _take_back_unjudged(project, progress)
        gateway.wait_until_known(project, stable, progress)
        return
    other = current_server(ServerFiles.of(project, stable.other))
    groups = {stable: server}
    if other is not None:
        groups[stable.other] = other
    gateway.start(project, ports, groups, progress)


def _take_back_unjudged(project: Project, progress: Progress) -> None:
    """After a crash amid a rollout: nobody stays with a release that no controller watches."""
    with if_free(controller_lock(project)) as nobody_judges:
        if nobody_judges and not gateway.is_all_stable(project):
            gateway.give_all_to_stable(project)
            progress.note("no rollout runs any more: all users are the stable release's again")


def _refuse_names(rendered: Rendered) -> None:
    for model in rendered.plan.handwritten:
        if not _NAME.fullmatch(model.name):
            raise RepositoryError(
                f"{model.folder}: tritonserver ends over a Python model of such a name",
                remedy="rename the folder, and the model in its config.pbtxt: use letters, digits, "
                "`_`, `-` and `.`",
            )


def require_machine(project: Project) -> None:
    """Raise HostError if this machine cannot serve the project at all."""
    if project.server.mode == "docker":
        containers.require_gpu(project)


def stop(project: Project, progress: Progress) -> Server | None:
    """Stop all that runs for the project; streams may finish within `exit_timeout_seconds`.

    Returns what was stopped or, after a crash, cleaned up; None if nothing ran.
    """
    stable = stable_slot(project)
    candidate = stop_servers(project, stable.other, progress)
    server = stop_servers(project, stable, progress)
    gateway.stop(project)  # last: it carries what the servers finish
    return server or candidate


def stop_servers(project: Project, slot: Slot, progress: Progress) -> Server | None:
    """Stop the servers of a slot alone, as `stop` does."""
    files = ServerFiles.of(project, slot)
    if not files.folder.exists():
        return None
    with exclusive(files.lock, progress, "start or stop the server"):
        server = read_state(files)
        if server is None:
            return None
        if gateway.running(project) is not None:
            gateway.write_endpoints(project, slot, None)  # what has begun goes on
        with progress.step("Stopping Triton"):
            _end(server, files)
    return server


def running_server(project: Project) -> Server:
    """The state of the running server, as it is now. Raises ServerError without one.

    One in containers is looked up in Docker: HostError when that does not answer.
    """
    files = ServerFiles.of(project)
    state = current_server(files)
    if state is not None:
        return state
    crashes = read_restarts(files.restarts)
    how = described(crashes) if crashes else "crashed"
    crashed = f"; the last one {how}" if files.state.exists() else ""
    raise ServerError(
        f"no server is running for this project{crashed}",
        remedy="start one with `tritonctl up`" + ("; see `tritonctl logs`" if crashed else ""),
    )


@dataclass(frozen=True)
class Status:
    """One server, where it is now and how it is. `container`: Docker's word for its state.

    `crashes`: of an embedded server since `up`. `api`: OpenAI's, of the frontend; None without one.
    """

    state: Server
    health: Health
    container: str | None = None
    crashes: Sequence[Crash] = ()
    api: Api | None = None


def api(project: Project, state: Server) -> Api | None:
    """Where the OpenAI API of a running server is; None without a frontend.

    Raises HostError when Docker does not answer.
    """
    if not isinstance(state, EmbeddedServer):
        return api_of(project, state.deployment)
    process = state.frontend
    if process is None:
        return None
    return Api(process.api_url, process.pid, frontend.is_answering(process))


def status(project: Project) -> list[Status]:
    """Every server of the project, replicas by number. Raises ServerError when none is running."""
    state = running_server(project)
    if isinstance(state, EmbeddedServer):
        crashes = read_restarts(ServerFiles.of(project).restarts)
        return [Status(state, health(state), crashes=crashes, api=api(project, state))]
    found = api(project, state)
    return [
        Status(server, health(server), container.status, api=found)
        for container in containers_of(state.deployment)
        for server in [at(state, container)]
    ]


def _running(files: ServerFiles) -> Server | None:
    """The server if it is alive; what a dead one left behind is removed."""
    state = read_state(files)
    running = None if state is None else current(state)
    if state is not None and running is None:
        _end(state, files)
    return running


def settings_of(project: Project) -> str:
    """What of the project file a running server depends on."""
    settings = project.server.model_dump(mode="json")
    if project.frontend is not None:
        settings |= {"frontend": project.frontend.model_dump(mode="json")}
    if project.server.mode == "docker":
        settings |= {"docker": project.docker.model_dump(mode="json")}
    if gateway.is_wanted(project):
        headers = {"user_header", "release_header"}
        settings |= {
            "gateway": gateway_of(project).model_dump(mode="json"),
            "rollout": project.rollout.model_dump(mode="json", include=headers),
        }
    return json.dumps(settings, sort_keys=True)


def _end(server: Server, files: ServerFiles) -> None:
    """End a server and everything it started, then forget it: first what still asks it."""
    if isinstance(server, EmbeddedServer):
        if server.frontend is not None:
            frontend.stop(server.frontend, files, server.exit_timeout_seconds)
        embedded.stop(server, files)
    else:
        containers.stop(server, files)
