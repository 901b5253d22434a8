# SPDX-License-Identifier: Apache-2.0
"""Swap a model's new version into one running server; no request is lost.

    load copies of the new version → smoke request → switch the ensemble to the copies → old
    streams finish → unload the old version → load the new version by its real names → switch back
    → unload the copies

A failure before the first switch leaves the old version serving, a later failure the new version.
Decision 14 gives the reasons.
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
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.repository.publish import compile_python
from tritonctl.repository.unary import UNARY
from tritonctl.runtimes.server_state import Server, ServerFiles
from tritonctl.smoke.single_request import SmokeResult, smoke_model

_POLL_SECONDS = 0.25
# Afterwards: a request that Triton has lost keeps the model loaded.
_UNLOAD_SECONDS = 10.0
# Triton publishes metrics every 0.1 s: a single poll could miss a request that has just arrived.
_IDLE_POLLS = 2
_LOAD_METRICS = (
    "tritonctl_active_streams",
    "tritonctl_waiting_streams",
    "nv_inference_pending_request_count",
)


class ModelSwap:
    """Swap of one model to its new version on one server.

    publish: writes the new version into the server's repository and returns the repository.
    """

    def __init__(
        self,
        project: Project,
        name: str,
        plan: RepositoryPlan,
        state: Server,
        files: ServerFiles,
        control: ModelControl,
        progress: Progress,
        publish: Callable[[], Path],
    ) -> None:
        self._project = project
        self._name = name
        self._state = state
        self._standby = files.standby
        self._control = control
        self._progress = progress
        self._publish = publish
        planned = plan.models_of(name)
        self._planned = {model.name: parse_pbtxt(model.config) for model in planned}
        self._tag = uuid.uuid4().hex[:6]
        # Steps that belong to another owner: they are reloaded by their own names.
        self._shared = {model for model, owner in plan.owners.items() if owner != name}
        # Models in front of the ensemble call it by name: they need no copy.
        self._steps = all_steps(name, self._planned)
        ensemble_models = {name, *self._steps}
        self._fronts = [model.name for model in planned if model.name not in ensemble_models]
        self._copies = standby.tag_models(
            [m for m in planned if m.name in ensemble_models], self._tag
        )
        self.unreleased: list[str] = []  # models that Triton does not unload

    def run(self, *, smoke_test: bool) -> tuple[SmokeResult | None, list[str], int]:
        """Return the smoke result, the unloaded models and the number of abandoned streams."""
        old = standby.serving_steps(self._name, self._control.config, self._shared)
        self._unload_leftovers(old)
        with self._loaded_copies():
            smoke_result = self._send_smoke_request() if smoke_test else None
            ensemble = self._planned[self._name]
            if not standby.steps_of(ensemble):  # Triton itself swaps a plain model safely
                self._load_from_repository([])
                return smoke_result, [*dict.fromkeys(old)], self._retire(old) if old else 0
            exclusive_steps = [
                step for step in standby.steps_of(ensemble) if step not in self._shared
            ]
            self._load(self._name, standby.retarget_ensemble(ensemble, exclusive_steps, self._tag))
        abandoned = self._retire(old)
        try:
            self._load_from_repository([step for step in self._planned if step in self._steps])
        except TritonctlError as error:
            raise with_serving_version(
                error, f"the new version of {self._name}, from {self._standby},"
            ) from error
        abandoned += self._retire(
            [copy.name for copy in self._copies if copy.name != self._ensemble_copy]
        )
        self._remove_copies()
        unloaded = [
            step for step in (*old, *self._unload_former_front()) if step not in self._planned
        ]
        return smoke_result, unloaded, abandoned

    def _unload_former_front(self) -> list[str]:
        """Unload and return the unary front model if the project no longer has it."""
        front = step_model_name(self._name, UNARY)
        if front not in self._state.models or front in self._planned:
            return []
        self._unload(front)
        return [front]

    @property
    def _ensemble_copy(self) -> str:
        return f"{self._name}__{self._tag}"

    def _unload_leftovers(self, serving: Collection[str]) -> None:
        """Unload the copies that a killed reload left behind."""
        leftovers = standby.standby_models(self._standby).difference(serving)
        for model in sorted(
            leftovers, key=len
        ):  # ensembles first: their steps' names start with theirs
            self._unload(model)
        standby.remove(leftovers, self._standby)

    @contextmanager
    def _loaded_copies(self) -> Iterator[None]:
        """Load the copies; unload them if the block fails, so that the old version stays."""
        try:
            with self._progress.step(f"Loading the new version of {self._name} on standby"):
                standby.assemble_models(self._copies, self._standby)
                self._load(self._ensemble_copy)  # an ensemble loads all its steps with it
            yield
        except BaseException as error:
            self._remove_copies()
            if isinstance(error, TritonctlError):
                raise with_serving_version(
                    error, f"the previous version of {self._name}"
                ) from error
            raise
        self._unload(self._ensemble_copy)
        standby.remove([self._ensemble_copy], self._standby)

    def _remove_copies(self) -> None:
        names = [copy.name for copy in reversed(self._copies)]
        for name in names:
            self._unload(name)
        standby.remove(names, self._standby)

    def _send_smoke_request(self) -> SmokeResult:
        with self._progress.step(f"Sending a request to the new version of {self._name}"):
            config = self._planned[self._name]
            # Triton marks an ensemble as decoupled if one of its steps is.
            streams = is_decoupled(self._control.config(self._ensemble_copy))
            arguments = self._project, self._name, self._state.endpoint, self._ensemble_copy, config
            return smoke_model(*arguments, streams=streams)

    def _load_from_repository(self, steps: Sequence[str]) -> None:
        """Publish the new version, then load it from the repository by its real names."""
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
            self.unreleased.append(model)

    def _load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        try:
            self._control.load(model, config)
            self._control.wait_until_ready([model])
        except SettingsRefusedError as error:
            raise ServerError(error.problem, remedy="see `tritonctl logs`") from error

    def _retire(self, steps: Sequence[str]) -> int:
        """Unload steps once their streams have ended; return how many streams remained."""
        limit = self._state.exit_timeout_seconds
        with self._progress.step("Waiting for the streams of the old version"):
            remaining = wait_until_idle(self._state.metrics_url, steps, limit)
        for step in reversed(steps):
            self._unload(step)
        standby.remove([s for s in steps if s not in self._planned], self._standby)
        return remaining


def wait_until_idle(
    metrics_url: str,
    steps: Collection[str],
    seconds: float,
    *,
    read_metrics: Callable[[str], Metrics] = scrape,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Wait until these models have no stream and no request; return how many remain."""
    deadline, idle_polls = clock() + seconds, 0
    while True:
        active = active_requests(read_metrics(metrics_url), steps)
        idle_polls = 0 if active else idle_polls + 1
        if idle_polls >= _IDLE_POLLS or clock() > deadline:
            return active
        sleep(_POLL_SECONDS)


def active_requests(metrics: Metrics, steps: Collection[str]) -> int:
    """Count the streams and waiting requests of these models."""
    return int(sum(metrics.total(name, model=step) for name in _LOAD_METRICS for step in steps))


def with_serving_version(error: TritonctlError, version: str) -> ServerError:
    """Return the same failure, extended by the version that still serves."""
    return ServerError(
        f"{error.problem}\n{version} keeps serving", remedy=error.remedy, details=error.details
    )
