# SPDX-License-Identifier: Apache-2.0
"""Makes settings live on the project's embedded server, then puts it back as it was.

Model control does that where it suffices. Where files of the repository change, too, the server
starts again, on the tuner's own repository. The project's repository is not touched.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tritonctl.errors import ServerError, SettingsRefusedError
from tritonctl.host.files import PRIVATE, write_atomically
from tritonctl.host.progress import Progress, Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.error_map import Advice
from tritonctl.protocol.model_config import Config
from tritonctl.protocol.model_control import ModelControl, Swap, includes, swap
from tritonctl.repository.contents import record_of
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import Plan, plan_repository
from tritonctl.repository.publish import Rendered, render
from tritonctl.server.lifecycle import start, stop
from tritonctl.server.presence import alive, current_server
from tritonctl.server.state import Server, ServerFiles, from_record, to_record, write_state
from tritonctl.tuning.space import Space, overlaid
from tritonctl.tuning.trials import Settings

_REPOSITORY = "repository"
_BEFORE = "server-before.json"
_EXIT_SECONDS = 3
_ENSEMBLE_SECONDS = 2.0
# A step has nothing under way when its settings change; after a cancel it may never unload (2.51).
_STEP_SECONDS = 20.0
_STARTS = 3
_ADVICE = Advice(
    "see `tritonctl status` and `tritonctl logs`; what was measured is kept: "
    "`tritonctl tune --resume` goes on from there"
)


@dataclass(frozen=True)
class Applied:
    """How settings became live. loaded: models, in order. gap_seconds: without the public model."""

    loaded: tuple[str, ...]
    seconds: float
    gap_seconds: float
    restarted: bool


@dataclass(frozen=True)
class _Before:
    """The server that ran before the tuner came, and the configurations that were live on it."""

    state: dict[str, Any]
    configs: Mapping[str, Config]

    @classmethod
    def read(cls, file: Path) -> _Before | None:
        """The record of an earlier tuner that was killed at work; None without one."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


