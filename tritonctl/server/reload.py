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
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tritonctl.engines.artefacts.store import stored_artefacts, verify_artefact
from tritonctl.engines.build.engine import Artefact
from tritonctl.errors import RepositoryError, ServerError, SettingsRefusedError, TritonctlError
from tritonctl.host.files import exclusive
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.error_map import Advice
from tritonctl.protocol.metrics import Metrics, scrape
from tritonctl.protocol.model_config import all_steps, is_decoupled
from tritonctl.protocol.model_control import ModelControl
from tritonctl.repository import standby
from tritonctl.repository.choice import others_besides
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.repository.ensembles import step_model_name
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import Plan, plan_repository
from tritonctl.repository.publish import compile_python, render
from tritonctl.repository.unary import UNARY
from tritonctl.server.arguments import caches
from tritonctl.server.containers.capacity import lacks_cache, refuse_other_container
from tritonctl.server.embedded.imports import refuse_missing_imports
from tritonctl.server.embedded.installation import install
from tritonctl.server.lifecycle import running_server
from tritonctl.server.presence import current_servers
from tritonctl.server.reload_handwritten import reload_handwritten
from tritonctl.server.smoke.single_request import Smoke, smoke
from tritonctl.server.state import ContainerServer, Server, ServerFiles, write_state

_LOOK_SECONDS = 0.25
# Beyond: a request that Triton has lost holds the model.
_UNLOAD_SECONDS = 10.0
# Metrics are published every tenth of a second: one look could miss a request that just came.
_QUIET_LOOKS = 2
_BUSY = (
    "tritonctl_active_streams",
    "tritonctl_waiting_streams",
    "nv_inference_pending_request_count",
)


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
        if not {*project.public} <= {*state.models}:  # it serves a choice of models
            project = project.only({*state.models, name})
        plan = plan_repository(project)
        _refuse_other_server(project, plan, state, files, name, progress)
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
                    raise _kept(error, f"the version of {name} that was served before") from error
                raise
            return _Done(asked, (), 0, (), sum(gaps))
        files = ServerFiles.of(project)
        work = _Reload(project, name, plan, state, files, control, progress)
        asked, unloaded, abandoned = work.run(ask=ask)
    return _Done(asked, unloaded, abandoned, work.held, sum(gaps))


def _refuse_other_server(
    project: Project,
    plan: Plan,
    state: Server,
    files: ServerFiles,
    name: str,
    progress: Progress,
) -> None:
    """Raise ServerError where the version needs another server: a reload changes only a model."""
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


