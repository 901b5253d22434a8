# SPDX-License-Identifier: Apache-2.0
"""Two groups of servers behind one gateway: the stable release, and a candidate or a warm standby.

All that a rollout needs of servers. A candidate is loaded, promoted and ended without a change to
what serves: `rollout.traffic` moves the users.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tritonctl.errors import RepositoryError, ServerError
from tritonctl.host.files import exclusive
from tritonctl.host.progress import Progress, Silent
from tritonctl.project.schema import Project
from tritonctl.releases.differences import Difference, differences
from tritonctl.releases.store import Stored, already_served, stored_releases
from tritonctl.server.containers import lifecycle as containers
from tritonctl.server.embedded import frontend
from tritonctl.server.embedded import gateway as envoy
from tritonctl.server.embedded import lifecycle as embedded
from tritonctl.server.embedded.gateway import GatewayFiles, GatewayProcess
from tritonctl.server.gateway.placement import Placement
from tritonctl.server.gateway.shares import require_users
from tritonctl.server.health import health
from tritonctl.server.lifecycle import (
    running_server,
    settings_of,
    start_servers,
    stop_servers,
)
from tritonctl.server.memory import refuse_too_large
from tritonctl.server.presence import current_server
from tritonctl.server.served_release import ServedRelease, serving
from tritonctl.server.slots import Slot, stable_slot, write_stable_slot
from tritonctl.server.state import EmbeddedServer, Server, ServerFiles, read_state, write_state

__all__ = [
    "Beside",
    "GatewayProcess",
    "Placement",
    "Slot",
    "beside",
    "envoy_metrics_url",
    "gateway",
    "group",
    "make_stable",
    "placement",
    "refuse_other_tensors",
    "routes_folder",
    "stable_slot",
    "start_candidate",
    "stop_group",
]
_WORK = "start or stop the server"
_NAMED = 3  # differences


def group(project: Project, slot: Slot) -> Server | None:
    """The servers in a slot as they are now; None while it is empty."""
    return current_server(ServerFiles.of(project, slot))


def gateway(project: Project) -> GatewayProcess | None:
    """The Envoy before both; None while it does not run."""
    return envoy.running(project)


def envoy_metrics_url(project: Project) -> str:
    """URL of Envoy's Prometheus metrics. Raises ServerError while it does not run."""
    return _running_gateway(project).metrics_url


def placement(project: Project) -> Placement:
    """Where Envoy is, and which slot is stable, for `rollout.traffic.Traffic`."""
    process = gateway(project)
    ports = (process.port, process.admin_port) if process else None
    return envoy.placement(project, stable_slot(project), ports)


def routes_folder(project: Project) -> Path:
    """Where Envoy reads its routes, for `Traffic`."""
    return GatewayFiles.of(project).routes


def start_candidate(
    project: Project, stored: Stored, progress: Progress, *, breaking: bool = False
) -> Server:
    """Load a release in the free slot, known to Envoy; no user is moved. One loaded is returned.

    Another one there, kept warm, is unloaded. breaking: also one whose tensors clients of the
    stable release may fail with. Raises UsageError for the release that serves, RepositoryError for
    one that is not as it was published or breaks clients, HostError where there is no memory for
    it, ServerError for one that does not load.
    """
    require_users(project.rollout)
    with serving(project, progress):
        _running_gateway(project)
        state = running_server(project)
        slot = stable_slot(project).other
        if (there := group(project, slot)) is not None:
            if there.release == stored.name:
                return there
            with progress.step(f"Unloading release {there.release or 'of no number'}, kept warm"):
                stop_group(project, slot, at_once=False)
        served = _served(project, state, stored)
        candidate = ServedRelease.of(project, stored, progress, slot)
        if not breaking:
            refuse_other_tensors(served, stored)
        refuse_too_large(state, served, stored)
        # Nobody's users come with the slot; and routes are as this tritonctl writes them.
        envoy.give_all_to_stable(project)
        return _started(project, candidate, slot, state, progress)


def stop_group(project: Project, slot: Slot, *, at_once: bool) -> None:
    """End the servers of a slot, if there are any; Envoy asks them no more.

    at_once: Triton is killed, and what it streams breaks; its frontend finishes streams elsewhere.
    Else streams may finish within `exit_timeout_seconds`. Raises ServerError for the stable slot.
    """
    if slot is stable_slot(project):
        raise ServerError(
            f"slot {slot} is the stable one: its servers have the users",
            remedy="`tritonctl down` ends all servers",
        )
    if gateway(project) is not None:
        if not envoy.is_all_stable(project):
            envoy.give_all_to_stable(project)
        envoy.write_endpoints(project, slot, None)
    files = ServerFiles.of(project, slot)
    state = read_state(files)
    if not at_once or state is None:
        stop_servers(project, slot, Silent())
        return
    with exclusive(files.lock, Silent(), _WORK):
        if not isinstance(state, EmbeddedServer):
            containers.kill(state, files)
            return
        embedded.kill(state, files)
        if state.frontend is not None:
            frontend.stop(state.frontend, files, state.exit_timeout_seconds)