class TunedServer:
    """The server that is tuned; the end of the context puts it back as it was.

    It is the project's running server, or one that is started on free ports and stopped again.
    """

    def __init__(self, space: Space, folder: Path, progress: Progress) -> None:
        self._space = space
        self._folder = folder
        self._progress = progress
        self._configs: dict[str, Config] = {}
        self._files: list[Any] | None = None
        self._state: Server | None = None
        self._before: _Before | None = None
        self._suspect = False

    @property
    def state(self) -> Server:
        """The running server. Raises ServerError when it has ended."""
        if self._state is None or not alive(self._state):
            raise ServerError("the server ended while it was tuned", remedy=_ADVICE.unreachable)
        return self._state

    def __enter__(self) -> Self:
        running = current_server(ServerFiles.of(self._space.project))
        left = _Before.read(self._folder / _BEFORE)
        if running is not None:
            self._take_over(running, left)
        else:
            self._start(self._space.project)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            stop(self._space.project, self._progress)
        else:
            self._put_back(self._before)
        (self._folder / _BEFORE).unlink(missing_ok=True)

    def apply(self, settings: Settings) -> Applied:
        """Make settings live and check that they are.

        Where the running server fails over them, that is noted and a new one takes them. Raises
        ConfigurationError or SettingsRefusedError for impossible settings (the earlier ones are
        then still live, or are loaded by the next call), and ServerError where a new server does
        not serve them either.
        """
        began = time.monotonic()
        project = self._space.tuned(settings)
        plan = plan_repository(project, self._space.artefacts)
        configs = planned_configs(plan)
        if _files(plan) == self._files and not self._suspect and self.alive:
            try:
                with ModelControl(self.state.endpoint, _ADVICE) as control:
                    loaded, gap = self._load(control, configs)
                return Applied(loaded, time.monotonic() - began, gap, restarted=False)
            except SettingsRefusedError:
                raise
            except ServerError as error:
                # tritonserver 2.51 may crash while it swaps a model, or never finish: that says
                # nothing about the settings.
                self._progress.note(f"{error.problem}: a new server starts with these settings")
        self._start(project)
        with ModelControl(self.state.endpoint, _ADVICE) as control:
            for name, config in configs.items():
                _check(control.config(name), config)
        took = time.monotonic() - began
        return Applied((), took, took, restarted=True)

    def fresh(self, settings: Settings) -> None:
        """Make settings live on a fresh server, without traces of earlier settings."""
        self._start(self._space.tuned(settings))

    def distrust(self) -> None:
        """Use a new server for the next settings: tritonserver 2.51 may crash after cancels."""
        self._suspect = True

    @property
    def alive(self) -> bool:
        """Whether the server answers; one that has crashed may hang instead of ending."""
        if self._state is None or not alive(self._state):
            return False
        with ModelControl(self._state.endpoint, _ADVICE) as control:
            return control.live()

    def revive(self) -> None:
        """Start a new server with today's settings in place of one that has died."""
        self._start(self._space.project)

    def _load(
        self, control: ModelControl, configs: Mapping[str, Config]
    ) -> tuple[tuple[str, ...], float]:
        wanted = swap(self._configs, configs)
        if not wanted.load:
            return (), 0.0
        ready = [name for name in wanted.unload if control.ready(name)]
        before = {name: self._configs.get(name) or control.config(name) for name in ready}
        with control.timing_gaps(self._space.model) as gaps:
            try:
                self._swap(control, wanted, configs)
            except SettingsRefusedError:
                # What was unloaded to make room comes back as it was.
                lost = tuple(name for name in wanted.load if name in before)
                self._swap(control, Swap((), lost), before)
                raise
        return wanted.load, sum(gaps)

    def _swap(self, control: ModelControl, wanted: Swap, configs: Mapping[str, Config]) -> None:
        # A model counts as loaded only once that is certain.
        for name in wanted.unload:
            self._configs.pop(name, None)
            if "ensemble_scheduling" in configs[name]:
                # After a failed request it never unloads, and it holds nothing that is needed.
                control.unload(name, _ENSEMBLE_SECONDS)
            elif not control.unload(name, _STEP_SECONDS):
                raise ServerError(f"{name} does not unload", remedy="see `tritonctl logs`")
        for name in wanted.load:
            self._configs.pop(name, None)
            control.load(name, configs[name])
            control.wait_until_ready([name])
            _check(control.config(name), configs[name])
            self._configs[name] = configs[name]
        if wanted.load:
            control.wait_until_ready([self._space.model])

    def _take_over(self, running: Server, left: _Before | None) -> None:
        self._state = running
        plan = plan_repository(self._space.project, self._space.artefacts)
        with ModelControl(running.endpoint, _ADVICE) as control:
            live = {name: control.config(name) for name in running.models}
        if left is not None and left.state.get("pid") == running.pid:
            self._before = left
        else:
            self._before = _Before(to_record(running), live)
            record = json.dumps(self._before.__dict__)  # with the server's token
            write_atomically(self._folder / _BEFORE, record, mode=PRIVATE)
        planned = planned_configs(plan)
        if not planned.keys() <= live.keys():
            raise ServerError(
                "the running server has other models than the project's",
                remedy="run `tritonctl down`; the tuner starts a server itself",
            )
        self._files = _files(plan)
        self._configs = {n: c for n, c in planned.items() if includes(live[n], c)}

    def _start(self, project: Project) -> None:
        """Start a server on the tuner's repository in place of the running one."""
        stop(self._space.project, self._progress)
        ports = self._ports()
        # Only the tuner has streams under way there.
        ports["server"]["exit_timeout_seconds"] = _EXIT_SECONDS
        own = overlaid(project, {"model_repository": str(self._folder / _REPOSITORY), **ports})
        record = record_of(project)  # which is about the project's own repository
        kept = record.read_text(encoding="utf-8") if record.is_file() else None
        rendered = render(own, Silent(), self._space.artefacts)
        if kept is None:
            record.unlink(missing_ok=True)
        else:
            write_atomically(record, kept)
        self._state = self._started(own, rendered)
        self._files, self._configs = _files(rendered.plan), planned_configs(rendered.plan)
        self._suspect = False

    def _started(self, project: Project, rendered: Rendered) -> Server:
        """Start again where another process took a port that was free."""
        for _ in range(_STARTS - 1):
            try:
                return start(project, rendered, self._progress)[0]
            except ServerError as error:
                self._progress.note(f"{error.problem}: trying again")
        return start(project, rendered, self._progress)[0]

    def _ports(self) -> dict[str, Any]:
        """The ports of the server that ran before, or free ones."""
        names = ("grpc_port", "http_port", "metrics_port")
        known = self._before.state if self._before else {}
        ports = {name: known.get(name, 0) for name in names}
        if (readiness := known.get("readiness_port")) is not None:
            ports["readiness_port"] = readiness
        return {"server": {"mode": "embedded", **ports}}

    def _put_back(self, before: _Before) -> None:
        state = from_record(before.state)
        if not alive(state) or self._suspect or not self.alive:
            self._start_as(state)
        try:
            self._swap_back(before.configs)
        except SettingsRefusedError:
            raise
        except ServerError:
            self._start_as(state)
            self._swap_back(before.configs)

    def _start_as(self, state: Server) -> None:
        project = self._space.project
        stop(project, self._progress)
        again = overlaid(project, self._ports())
        self._state = self._started(again, render(project, Silent(), self._space.artefacts))
        # It was started with the settings of `tritonctl up`, which may leave ports open.
        self._state = replace(self._state, settings=state.settings)
        write_state(ServerFiles.of(project), self._state)

    def _swap_back(self, configs: Mapping[str, Config]) -> None:
        with ModelControl(self.state.endpoint, _ADVICE) as control:
            live = {name: control.config(name) for name in configs}
            self._swap(control, swap(live, configs), configs)


def planned_configs(plan: Plan) -> dict[str, Config]:
    """The configuration of each planned model as protobuf's JSON form."""
    return {model.name: parse_pbtxt(model.config) for model in plan.models}


def _files(plan: Plan) -> list[Any]:
    """The models and their files: a loaded model does not see changes of either."""
    return [(model.name, model.files) for model in plan.models]


def _check(live: Config, planned: Config) -> None:
    if not includes(live, planned):
        raise ServerError(
            f"{planned.get('name')} was loaded, but its live configuration is not the planned one",
            remedy="compare `config.pbtxt` with the server's; please report it",
            details=json.dumps({"live": live, "asked": planned}, indent=1)[:4000],
        )
