# SPDX-License-Identifier: Apache-2.0
"""Takes a model's new version into the running server or servers; no request is lost.

    load it beside the served one → smoke request → switch the ensemble → the old version's streams
    finish → unload it → the same files under their own names → switch back → unload those beside

At the end server and repository are as after `tritonctl up`. A failure before the first switch
leaves the old version serving, a later one the new version. Why so: decision 14.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tritonctl.engines.artefacts.store import stored_artefacts, verify_artefact
from tritonctl.engines.build.engine import Artefact
from tritonctl.errors import RepositoryError, ServerError, TritonctlError
from tritonctl.host.files import exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.error_map import Advice
from tritonctl.protocol.model_control import ModelControl
from tritonctl.repository.choice import others_besides
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.plan import Plan, plan_repository
from tritonctl.repository.publish import render
from tritonctl.server.arguments import caches
from tritonctl.server.containers.capacity import lacks_cache, refuse_other_container
from tritonctl.server.embedded.imports import refuse_missing_imports
from tritonctl.server.embedded.installation import install
from tritonctl.server.lifecycle import running_server
from tritonctl.server.model_swap import ModelSwap, kept
from tritonctl.server.presence import current_servers
from tritonctl.server.reload_handwritten import reload_handwritten
from tritonctl.server.smoke.single_request import Smoke
from tritonctl.server.state import ContainerServer, Server, ServerFiles, write_state


@dataclass(frozen=True)
class Reloaded:
    """What a reload did. `abandoned`: streams of the old version that did not end in time.

    `fingerprint`: of the engine; a model that was written by hand has none.
    `held`: models that Triton keeps in memory until it ends, for requests that it has lost.
    """

    model: str
    fingerprint: str | None
    loaded: tuple[str, ...]
    unloaded: tuple[str, ...]
    smoke: Smoke | None
    abandoned: int
    held: tuple[str, ...]
    gap_seconds: float
    seconds: float
    servers: int


def reload(project: Project, name: str, progress: Progress, *, ask: bool = True) -> Reloaded:
    """Serve a model's latest build instead of the running one; `ask`: after a smoke request.

    Raises ServerError when no server runs or the new version does not load or answer: the old one
    then goes on. RepositoryError when the engine is not built.
    """
    by_hand = others_besides(project, [name]).get(name)
    began = time.monotonic()
    files = ServerFiles.of(project)
    with exclusive(files.lock, progress, "start, stop or reload the server"):
        state = running_server(project)
        if state.release:
            raise ServerError(
                f"the running server serves release {state.release}, which never changes",
                remedy="publish what was built, then serve that: `tritonctl release`, "
                "`tritonctl up --release latest`",
            )
        if not {*project.public} <= {*state.models}:  # it serves a choice of models
            project = project.only({*state.models, name})
        plan = plan_repository(project)
        refuse_other_server(project, plan, state, files, name, progress)
        artefact = plan.artefacts.get(name)
        if artefact is not None:
            _refuse_damaged(project, artefact, progress)
        done = _reload_each(
            current_servers(state),
            lambda server: _reload_one(project, name, plan, server, progress, by_hand, ask=ask),
        )
        unloaded = list(dict.fromkeys(model for each in done for model in each.unloaded))
        loaded = [model for model, owner in plan.owners.items() if owner == name]
        served = {*state.models} - {*unloaded} | {*loaded}
        write_state(files, replace(state, models=sorted(served)))
    return Reloaded(
        model=name,
        fingerprint=artefact.manifest.fingerprint if artefact else None,
        loaded=tuple(loaded),
        unloaded=tuple(unloaded),
        smoke=done[-1].smoke,
        abandoned=sum(each.abandoned for each in done),
        held=tuple(dict.fromkeys(model for each in done for model in each.held)),
        gap_seconds=sum(each.gap_seconds for each in done),
        seconds=time.monotonic() - began,
        servers=len(done),
    )


@dataclass(frozen=True)
class _Done:
    """What happened on one server."""

    smoke: Smoke | None
    unloaded: Sequence[str]
    abandoned: int
    held: Sequence[str]
    gap_seconds: float


def _reload_each(servers: Sequence[Server], one: Callable[[Server], _Done]) -> list[_Done]:
    """One server after the other: while one has two versions in memory, the others have one."""
    done: list[_Done] = []
    for server in servers:
        try:
            done.append(one(server))
        except TritonctlError as error:
            if not done:
                raise
            raise ServerError(
                f"{error.problem}\n{len(done)} of {len(servers)} servers serve the new version",
                remedy=f"{error.remedy}; then reload again",
                details=error.details,
            ) from error
    return done


def _reload_one(
    project: Project,
    name: str,
    plan: Plan,
    state: Server,
    progress: Progress,
    by_hand: HandwrittenModel | None,
    *,
    ask: bool,
) -> _Done:
    advice = Advice(
        "look at `tritonctl status` and `tritonctl logs`; once the server answers, run "
        f"`tritonctl reload {name}` again"
    )
    with ModelControl(state.endpoint, advice) as control, control.timing_gaps(name) as gaps:
        if by_hand is not None:
            try:
                asked = reload_handwritten(project, by_hand, state, control, progress, ask=ask)
            except ServerError as error:
                if control.ready(name):
                    raise kept(error, f"the version of {name} that was served before") from error
                raise
            return _Done(asked, (), 0, (), sum(gaps))
        files = ServerFiles.of(project)
        publish = partial(_published, project, plan, progress)
        work = ModelSwap(project, name, plan, state, files, control, progress, publish)
        asked, unloaded, abandoned = work.run(ask=ask)
    return _Done(asked, unloaded, abandoned, work.held, sum(gaps))


def _published(project: Project, plan: Plan, progress: Progress) -> Path:
    return render(project, progress, plan.artefacts).repository


def refuse_other_server(
    project: Project,
    plan: Plan,
    state: Server,
    files: ServerFiles,
    name: str,
    progress: Progress,
) -> None:
    """Raise ServerError where a model's version needs another server: this changes only models."""
    again = "run `tritonctl down`, then `tritonctl up`"
    if name in project.public and name not in state.models:
        raise ServerError(f"the running server does not serve {name}", remedy=again)
    if isinstance(state, ContainerServer):
        refuse_other_container(project, plan, state, name)
        return
    specification = json.loads(files.specification.read_text(encoding="utf-8"))
    if f"--model-repository={files.beside}" not in specification["argv"]:
        raise ServerError("the running server was started by an older tritonctl", remedy=again)
    if plan.caches_of(name) and not caches(specification["argv"]):
        raise lacks_cache(name)
    installation = install(plan.programs, progress)
    if str(installation.binary) != specification["argv"][0]:
        raise ServerError(
            f"{name} needs other Python packages than the running server has", remedy=again
        )
    refuse_missing_imports(plan.backends, installation)


def _refuse_damaged(project: Project, artefact: Artefact, progress: Progress) -> None:
    for stored in stored_artefacts(project):
        if stored.folder == artefact.folder and (findings := verify_artefact(stored, progress)):
            raise RepositoryError(
                f"{stored.name} is not as it was built: {findings[0].path}: {findings[0].detail}",
                remedy=f"build it again: `tritonctl build --force {stored.model}`",
            )