class _Reload:
    """One reload under way."""

    def __init__(
        self,
        project: Project,
        name: str,
        plan: Plan,
        state: Server,
        files: ServerFiles,
        control: ModelControl,
        progress: Progress,
    ) -> None:
        self._project = project
        self._name = name
        self._state = state
        self._beside = files.beside
        self._control = control
        self._progress = progress
        self._artefacts = plan.artefacts
        planned = plan.models_of(name)
        self._planned = {model.name: parse_pbtxt(model.config) for model in planned}
        self._tag = uuid.uuid4().hex[:6]
        # Steps that are models of their own: they are reloaded by their own names.
        self._shared = {model for model, owner in plan.owners.items() if owner != name}
        # What stands in front of the ensemble asks it by its name: it needs no copy.
        self._steps = all_steps(name, self._planned)
        within = {name, *self._steps}
        self._fronts = [model.name for model in planned if model.name not in within]
        self._copies = standby.renamed([m for m in planned if m.name in within], self._tag)
        self.held: list[str] = []  # what Triton does not let go of

    def run(self, *, ask: bool) -> tuple[Smoke | None, list[str], int]:
        """The smoke request, what was unloaded, the old version's streams that were not awaited."""
        old = standby.serving_steps(self._name, self._control.config, self._shared)
        self._sweep(old)
        with self._new_version_beside():
            answer = self._smoke() if ask else None
            ensemble = self._planned[self._name]
            if not standby.steps_of(ensemble):  # Triton swaps a model that is no ensemble well
                self._from_repository([])
                return answer, [*dict.fromkeys(old)], self._retire(old) if old else 0
            own = [step for step in standby.steps_of(ensemble) if step not in self._shared]
            self._load(self._name, standby.rewired(ensemble, own, self._tag))
        abandoned = self._retire(old)
        try:
            self._from_repository([step for step in self._planned if step in self._steps])
        except TritonctlError as error:
            raise _kept(error, f"the new version of {self._name}, from {self._beside},") from error
        abandoned += self._retire([copy.name for copy in self._copies if copy.name != self._copy])
        self._remove_copies()
        gone = [step for step in (*old, *self._former_front()) if step not in self._planned]
        return answer, gone, abandoned

    def _former_front(self) -> list[str]:
        """The model that answers once, if the project has it no more; unloaded."""
        front = step_model_name(self._name, UNARY)
        if front not in self._state.models or front in self._planned:
            return []
        self._unload(front)
        return [front]

    @property
    def _copy(self) -> str:
        return f"{self._name}__{self._tag}"

    def _sweep(self, serving: Collection[str]) -> None:
        """Unload what a killed reload left behind."""
        left = standby.names_in(self._beside).difference(serving)
        for model in sorted(left, key=len):  # the ensemble's name is the beginning of its steps'
            self._unload(model)
        standby.remove(left, self._beside)

    @contextmanager
    def _new_version_beside(self) -> Iterator[None]:
        """The copies loaded; unloaded again if what follows fails: the old version stays."""
        try:
            with self._progress.step(f"Loading {self._name} beside the served version"):
                standby.place(self._copies, self._beside)
                self._load(self._copy)  # and with an ensemble its steps, all at a time
            yield
        except BaseException as error:
            self._remove_copies()
            if isinstance(error, TritonctlError):
                raise _kept(error, f"the version of {self._name} that was served before") from error
            raise
        self._unload(self._copy)
        standby.remove([self._copy], self._beside)

    def _remove_copies(self) -> None:
        names = [copy.name for copy in reversed(self._copies)]
        for name in names:
            self._unload(name)
        standby.remove(names, self._beside)

    def _smoke(self) -> Smoke:
        with self._progress.step(f"Asking the new version of {self._name}"):
            config = self._planned[self._name]
            # Of an ensemble, Triton knows whether one of its steps does.
            streams = is_decoupled(self._control.config(self._copy))
            asked = self._project, self._name, self._state.endpoint, self._copy, config
            return smoke(*asked, streams=streams)

    def _from_repository(self, steps: Sequence[str]) -> None:
        """Render, then load what is in the repository under its own names."""
        repository = render(self._project, self._progress, self._artefacts).repository
        compile_python(repository / model for model in self._planned)
        with self._progress.step(f"Loading {self._name} from the repository"):
            for step in steps:
                self._load(step)
            self._load(self._name, self._planned[self._name])
            for front in self._fronts:
                self._load(front)

    def _unload(self, model: str) -> None:
        if not self._control.unload(model, _UNLOAD_SECONDS):
            self.held.append(model)

    def _load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        try:
            self._control.load(model, config)
            self._control.wait_until_ready([model])
        except SettingsRefusedError as error:
            raise ServerError(error.problem, remedy="see `tritonctl logs`") from error

    def _retire(self, steps: Sequence[str]) -> int:
        """Unload steps that get no more requests, once their streams have ended."""
        limit = self._state.exit_timeout_seconds
        with self._progress.step("Waiting for the streams of the old version"):
            left = wait_until_quiet(self._state.metrics_url, steps, limit)
        for step in reversed(steps):
            self._unload(step)
        standby.remove([s for s in steps if s not in self._planned], self._beside)
        return left


def wait_until_quiet(
    metrics_url: str,
    steps: Collection[str],
    seconds: float,
    *,
    read: Callable[[str], Metrics] = scrape,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Wait until these models have no stream and no request; returns how many are left."""
    deadline, looks = clock() + seconds, 0
    while True:
        busy = under_way(read(metrics_url), steps)
        looks = 0 if busy else looks + 1
        if looks >= _QUIET_LOOKS or clock() > deadline:
            return busy
        sleep(_LOOK_SECONDS)


def under_way(metrics: Metrics, steps: Collection[str]) -> int:
    """Streams and waiting requests of these models."""
    return int(sum(metrics.total(name, model=step) for name in _BUSY for step in steps))


def _kept(error: TritonctlError, what: str) -> ServerError:
    return ServerError(
        f"{error.problem}\n{what} goes on serving", remedy=error.remedy, details=error.details
    )
