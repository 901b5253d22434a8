# SPDX-License-Identifier: Apache-2.0
"""Serve a release: start a server with it, or switch the running server to it.

The switch is in place, as in `reload`: model by model, no request lost. If the release needs
another server (other Python packages, other models, more memory), the server restarts. A failure
rolls back to the previous release. Nothing is built.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tritonctl.errors import ServerError, TritonctlError, UsageError
from tritonctl.host.files import as_host_error, exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.error_map import Advice
from tritonctl.protocol.model_control import ModelControl
from tritonctl.releases.pruning import ReleasePruning, plan_pruning, prune
from tritonctl.releases.slots import Slot, stable_slot
from tritonctl.releases.store import (
    StoredRelease,
    already_served_error,
    find_release,
    stored_releases,
)
from tritonctl.runtimes.deployed_release import DeployedRelease, release_lock
from tritonctl.runtimes.discovery import current_server, current_servers
from tritonctl.runtimes.lifecycle import require_machine, running_server, start, stop_servers
from tritonctl.runtimes.model_swap import ModelSwap
from tritonctl.runtimes.reload import refuse_other_server
from tritonctl.runtimes.reload_handwritten import reload_handwritten
from tritonctl.runtimes.server_state import (
    EmbeddedServer,
    Server,
    ServerFiles,
    read_state,
    write_state,
)
from tritonctl.runtimes.slot_servers import (
    make_stable,
    refuse_during_rollout,
    server_in_slot,
    warm_slot,
)


@dataclass(frozen=True)
class ReleaseSwitch:
    """The result of switching a deployment to another release."""

    release: str
    previous: str
    restarted: str | None  # why the server restarted; None: it kept serving
    abandoned: int  # streams of the previous release that did not end in time
    retained_models: tuple[str, ...]  # models that Triton keeps in memory until it exits
    gap_seconds: float  # unavailable time, summed over the models
    duration_seconds: float
    servers: int


def serve_release(
    project: Project, address: str, progress: Progress, *, smoke_test: bool = True
) -> tuple[Server, bool, ReleaseSwitch | None]:
    """Start a server with the release, or switch the running server to it.

    Returns the server, whether this call started it, and the switch, if there was one. Raises
    UsageError for an unknown release, RepositoryError for a modified one, ServerError.
    """
    with release_lock(project, progress):
        stored = find_release(stored_releases(project), address)
        state = current_server(ServerFiles.of(project))
        if state is not None and state.release and not _is_deployed(state, stored):
            switch = _switch(project, state, stored, progress, smoke_test=smoke_test)
            return running_server(project), False, switch
        deployed = DeployedRelease.verified(project, stored, progress)
        require_machine(deployed.project)
        if state is None:
            deployed.publish()
        server, started = start(deployed.project, deployed.rendered, progress)
        return server, started, None


def rollback(
    project: Project, address: str | None, progress: Progress, *, smoke_test: bool = True
) -> ReleaseSwitch:
    """Switch the running server to an older release, or to the release at `address`.

    By default the previously deployed release, else the parent of the current one. Raises as
    `serve_release`.
    """
    with release_lock(project, progress):
        state = running_server(project)
        releases = stored_releases(project)
        if not state.release:
            raise ServerError(
                "the running server serves the last rendered repository, not a release",
                remedy="`tritonctl down`, then `tritonctl up --release N`; "
                "`tritonctl releases list` lists the releases",
            )
        stored = find_release(releases, address or _require_rollback_target(state, releases))
        if _is_deployed(state, stored):
            raise already_served_error(stored)
        if (slot := warm_slot(project, stored)) is not None:
            return _switch_slots(project, slot, state, stored)
        return _switch(project, state, stored, progress, smoke_test=smoke_test)


def prune_releases(
    project: Project, selected: Collection[Path] | None, keep: int, progress: Progress
) -> ReleasePruning:
    """Remove the selected folders unless in use; None: only list the removable releases.

    The deployed release and the rollback target stay. Raises HostError.
    """
    with release_lock(project, progress):
        state = read_state(ServerFiles.of(project))
        protected: set[str] = set()
        if state is not None:
            target = rollback_target(state, stored_releases(project))
            protected = {state.release, state.previous_release, state.switching_to, target or ""}
        standby = server_in_slot(project, stable_slot(project).opposite)
        protected |= {standby.release} if standby else set()
        if selected is None:
            return plan_pruning(project, keep, protected)
        return prune(project, selected, keep, protected, progress)


def rollback_target(state: Server, releases: Sequence[StoredRelease]) -> str | None:
    """Return the name of the release that a rollback deploys; None if it was pruned."""
    deployed = next((stored for stored in releases if stored.name == state.release), None)
    parent = deployed.record.parent if deployed and deployed.record else None
    names = {stored.name for stored in releases}
    return next((name for name in (state.previous_release, parent) if name in names), None)


def _require_rollback_target(state: Server, releases: Sequence[StoredRelease]) -> str:
    name = rollback_target(state, releases)
    if name is None:
        raise UsageError(
            f"no release older than {state.release} is stored",
            remedy="name a release: `tritonctl releases list` lists them",
        )
    return name


def _is_deployed(state: Server, stored: StoredRelease) -> bool:
    """Whether the server serves this release alone, with no unfinished switch."""
    return state.release == stored.name and not state.switching_to


def _switch_slots(
    project: Project, slot: Slot, state: Server, stored: StoredRelease
) -> ReleaseSwitch:
    """Change only the gateway's routes: the other slot already has the release loaded."""
    start_time = time.monotonic()
    refuse_during_rollout(project)
    make_stable(project, slot)
    return ReleaseSwitch(
        release=stored.name,
        previous=state.release,
        restarted=None,
        abandoned=0,
        retained_models=(),
        gap_seconds=0.0,
        duration_seconds=time.monotonic() - start_time,
        servers=1,
    )


