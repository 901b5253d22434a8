# SPDX-License-Identifier: Apache-2.0
"""Two slots of servers behind one gateway: the stable release, and a candidate or warm standby.

This is a rollout's interface to servers. Loading, promoting and stopping a candidate leaves the
stable servers unchanged: `rollout.traffic` moves the users.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tritonctl.errors import RepositoryError, ServerError
from tritonctl.gateway.placement import GatewayPlacement
from tritonctl.gateway.shares import require_user_header
from tritonctl.host.files import exclusive
from tritonctl.host.progress import Progress, Silent
from tritonctl.project.schema import Project
from tritonctl.releases.differences import ReleaseDifference, compare_releases
from tritonctl.releases.slots import Slot, stable_slot, write_stable_slot
from tritonctl.releases.store import StoredRelease, already_served_error, stored_releases
from tritonctl.runtimes.deployed_release import DeployedRelease, release_lock
from tritonctl.runtimes.discovery import current_server
from tritonctl.runtimes.docker import lifecycle as containers
from tritonctl.runtimes.embedded import frontend
from tritonctl.runtimes.embedded import gateway as envoy
from tritonctl.runtimes.embedded import lifecycle as embedded
from tritonctl.runtimes.embedded.gateway import GatewayFiles
from tritonctl.runtimes.embedded.gateway_process import GatewayProcess
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.lifecycle import (
    running_server,
    settings_fingerprint,
    start_servers,
    stop_servers,
)
from tritonctl.runtimes.release_memory import refuse_too_large
from tritonctl.runtimes.server_state import (
    EmbeddedServer,
    Server,
    ServerFiles,
    read_state,
    write_state,
)

__all__ = [
    "GatewayPlacement",
    "GatewayProcess",
    "Slot",
    "StandbySlot",
    "envoy_metrics_url",
    "gateway_placement",
    "gateway_process",
    "make_stable",
    "refuse_breaking_tensors",
    "routes_folder",
    "server_in_slot",
    "stable_slot",
    "standby_slot",
    "start_candidate",
    "stop_slot",
]
_LOCK_PURPOSE = "start or stop the server"
_MAX_LISTED_DIFFERENCES = 3  # differences


def server_in_slot(project: Project, slot: Slot) -> Server | None:
    """Return the server in a slot with its current ports; None while the slot is empty."""
    return current_server(ServerFiles.of(project, slot))


def gateway_process(project: Project) -> GatewayProcess | None:
    """Return the running Envoy in front of both slots; None if it does not run."""
    return envoy.running_gateway(project)


def envoy_metrics_url(project: Project) -> str:
    """Return the URL of Envoy's Prometheus metrics. Raises ServerError if Envoy does not run."""
    return _require_gateway(project).metrics_url


def gateway_placement(project: Project) -> GatewayPlacement:
    """Return Envoy's addresses and the stable slot, for `rollout.traffic.Traffic`."""
    process = gateway_process(project)
    ports = (process.port, process.admin_port) if process else None
    return envoy.placement(project, stable_slot(project), ports)


def routes_folder(project: Project) -> Path:
    """Return the folder with Envoy's routes, for `Traffic`."""
    return GatewayFiles.of(project).routes


def start_candidate(
    project: Project, stored: StoredRelease, progress: Progress, *, breaking: bool = False
) -> Server:
    """Load a release into the free slot, without users; return it if it is already loaded.

    Another warm release in the slot is unloaded. breaking: accept a release whose tensors may
    break clients of the stable one. Raises UsageError for the deployed release, RepositoryError
    for a modified or breaking one, HostError without enough memory, ServerError if loading fails.
    """
    require_user_header(project.rollout)
    with release_lock(project, progress):
        _require_gateway(project)
        state = running_server(project)
        slot = stable_slot(project).opposite
        if (loaded := server_in_slot(project, slot)) is not None:
            if loaded.release == stored.name:
                return loaded
            with progress.step(
                f"Unloading release {loaded.release or 'without a number'} on standby"
            ):
                stop_slot(project, slot, at_once=False)
        stable = _stable_release(project, state, stored)
        candidate = DeployedRelease.verified(project, stored, progress, slot)
        if not breaking:
            refuse_breaking_tensors(stable, stored)
        refuse_too_large(state, stable, stored)
        # The slot starts without users, and the routes have this tritonctl's format.
        envoy.route_all_to_stable(project)
        return _start_in_slot(project, candidate, slot, state, progress)


def stop_slot(project: Project, slot: Slot, *, at_once: bool) -> None:
    """Stop the servers of a slot, if any, and remove them from Envoy.

    at_once: kill Triton and break its streams, which the frontend finishes on another server.
    Otherwise streams may finish within `exit_timeout_seconds`. Raises ServerError for the stable
    slot.
    """
    if slot is stable_slot(project):
        raise ServerError(
            f"slot {slot} is the stable slot: its servers have the users",
            remedy="`tritonctl down` stops all servers",
        )
    if gateway_process(project) is not None:
        if not envoy.is_all_stable(project):
            envoy.route_all_to_stable(project)
        envoy.write_endpoints(project, slot, None)
    files = ServerFiles.of(project, slot)
    state = read_state(files)
    if not at_once or state is None:
        stop_servers(project, slot, Silent())
        return
    with exclusive(files.lock, Silent(), _LOCK_PURPOSE):
        if not isinstance(state, EmbeddedServer):
            containers.kill(state, files)
            return
        embedded.kill(state, files)
        if state.frontend is not None:
            frontend.stop(state.frontend, files, state.exit_timeout_seconds)


