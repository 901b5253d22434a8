# SPDX-License-Identifier: Apache-2.0
"""Serves a release: a server starts with it, or the running one takes it in place of another.

In place as `reload` does it, model by model, no request lost; where the release needs another
server (other Python packages, other models, more memory), the server is started again. A failure
leads back to the release that was served. Nothing is built.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tritonctl.errors import ServerError, TritonctlError, UsageError
from tritonctl.host.files import exclusive, explained
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.error_map import Advice
from tritonctl.protocol.model_control import ModelControl
from tritonctl.releases.pruning import Pruning, plan_pruning, prune
from tritonctl.releases.store import Stored, already_served, find_release, stored_releases
from tritonctl.server.groups import group, make_stable, refuse_during_rollout, warm_slot
from tritonctl.server.lifecycle import require_machine, running_server, start, stop_servers
from tritonctl.server.model_swap import ModelSwap
from tritonctl.server.presence import current_server, current_servers
from tritonctl.server.reload import refuse_other_server
from tritonctl.server.reload_handwritten import reload_handwritten
from tritonctl.server.served_release import ServedRelease, serving
from tritonctl.server.slots import Slot, stable_slot
from tritonctl.server.state import EmbeddedServer, Server, ServerFiles, read_state, write_state


@dataclass(frozen=True)
class Switched:
    """What serving another release took.

    `restarted`: why the server had to be started again; None: it went on serving. `abandoned`:
    streams of the old one that did not end in time. `held`: models that Triton keeps in memory
    until it ends. `gap_seconds`: the time without each model, added up.
    """

    release: str
    previous: str
    restarted: str | None
    abandoned: int
    held: tuple[str, ...]
    gap_seconds: float
    seconds: float
    servers: int


def serve_release(
    project: Project, address: str, progress: Progress, *, ask: bool = True
) -> tuple[Server, bool, Switched | None]:
    """Start a server with the release; a running one that serves another takes it.

    Returns the server, whether this call started it, and what switching took. Raises UsageError
    for an unknown release, RepositoryError for one that is not as it was published, ServerError.
    """
    with serving(project, progress):
        stored = find_release(stored_releases(project), address)
        state = current_server(ServerFiles.of(project))
        if state is not None and state.release and not _is_served(state, stored):
            done = _switch(project, state, stored, progress, ask=ask)
            return running_server(project), False, done
        served = ServedRelease.of(project, stored, progress)
        require_machine(served.project)
        if state is None:
            served.publish()
        server, started = start(served.project, served.rendered, progress)
        return server, started, None


def rollback(
    project: Project, address: str | None, progress: Progress, *, ask: bool = True
) -> Switched:
    """Let the running server serve an older release, or any other that is named.

    Without an address the one that it served before, else the parent of the one it serves. Raises
    as `serve_release`.
    """
    with serving(project, progress):
        state = running_server(project)
        releases = stored_releases(project)
        if not state.release:
            raise ServerError(
                "the running server serves what was rendered last, no release",
                remedy="`tritonctl down`, then `tritonctl up --release N`; "
                "`tritonctl releases list` shows them",
            )
        stored = find_release(releases, address or _before(state, releases))
        if _is_served(state, stored):
            raise already_served(stored)
        if (slot := warm_slot(project, stored)) is not None:
            return _changed_slots(project, slot, state, stored)
        return _switch(project, state, stored, progress, ask=ask)


def prune_releases(
    project: Project, chosen: Collection[str] | None, keep: int, progress: Progress
) -> Pruning:
    """Remove the chosen releases that nobody needs; None: only say which could go.

    The served one stays, and what a rollback leads to. Raises HostError.
    """
    with serving(project, progress):
        state = read_state(ServerFiles.of(project))
        needed: set[str] = set()
        if state is not None:
            before = release_before(state, stored_releases(project))
            needed = {state.release, state.previous_release, state.switching_to, before or ""}
        other = group(project, stable_slot(project).other)
        needed |= {other.release} if other else set()
        if chosen is None:
            return plan_pruning(project, keep, needed)
        return prune(project, chosen, keep, needed, progress)


def release_before(state: Server, releases: Sequence[Stored]) -> str | None:
    """The name of the release that a rollback leads to, as far as it is kept."""
    served = next((one for one in releases if one.name == state.release), None)
    parent = served.release.parent if served and served.release else None
    names = {one.name for one in releases}
    return next((name for name in (state.previous_release, parent) if name in names), None)


def _before(state: Server, releases: Sequence[Stored]) -> str:
    name = release_before(state, releases)
    if name is None:
        raise UsageError(
            f"no release before {state.release} is kept",
            remedy="name one: `tritonctl releases list` shows them",
        )
    return name


def _is_served(state: Server, stored: Stored) -> bool:
    """Whether all of the server is that release."""
    return state.release == stored.name and not state.switching_to


def _changed_slots(project: Project, slot: Slot, state: Server, stored: Stored) -> Switched:
    """The other group of servers has the release loaded: only the gateway's routes change."""
    began = time.monotonic()
    refuse_during_rollout(project)
    make_stable(project, slot)
    return Switched(
        release=stored.name,
        previous=state.release,
        restarted=None,
        abandoned=0,
        held=(),
        gap_seconds=0.0,
        seconds=time.monotonic() - began,
        servers=1,
    )


