# SPDX-License-Identifier: Apache-2.0
"""Reload a model's new version on every running server; no request is lost.

`model_swap` shows the steps. Afterwards server and repository are as after `tritonctl up`. A
failure before the first switch leaves the old version serving, a later failure the new version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tritonctl.engines.artefacts.store import read_artefact
from tritonctl.errors import ServerError, TritonctlError
from tritonctl.host.files import exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.error_map import Advice
from tritonctl.protocol.metrics import scrape
from tritonctl.protocol.model_control import ModelControl
from tritonctl.repository.choice import handwritten_by_name
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.publish import render
from tritonctl.runtimes.discovery import current_servers
from tritonctl.runtimes.docker.capacity import missing_cache_error, refuse_other_container
from tritonctl.runtimes.embedded.imports import refuse_missing_imports
from tritonctl.runtimes.embedded.installation import install_server
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.runtimes.measurement_locks import refuse_during_tuning
from tritonctl.runtimes.model_swap import ModelSwap, with_serving_version
from tritonctl.runtimes.reload_handwritten import reload_handwritten
from tritonctl.runtimes.reload_memory import refuse_low_gpu_memory, refuse_low_host_memory
from tritonctl.runtimes.server_arguments import has_response_cache
from tritonctl.runtimes.server_state import ContainerServer, Server, ServerFiles, write_state
from tritonctl.smoke.single_request import SmokeResult
from tritonctl.store.entries import require_unchanged


@dataclass(frozen=True)
class ReloadResult:
    """The result of a reload."""

    model: str
    fingerprint: str | None  # of the engine; None for a handwritten model
    loaded: tuple[str, ...]
    unloaded: tuple[str, ...]
    smoke: SmokeResult | None
    abandoned: int  # streams of the old version that did not end in time
    retained_models: tuple[str, ...]  # in Triton until it exits, for requests it has lost
    gap_seconds: float
    duration_seconds: float
    servers: int


def reload(
    project: Project, name: str, progress: Progress, *, smoke_test: bool = True
) -> ReloadResult:
    """Deploy a model's latest build on the running servers, by default after a smoke request.

    Raises ServerError if no server runs, or if the new version does not load or answer: the old
    version then keeps serving. Raises RepositoryError if the engine is not built.
    """
    handwritten = handwritten_by_name(project, [name]).get(name)
    start_time = time.monotonic()
    files = ServerFiles.of(project)
    refuse_during_tuning(project)
    with exclusive(files.lock, progress, "start, stop or reload the server"):
        state = running_server(project)
        if state.release:
            raise ServerError(
                f"the running server serves release {state.release}, and releases never change",
                remedy="publish the build and deploy it: `tritonctl releases publish`, "
                "`tritonctl up --release latest`",
            )
        if not {*project.public} <= {*state.models}:  # it serves a selection of models
            project = project.only({*state.models, name})
        plan = plan_repository(project)
        refuse_other_server(project, plan, state, files, name, progress)
        artefact = plan.artefacts.get(name)
        if artefact is not None:
            require_unchanged(read_artefact(artefact.folder), progress)
        reloads = _reload_each(
            current_servers(state),
            lambda server: _reload_server(
                project, name, plan, server, progress, handwritten, smoke_test=smoke_test
            ),
        )
        unloaded = list(dict.fromkeys(model for each in reloads for model in each.unloaded))
        loaded = [model for model, owner in plan.owners.items() if owner == name]
        live_models = {*state.models} - {*unloaded} | {*loaded}
        write_state(files, replace(state, models=sorted(live_models)))
    return ReloadResult(
        model=name,
        fingerprint=artefact.manifest.fingerprint if artefact else None,
        loaded=tuple(loaded),
        unloaded=tuple(unloaded),
        smoke=reloads[-1].smoke,
        abandoned=sum(each.abandoned for each in reloads),
        retained_models=tuple(
            dict.fromkeys(model for each in reloads for model in each.retained_models)
        ),
        gap_seconds=sum(each.gap_seconds for each in reloads),
        duration_seconds=time.monotonic() - start_time,
        servers=len(reloads),
    )


@dataclass(frozen=True)
class _ServerReload:
    """The result of a reload on one server."""

    smoke: SmokeResult | None
    unloaded: Sequence[str]
    abandoned: int
    retained_models: Sequence[str]
    gap_seconds: float


def _reload_each(
    servers: Sequence[Server], reload_server: Callable[[Server], _ServerReload]
) -> list[_ServerReload]:
    """Reload one server at a time, so that only one holds two versions in memory."""
    reloads: list[_ServerReload] = []
    for server in servers:
        try:
            reloads.append(reload_server(server))
        except TritonctlError as error:
            if not reloads:
                raise
            raise ServerError(
                f"{error.problem}\n{len(reloads)} of {len(servers)} servers serve the new version",
                remedy=f"{error.remedy}; then reload again",
                details=error.details,
            ) from error
    return reloads


def _reload_server(
    project: Project,
    name: str,
    plan: RepositoryPlan,
    state: Server,
    progress: Progress,
    handwritten: HandwrittenModel | None,
    *,
    smoke_test: bool,
) -> _ServerReload:
    advice = Advice(
        "see `tritonctl status` and `tritonctl logs`; once the server answers, run "
        f"`tritonctl reload {name}` again"
    )
    with ModelControl(state.endpoint, advice) as control, control.timing_gaps(name) as gaps:
        if handwritten is not None:
            try:
                smoke_result = reload_handwritten(
                    project, handwritten, state, control, progress, smoke_test=smoke_test
                )
            except ServerError as error:
                if control.ready(name):
                    raise with_serving_version(error, f"the previous version of {name}") from error
                raise
            return _ServerReload(smoke_result, (), 0, (), sum(gaps))
        refuse_low_gpu_memory(project, plan, name, partial(scrape, state.metrics_url))
        files = ServerFiles.of(project)
        publish = partial(_publish, project, plan, progress)
        swap = ModelSwap(project, name, plan, state, files, control, progress, publish)
        smoke_result, unloaded, abandoned = swap.run(smoke_test=smoke_test)
    return _ServerReload(smoke_result, unloaded, abandoned, swap.unreleased, sum(gaps))


def _publish(project: Project, plan: RepositoryPlan, progress: Progress) -> Path:
    return render(project, progress, plan.artefacts).repository


def refuse_other_server(
    project: Project,
    plan: RepositoryPlan,
    state: Server,
    files: ServerFiles,
    name: str,
    progress: Progress,
) -> None:
    """Raise ServerError if the model's version needs another server: a reload swaps models only."""
    restart_remedy = "run `tritonctl down`, then `tritonctl up`"
    if name in project.public and name not in state.models:
        raise ServerError(f"the running server does not serve {name}", remedy=restart_remedy)
    if isinstance(state, ContainerServer):
        refuse_other_container(project, plan, state, name)
        return
    refuse_low_host_memory(project, plan, name)
    specification = json.loads(files.specification.read_text(encoding="utf-8"))
    if f"--model-repository={files.standby}" not in specification["argv"]:
        raise ServerError("an older tritonctl started the running server", remedy=restart_remedy)
    if plan.needs_cache_for(name) and not has_response_cache(specification["argv"]):
        raise missing_cache_error(name)
    installation = install_server(plan.programs, progress)
    if str(installation.binary) != specification["argv"][0]:
        raise ServerError(
            f"{name} needs Python packages that the running server lacks", remedy=restart_remedy
        )
    refuse_missing_imports(plan.backends, installation)