def _switch(
    project: Project, state: Server, stored: StoredRelease, progress: Progress, *, smoke_test: bool
) -> ReleaseSwitch:
    refuse_during_rollout(project)
    start_time, files = time.monotonic(), ServerFiles.of(project)
    releases = {release.name: release for release in stored_releases(project) if release.record}
    old = (
        DeployedRelease.unverified(project, releases[state.release])
        if state.release in releases
        else None
    )
    new = DeployedRelease.verified(project, stored, progress)
    with exclusive(files.lock, progress, "start, stop or reload the server"):
        state = running_server(project)
        restart_reason = _restart_reason(old, new, state, files, progress)
        if old is not None and restart_reason is None:
            in_place = _InPlaceSwitch(old, new, state, files, progress)
            servers = in_place.run(smoke_test=smoke_test)
            _record_switch(state, old, new, files)
            return ReleaseSwitch(
                release=stored.name,
                previous=old.stored.name,
                restarted=None,
                abandoned=in_place.abandoned,
                retained_models=tuple(dict.fromkeys(in_place.unreleased)),
                gap_seconds=sum(in_place.gaps),
                duration_seconds=time.monotonic() - start_time,
                servers=servers,
            )
    progress.note(f"{restart_reason}: restarting the server")
    _restart(project, old, new, state, files, progress)
    return ReleaseSwitch(
        release=stored.name,
        previous=state.release,
        restarted=restart_reason,
        abandoned=0,
        retained_models=(),
        gap_seconds=0.0,
        duration_seconds=time.monotonic() - start_time,
        servers=len(current_servers(running_server(project))),
    )


def _record_switch(
    state: Server, old: DeployedRelease, new: DeployedRelease, files: ServerFiles
) -> None:
    """Record the deployed release. After a rollback, the next rollback goes further back."""
    forward = new.stored.number > old.stored.number
    updated_state = replace(
        state,
        release=new.stored.name,
        previous_release=old.stored.name if forward else "",
        switching_to="",
        models=new.plan.model_names,
    )
    write_state(files, updated_state)
    if isinstance(state, EmbeddedServer):
        with as_host_error(files.log), files.log.open("a", encoding="utf-8") as log:
            log.write(f"tritonctl: serves release {new.stored.name} now\n")


def _restart_reason(
    old: DeployedRelease | None,
    new: DeployedRelease,
    state: Server,
    files: ServerFiles,
    progress: Progress,
) -> str | None:
    """Return why the running server cannot switch in place; None if it can."""
    if old is None:
        return f"the deployed release {state.release} is no longer stored"
    if {*old.plan.owners.values()} != {*new.plan.owners.values()}:
        return "the releases have different models"
    try:
        for name in new.owners:
            refuse_other_server(new.project, new.plan, state, files, name, progress)
    except ServerError as error:
        return error.problem
    return None