def make_stable(project: Project, slot: Slot) -> None:
    """Route all users to this slot's servers; the other slot stays loaded. Idempotent.

    Raises ServerError if no server runs in the slot.
    """
    server, previous_server = server_in_slot(project, slot), server_in_slot(project, slot.opposite)
    if server is None:
        raise ServerError(
            f"no server runs in slot {slot}",
            remedy="load a release into it first: `tritonctl rollout start`",
        )
    if stable_slot(project) is not slot:
        if previous_server is not None:
            forward = _release_number(server) > _release_number(previous_server)
            previous = previous_server.release if forward else ""
            files = ServerFiles.of(project, slot)
            write_state(files, replace(server, previous_release=previous))
        write_stable_slot(project, slot)
    envoy.route_all_to_stable(project)


def warm_slot(project: Project, stored: StoredRelease) -> Slot | None:
    """Return the standby slot if it has this release loaded and the gateway runs."""
    slot = stable_slot(project).opposite
    server = server_in_slot(project, slot)
    loaded = server is not None and server.release == stored.name
    return slot if loaded and gateway_process(project) is not None else None


@dataclass(frozen=True)
class StandbySlot:
    """The server in the slot that is not stable."""

    slot: Slot
    server: Server
    ready: bool
    share: float  # of the users, in per cent


def standby_slot(project: Project) -> StandbySlot | None:
    """Return the candidate or warm standby; None while the slot is empty."""
    slot = stable_slot(project).opposite
    server = server_in_slot(project, slot)
    if server is None:
        return None
    return StandbySlot(slot, server, check_health(server).ready, envoy.candidate_share(project))


def refuse_during_rollout(project: Project) -> None:
    """Raise ServerError while a candidate has users: their release must not change in place."""
    if gateway_process(project) is None or envoy.is_all_stable(project):
        return
    raise ServerError(
        "a rollout is in progress: a candidate has some of the users",
        remedy="wait until it finishes (`tritonctl rollout status`), or take the users back: "
        "`tritonctl rollout abort`",
    )


def _require_gateway(project: Project) -> GatewayProcess:
    process = gateway_process(project)
    if process is None:
        raise ServerError(
            "no gateway is running for this project",
            remedy="start server and gateway: `tritonctl up`",
        )
    return process


def _stable_release(project: Project, state: Server, stored: StoredRelease) -> StoredRelease:
    """Return the stable release. Raises ServerError without one, UsageError if it is `stored`."""
    if not state.release:
        raise ServerError(
            "the running server serves the last rendered repository, not a release",
            remedy="`tritonctl down`, then `tritonctl up --release N`; "
            "`tritonctl releases list` lists the releases",
        )
    if state.release == stored.name:
        raise already_served_error(stored)
    for release in stored_releases(project):
        if release.name == state.release:
            return release
    raise RepositoryError(
        f"the deployed release {state.release} is no longer stored",
        remedy="deploy a stored one: `tritonctl down`, then `tritonctl up --release N`",
    )


def refuse_breaking_tensors(stable: StoredRelease, candidate: StoredRelease) -> None:
    """Raise RepositoryError if clients of the stable release may fail with the candidate."""
    breaking = [each for each in compare_releases(stable, candidate) if each.breaking]
    if not breaking:
        return
    more = (
        f"; and {len(breaking) - _MAX_LISTED_DIFFERENCES} more"
        if len(breaking) > _MAX_LISTED_DIFFERENCES
        else ""
    )
    raise RepositoryError(
        f"clients of release {stable.name} may fail with {candidate.name}: "
        f"{'; '.join(map(_difference_text, breaking[:_MAX_LISTED_DIFFERENCES]))}{more}",
        remedy="see all differences: "
        f"`tritonctl releases diff {stable.number} {candidate.number}`; if no client depends on "
        "them, pass `--breaking`",
    )


def _difference_text(difference: ReleaseDifference) -> str:
    return f"{difference.field}: {difference.old or 'absent'} → {difference.new or 'absent'}"


def _start_in_slot(
    project: Project,
    candidate: DeployedRelease,
    slot: Slot,
    stable: Server,
    progress: Progress,
) -> Server:
    stop_servers(project, slot, progress)  # left by a crash
    with exclusive(ServerFiles.of(project, slot).lock, progress, _LOCK_PURPOSE):
        candidate.publish()
        slot_project = _on_free_ports(candidate.project)
        settings, fallbacks = settings_fingerprint(project), [stable.grpc_url]
        server = start_servers(
            slot_project, candidate.rendered, settings, slot, progress, fallbacks
        )
    try:
        envoy.write_endpoints(project, slot, server)
        envoy.wait_until_healthy(project, slot, progress)
    except BaseException:
        stop_slot(project, slot, at_once=True)
        raise
    return server


def _on_free_ports(project: Project) -> Project:
    """Use free ports: the stable release has the project's, the gateway reaches this one."""
    ports = dict.fromkeys(project.server.configured_ports, 0)
    server, frontend = project.server.model_copy(update=ports), project.frontend
    frontend = frontend and frontend.model_copy(update={"port": 0})
    return project.model_copy(update={"server": server, "frontend": frontend})


def _release_number(server: Server) -> int:
    first = server.release.partition("-")[0]
    return int(first) if first.isdecimal() else 0