def make_stable(project: Project, slot: Slot) -> None:
    """All users are those of the servers in this slot; the others stay loaded. Twice is once.

    Raises ServerError for a slot whose servers do not run.
    """
    server, before = group(project, slot), group(project, slot.other)
    if server is None:
        raise ServerError(
            f"no server runs in slot {slot}",
            remedy="load a release there first: `tritonctl rollout start`",
        )
    if stable_slot(project) is not slot:
        if before is not None:
            forward = _number(server) > _number(before)
            previous = before.release if forward else ""
            files = ServerFiles.of(project, slot)
            write_state(files, replace(server, previous_release=previous))
        write_stable_slot(project, slot)
    envoy.give_all_to_stable(project)


def warm_slot(project: Project, stored: Stored) -> Slot | None:
    """The slot that is not stable, where it has this release loaded, behind a gateway that runs."""
    slot = stable_slot(project).other
    server = group(project, slot)
    loaded = server is not None and server.release == stored.name
    return slot if loaded and gateway(project) is not None else None


@dataclass(frozen=True)
class Beside:
    """What runs in the slot that is not stable. share: per cent of the users that it has."""

    slot: Slot
    server: Server
    ready: bool
    share: float


def beside(project: Project) -> Beside | None:
    """A candidate or a warm standby; None while the slot is empty."""
    slot = stable_slot(project).other
    server = group(project, slot)
    if server is None:
        return None
    return Beside(slot, server, health(server).ready, envoy.share(project))


def refuse_during_rollout(project: Project) -> None:
    """Raise ServerError while a candidate has users: what they get must not change in place."""
    if gateway(project) is None or envoy.is_all_stable(project):
        return
    raise ServerError(
        "a rollout is under way: a candidate has some of the users",
        remedy="wait for its end (`tritonctl rollout status`), or take them back: "
        "`tritonctl rollout abort`",
    )


def _running_gateway(project: Project) -> GatewayProcess:
    process = gateway(project)
    if process is None:
        raise ServerError(
            "no gateway runs for this project", remedy="start server and gateway: `tritonctl up`"
        )
    return process


def _served(project: Project, state: Server, stored: Stored) -> Stored:
    """The release that is stable. Raises ServerError where none is, UsageError for the same one."""
    if not state.release:
        raise ServerError(
            "the running server serves what was rendered last, no release",
            remedy="`tritonctl down`, then `tritonctl up --release N`; "
            "`tritonctl releases list` shows them",
        )
    if state.release == stored.name:
        raise already_served(stored)
    for one in stored_releases(project):
        if one.name == state.release:
            return one
    raise RepositoryError(
        f"release {state.release}, which is served, is gone",
        remedy="serve one that is kept: `tritonctl down`, then `tritonctl up --release N`",
    )


def refuse_other_tensors(served: Stored, stored: Stored) -> None:
    """Raise RepositoryError where clients of the one that is served may fail with the other."""
    found = [each for each in differences(served, stored) if each.breaking]
    if not found:
        return
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise RepositoryError(
        f"clients of release {served.name} may fail with {stored.name}: "
        f"{'; '.join(map(_told, found[:_NAMED]))}{more}",
        remedy=f"see all of it: `tritonctl releases diff {served.number} {stored.number}`; where "
        "no client minds, `--breaking` goes on",
    )


def _told(difference: Difference) -> str:
    return f"{difference.field}: {difference.left or 'absent'} → {difference.right or 'absent'}"


def _started(
    project: Project,
    candidate: ServedRelease,
    slot: Slot,
    stable: Server,
    progress: Progress,
) -> Server:
    stop_servers(project, slot, progress)  # what a crash has left
    with exclusive(ServerFiles.of(project, slot).lock, progress, _WORK):
        candidate.publish()
        served = _on_free_ports(candidate.project)
        settings, back = settings_of(project), [stable.grpc_url]
        server = start_servers(served, candidate.rendered, settings, slot, progress, back)
    try:
        envoy.write_endpoints(project, slot, server)
        envoy.wait_until_known(project, slot, progress)
    except BaseException:
        stop_group(project, slot, at_once=True)
        raise
    return server


def _on_free_ports(project: Project) -> Project:
    """The stable release has the ports of the project; this one is reached through the gateway."""
    ports = dict.fromkeys(project.server.wanted_ports, 0)
    server, frontend = project.server.model_copy(update=ports), project.frontend
    frontend = frontend and frontend.model_copy(update={"port": 0})
    return project.model_copy(update={"server": server, "frontend": frontend})


def _number(server: Server) -> int:
    first = server.release.partition("-")[0]
    return int(first) if first.isdecimal() else 0
