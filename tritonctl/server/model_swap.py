# SPDX-License-Identifier: Apache-2.0
"""Takes a model's new version into one running server; no request is lost.

    load it beside the served one → smoke request → switch the ensemble → the old version's streams
    finish → unload it → the same files under their own names → switch back → unload those beside

A failure before the first switch leaves the old version serving, a later one the new version. Why
so: decision 14.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tritonctl.errors import ServerError, SettingsRefusedError, TritonctlError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.metrics import Metrics, scrape
from tritonctl.protocol.model_config import all_steps, is_decoupled
from tritonctl.protocol.model_control import ModelControl
from tritonctl.repository import standby
from tritonctl.repository.ensembles import step_model_name
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import Plan
from tritonctl.repository.publish import compile_python
from tritonctl.repository.unary import UNARY
from tritonctl.server.smoke.single_request import Smoke, smoke
from tritonctl.server.state import Server, ServerFiles

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


class ModelSwap:
    """One model's new version on its way into one server.

    publish: puts the new version where the server looks for it under its own names, and says where
    that is.
    """

    def __init__(
        self,
        project: Project,
        name: str,
        plan: Plan,
        state: Server,
        files: ServerFiles,
        control: ModelControl,
        progress: Progress,
        publish: Callable[[], Path],
    ) -> None:
        self._project = project
        self._name = name
        self._state = state
        self._beside = files.beside
        self._control = control
        self._progress = progress
        self._publish = publish
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
            raise kept(error, f"the new version of {self._name}, from {self._beside},") from error
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
                raise kept(error, f"the version of {self._name} that was served before") from error
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
        """Publish, then load what is in the repository under its own names."""
        repository = self._publish()
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


def kept(error: TritonctlError, what: str) -> ServerError:
    """The same failure, and what serves all the same."""
    return ServerError(
        f"{error.problem}\n{what} goes on serving", remedy=error.remedy, details=error.details
    )