def _restart(
    project: Project,
    old: DeployedRelease | None,
    new: DeployedRelease,
    state: Server,
    files: ServerFiles,
    progress: Progress,
) -> None:
    """Stop the server and start it with the new release, or with the old one if that fails."""
    stop_servers(project, stable_slot(project), progress)
    new.publish()
    try:
        server, _ = start(new.project, new.rendered, progress)
    except TritonctlError as error:
        if old is None:
            raise
        old.publish()
        start(old.project, old.rendered, progress)
        raise _with_outcome(error, f"release {old.stored.name} is deployed again") from error
    forward = old is not None and new.stored.number > old.stored.number
    previous = state.release if forward else ""
    write_state(files, replace(server, previous_release=previous))


class _InPlaceSwitch:
    """An in-place switch of every server of a deployment."""

    def __init__(
        self,
        old: DeployedRelease,
        new: DeployedRelease,
        state: Server,
        files: ServerFiles,
        progress: Progress,
    ) -> None:
        self._old, self._new = old, new
        self._state, self._files, self._progress = state, files, progress
        self._started_swaps: list[tuple[Server, str]] = []
        self.abandoned = 0
        self.unreleased: list[str] = []
        self.gaps: list[float] = []

    def run(self, *, smoke_test: bool) -> int:
        """Switch every model on every server; roll back on failure. Return the server count."""
        servers = current_servers(self._state)
        write_state(self._files, replace(self._state, switching_to=self._new.stored.name))
        try:
            for server in servers:
                for name in self._new.owners:
                    self._started_swaps.append((server, name))
                    self._swap_model(self._new, server, name, smoke_test=smoke_test)
            self._new.publish()
            for server in servers:
                self._reload_handwritten(self._new, server, smoke_test=smoke_test)
        except BaseException as error:
            self._roll_back(servers, error)
            raise
        return len(servers)

    def _swap_model(
        self, release: DeployedRelease, server: Server, name: str, *, smoke_test: bool
    ) -> None:
        advice = _advice(release)
        with ModelControl(server.endpoint, advice) as control, control.timing_gaps(name) as gaps:
            swap = ModelSwap(
                release.project,
                name,
                release.plan,
                server,
                self._files,
                control,
                self._progress,
                release.publish,
            )
            _, _, abandoned = swap.run(smoke_test=smoke_test)
        self.abandoned += abandoned
        self.unreleased += swap.unreleased
        self.gaps.append(sum(gaps))

    def _reload_handwritten(
        self, release: DeployedRelease, server: Server, *, smoke_test: bool
    ) -> None:
        """Reload the handwritten models whose files differ."""
        old_models = {model.name: model for model in self._old.plan.handwritten}
        for model in release.plan.handwritten:
            if self._old.file_digests(old_models[model.name]) == self._new.file_digests(model):
                continue
            with ModelControl(server.endpoint, _advice(release)) as control:
                reload_handwritten(
                    release.project, model, server, control, self._progress, smoke_test=smoke_test
                )

    def _roll_back(self, servers: Sequence[Server], error: BaseException) -> None:
        """Restore the old release on every started server; the caller raises the error."""
        old_release = self._old.stored.name
        if len(self._started_swaps) <= 1 and self._old.link.readlink().name == old_release:
            self._started_swaps.clear()  # the failed server still serves the old release
        remedy = f"`tritonctl down`, then `tritonctl up --release {self._old.stored.number}`"
        self._old.publish()
        try:
            for server, name in reversed(self._started_swaps):
                self._swap_model(self._old, server, name, smoke_test=False)
            for server in servers:
                self._reload_handwritten(self._old, server, smoke_test=False)
        except TritonctlError as failure:
            raise ServerError(
                f"{_problem_text(error)}\n"
                f"and rolling back to release {old_release} failed: {failure.problem}",
                remedy=remedy,
                details=failure.details,
            ) from error
        write_state(self._files, self._state)
        if isinstance(error, TritonctlError):
            raise _with_outcome(error, f"release {old_release} stays deployed") from error


def _problem_text(error: BaseException) -> str:
    return error.problem if isinstance(error, TritonctlError) else str(error) or "interrupted"


def _with_outcome(error: TritonctlError, outcome: str) -> ServerError:
    """Return the same failure, extended by what is deployed now."""
    return ServerError(f"{error.problem}\n{outcome}", remedy=error.remedy, details=error.details)


def _advice(release: DeployedRelease) -> Advice:
    return Advice(
        "see `tritonctl status` and `tritonctl logs`; once the server answers, run "
        f"`tritonctl releases rollback {release.stored.number}`"
    )