def _switch(
    project: Project, state: Server, stored: Stored, progress: Progress, *, ask: bool
) -> Switched:
    refuse_during_rollout(project)
    began, files = time.monotonic(), ServerFiles.of(project)
    kept = {one.name: one for one in stored_releases(project) if one.release}
    old = ServedRelease.served(project, kept[state.release]) if state.release in kept else None
    new = ServedRelease.of(project, stored, progress)
    with exclusive(files.lock, progress, "start, stop or reload the server"):
        state = running_server(project)
        why = _needs_another_server(old, new, state, files, progress)
        if old is not None and why is None:
            work = _InPlace(old, new, state, files, progress)
            servers = work.run(ask=ask)
            _record(state, old, new, files)
            return Switched(
                release=stored.name,
                previous=old.stored.name,
                restarted=None,
                abandoned=work.abandoned,
                held=tuple(dict.fromkeys(work.held)),
                gap_seconds=sum(work.gaps),
                seconds=time.monotonic() - began,
                servers=servers,
            )
    progress.note(f"{why}: the server is started again")
    _restart(project, old, new, state, files, progress)
    return Switched(
        release=stored.name,
        previous=state.release,
        restarted=why,
        abandoned=0,
        held=(),
        gap_seconds=0.0,
        seconds=time.monotonic() - began,
        servers=len(current_servers(running_server(project))),
    )


def _record(state: Server, old: ServedRelease, new: ServedRelease, files: ServerFiles) -> None:
    """What is served now. Going back forgets the newer one: the next step back goes further."""
    forward = new.stored.number > old.stored.number
    done = replace(
        state,
        release=new.stored.name,
        previous_release=old.stored.name if forward else "",
        switching_to="",
        models=new.plan.served,
    )
    write_state(files, done)
    if isinstance(state, EmbeddedServer):
        with explained(files.log), files.log.open("a", encoding="utf-8") as log:
            log.write(f"tritonctl: serves release {new.stored.name} now\n")


def _needs_another_server(
    old: ServedRelease | None,
    new: ServedRelease,
    state: Server,
    files: ServerFiles,
    progress: Progress,
) -> str | None:
    """Why the running server cannot take the release in place; None where it can."""
    if old is None:
        return f"release {state.release}, which is served, is gone"
    if {*old.plan.owners.values()} != {*new.plan.owners.values()}:
        return "the releases have other models"
    try:
        for name in new.owners:
            refuse_other_server(new.project, new.plan, state, files, name, progress)
    except ServerError as error:
        return error.problem
    return None


def _restart(
    project: Project,
    old: ServedRelease | None,
    new: ServedRelease,
    state: Server,
    files: ServerFiles,
    progress: Progress,
) -> None:
    """End the server, start one with the new release; with the old one again if that fails."""
    stop_servers(project, stable_slot(project), progress)
    new.publish()
    try:
        server, _ = start(new.project, new.rendered, progress)
    except TritonctlError as error:
        if old is None:
            raise
        old.publish()
        start(old.project, old.rendered, progress)
        raise _still(error, f"release {old.stored.name} is served again") from error
    forward = old is not None and new.stored.number > old.stored.number
    previous = state.release if forward else ""
    write_state(files, replace(server, previous_release=previous))


class _InPlace:
    """A switch under way, on every server of a deployment."""

    def __init__(
        self,
        old: ServedRelease,
        new: ServedRelease,
        state: Server,
        files: ServerFiles,
        progress: Progress,
    ) -> None:
        self._old, self._new = old, new
        self._state, self._files, self._progress = state, files, progress
        self._begun: list[tuple[Server, str]] = []
        self.abandoned = 0
        self.held: list[str] = []
        self.gaps: list[float] = []

    def run(self, *, ask: bool) -> int:
        """Every model on every server; back to the old release if one fails. Returns how many."""
        servers = current_servers(self._state)
        write_state(self._files, replace(self._state, switching_to=self._new.stored.name))
        try:
            for server in servers:
                for name in self._new.owners:
                    self._begun.append((server, name))
                    self._take(self._new, server, name, ask=ask)
            self._new.publish()
            for server in servers:
                self._by_hand(self._new, server, ask=ask)
        except BaseException as error:
            self._back(servers, error)
            raise
        return len(servers)

    def _take(self, release: ServedRelease, server: Server, name: str, *, ask: bool) -> None:
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
            _, _, abandoned = swap.run(ask=ask)
        self.abandoned += abandoned
        self.held += swap.held
        self.gaps.append(sum(gaps))

    def _by_hand(self, release: ServedRelease, server: Server, *, ask: bool) -> None:
        """Models by hand whose files differ."""
        others = {model.name: model for model in self._old.plan.handwritten}
        for model in release.plan.handwritten:
            if self._old.content_of(others[model.name]) == self._new.content_of(model):
                continue
            with ModelControl(server.endpoint, _advice(release)) as control:
                reload_handwritten(release.project, model, server, control, self._progress, ask=ask)

    def _back(self, servers: Sequence[Server], error: BaseException) -> None:
        """The old release on every server that has begun; what failed is raised by the caller."""
        old = self._old.stored.name
        if len(self._begun) <= 1 and self._old.link.readlink().name == old:
            self._begun.clear()  # the one that failed serves what it served
        again = f"`tritonctl down`, then `tritonctl up --release {self._old.stored.number}`"
        self._old.publish()
        try:
            for server, name in reversed(self._begun):
                self._take(self._old, server, name, ask=False)
            for server in servers:
                self._by_hand(self._old, server, ask=False)
        except TritonctlError as failure:
            raise ServerError(
                f"{_problem(error)}\nand the way back to release {old} failed: {failure.problem}",
                remedy=again,
                details=failure.details,
            ) from error
        write_state(self._files, self._state)
        if isinstance(error, TritonctlError):
            raise _still(error, f"release {old} goes on serving") from error


def _problem(error: BaseException) -> str:
    return error.problem if isinstance(error, TritonctlError) else str(error) or "interrupted"


def _still(error: TritonctlError, what: str) -> ServerError:
    """The failure, and what is served all the same."""
    return ServerError(f"{error.problem}\n{what}", remedy=error.remedy, details=error.details)


def _advice(release: ServedRelease) -> Advice:
    return Advice(
        "look at `tritonctl status` and `tritonctl logs`; once the server answers, run "
        f"`tritonctl rollback {release.stored.number}`"
    )
