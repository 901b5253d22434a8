# SPDX-License-Identifier: Apache-2.0
"""Apply settings to the project's embedded server, then restore it.

Model control applies settings when it suffices. If repository files change, too, the server
restarts on the tuner's own repository. The project's repository stays unchanged.
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
from tritonctl.repository.contents import render_record
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.publish import RenderedRepository, render
from tritonctl.runtimes.discovery import current_server, is_running
from tritonctl.runtimes.lifecycle import start, stop
from tritonctl.runtimes.server_state import Server, ServerFiles, from_record, to_record, write_state
from tritonctl.tuning.space import SearchSpace, overlay_project
from tritonctl.tuning.trials import Settings

_REPOSITORY = "repository"
_ORIGINAL_SERVER = "server-before.json"
_EXIT_SECONDS = 3
_ENSEMBLE_SECONDS = 2.0
# A step is idle when its settings change; after a cancel it may never unload (2.51).
_STEP_SECONDS = 20.0
_START_ATTEMPTS = 3
_ADVICE = Advice(
    "see `tritonctl status` and `tritonctl logs`; finished trials are kept: "
    "`tritonctl tune --resume` continues from them"
)


@dataclass(frozen=True)
class AppliedSettings:
    """How settings became live."""

    loaded: tuple[str, ...]  # models, in order
    seconds: float
    gap_seconds: float  # without the public model
    restarted: bool


@dataclass(frozen=True)
class _OriginalServer:
    """The server that ran before tuning, and its live configurations."""

    state: dict[str, Any]
    configs: Mapping[str, Config]

    @classmethod
    def read(cls, file: Path) -> _OriginalServer | None:
        """Read the record of an earlier, killed tuner; None without one."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


class TunedServer:
    """The server under tuning; leaving the context restores it.

    It is the project's running server, or a temporary one on free ports.
    """

    def __init__(self, space: SearchSpace, folder: Path, progress: Progress) -> None:
        self._space = space
        self._folder = folder
        self._progress = progress
        self._configs: dict[str, Config] = {}
        self._files: list[Any] | None = None
        self._state: Server | None = None
        self._original: _OriginalServer | None = None
        self._is_suspect = False

    @property
    def state(self) -> Server:
        """The running server. Raises ServerError if it has exited."""
        if self._state is None or not is_running(self._state):
            raise ServerError("the server exited during tuning", remedy=_ADVICE.unreachable)
        return self._state

    def __enter__(self) -> Self:
        running = current_server(ServerFiles.of(self._space.project))
        leftover = _OriginalServer.read(self._folder / _ORIGINAL_SERVER)
        if running is not None:
            self._take_over(running, leftover)
        else:
            self._start(self._space.project)
        return self

    def __exit__(self, *_: object) -> None:
        if self._original is None:
            stop(self._space.project, self._progress)
        else:
            self._restore(self._original)
        (self._folder / _ORIGINAL_SERVER).unlink(missing_ok=True)

    def apply(self, settings: Settings) -> AppliedSettings:
        """Apply settings and verify them.

        If the running server fails with them, note it and start a new server. Raises
        ConfigurationError or SettingsRefusedError for impossible settings (the earlier ones stay
        live, or the next call loads them), and ServerError if a new server fails, too.
        """
        started_at = time.monotonic()
        project = self._space.tuned_project(settings)
        plan = plan_repository(project, self._space.artefacts)
        configs = planned_configs(plan)
        if _model_files(plan) == self._files and not self._is_suspect and self.is_alive:
            try:
                with ModelControl(self.state.endpoint, _ADVICE) as control:
                    loaded, gap = self._load(control, configs)
                return AppliedSettings(loaded, time.monotonic() - started_at, gap, restarted=False)
            except SettingsRefusedError:
                raise
            except ServerError as error:
                # tritonserver 2.51 may crash or hang while it swaps a model, independent of the
                # settings.
                self._progress.note(f"{error.problem}: a new server starts with these settings")
        self._start(project)
        with ModelControl(self.state.endpoint, _ADVICE) as control:
            for name, config in configs.items():
                _check_live_config(control.config(name), config)
        took = time.monotonic() - started_at
        return AppliedSettings((), took, took, restarted=True)

    def start_fresh(self, settings: Settings) -> None:
        """Apply settings on a new server, without traces of earlier settings."""
        self._start(self._space.tuned_project(settings))

    def distrust(self) -> None:
        """Use a new server for the next settings: tritonserver 2.51 may crash after cancels."""
        self._is_suspect = True

    @property
    def is_alive(self) -> bool:
        """Whether the server answers; a crashed one may hang instead of exiting."""
        if self._state is None or not is_running(self._state):
            return False
        with ModelControl(self._state.endpoint, _ADVICE) as control:
            return control.live()

    def revive(self) -> None:
        """Replace a dead server by a new one with the project's settings."""
        self._start(self._space.project)

    def _load(
        self, control: ModelControl, configs: Mapping[str, Config]
    ) -> tuple[tuple[str, ...], float]:
        required_swap = swap(self._configs, configs)
        if not required_swap.load:
            return (), 0.0
        ready = [name for name in required_swap.unload if control.ready(name)]
        previous_configs = {name: self._configs.get(name) or control.config(name) for name in ready}
        with control.timing_gaps(self._space.model) as gaps:
            try:
                self._swap(control, required_swap, configs)
            except SettingsRefusedError:
                # Reload the models that were unloaded to make room.
                unloaded = tuple(name for name in required_swap.load if name in previous_configs)
                self._swap(control, Swap((), unloaded), previous_configs)
                raise
        return required_swap.load, sum(gaps)

    def _swap(
        self, control: ModelControl, required_swap: Swap, configs: Mapping[str, Config]
    ) -> None:
        # `_configs` lists a model only while its configuration is certain.
        for name in required_swap.unload:
            self._configs.pop(name, None)
            if "ensemble_scheduling" in configs[name]:
                # After a failed request an ensemble never unloads; it holds no resources.
                control.unload(name, _ENSEMBLE_SECONDS)
            elif not control.unload(name, _STEP_SECONDS):
                raise ServerError(f"{name} does not unload", remedy="see `tritonctl logs`")
        for name in required_swap.load:
            self._configs.pop(name, None)
            control.load(name, configs[name])
            control.wait_until_ready([name])
            _check_live_config(control.config(name), configs[name])
            self._configs[name] = configs[name]
        if required_swap.load:
            control.wait_until_ready([self._space.model])

    def _take_over(self, running: Server, leftover: _OriginalServer | None) -> None:
        self._state = running
        plan = plan_repository(self._space.project, self._space.artefacts)
        with ModelControl(running.endpoint, _ADVICE) as control:
            live = {name: control.config(name) for name in running.models}
        if leftover is not None and leftover.state.get("pid") == running.pid:
            self._original = leftover
        else:
            self._original = _OriginalServer(to_record(running), live)
            record = json.dumps(self._original.__dict__)  # with the server's token
            write_atomically(self._folder / _ORIGINAL_SERVER, record, mode=PRIVATE)
        planned = planned_configs(plan)
        if not planned.keys() <= live.keys():
            raise ServerError(
                "the running server has other models than the project",
                remedy="run `tritonctl down`; the tuner then starts a server itself",
            )
        self._files = _model_files(plan)
        self._configs = {n: c for n, c in planned.items() if includes(live[n], c)}

    def _start(self, project: Project) -> None:
        """Start a server on the tuner's repository in place of the running one."""
        stop(self._space.project, self._progress)
        ports = self._ports()
        # Only the tuner has streams on this server.
        ports["server"]["exit_timeout_seconds"] = _EXIT_SECONDS
        tuner_project = overlay_project(
            project, {"model_repository": str(self._folder / _REPOSITORY), **ports}
        )
        record = render_record(project)  # of the project's own repository
        saved_record = record.read_text(encoding="utf-8") if record.is_file() else None
        rendered = render(tuner_project, Silent(), self._space.artefacts)
        if saved_record is None:
            record.unlink(missing_ok=True)
        else:
            write_atomically(record, saved_record)
        self._state = self._start_with_retries(tuner_project, rendered)
        self._files, self._configs = _model_files(rendered.plan), planned_configs(rendered.plan)
        self._is_suspect = False

    def _start_with_retries(self, project: Project, rendered: RenderedRepository) -> Server:
        """Retry a start: another process may have taken a free port."""
        for _ in range(_START_ATTEMPTS - 1):
            try:
                return start(project, rendered, self._progress)[0]
            except ServerError as error:
                self._progress.note(f"{error.problem}: trying again")
        return start(project, rendered, self._progress)[0]

    def _ports(self) -> dict[str, Any]:
        """Return the original server's ports, or free ones."""
        names = ("grpc_port", "http_port", "metrics_port")
        original_state = self._original.state if self._original else {}
        ports = {name: original_state.get(name, 0) for name in names}
        if (readiness := original_state.get("readiness_port")) is not None:
            ports["readiness_port"] = readiness
        return {"server": {"mode": "embedded", **ports}}

    def _restore(self, original: _OriginalServer) -> None:
        state = from_record(original.state)
        if not is_running(state) or self._is_suspect or not self.is_alive:
            self._start_as(state)
        try:
            self._swap_back(original.configs)
        except SettingsRefusedError:
            raise
        except ServerError:
            self._start_as(state)
            self._swap_back(original.configs)

    def _start_as(self, state: Server) -> None:
        project = self._space.project
        stop(project, self._progress)
        restored_project = overlay_project(project, self._ports())
        self._state = self._start_with_retries(
            restored_project, render(project, Silent(), self._space.artefacts)
        )
        # The original settings of `tritonctl up` may leave ports unset.
        self._state = replace(self._state, settings=state.settings)
        write_state(ServerFiles.of(project), self._state)

    def _swap_back(self, configs: Mapping[str, Config]) -> None:
        with ModelControl(self.state.endpoint, _ADVICE) as control:
            live = {name: control.config(name) for name in configs}
            self._swap(control, swap(live, configs), configs)


def planned_configs(plan: RepositoryPlan) -> dict[str, Config]:
    """Return the configuration of each planned model in protobuf's JSON form."""
    return {model.name: parse_pbtxt(model.config) for model in plan.models}


def _model_files(plan: RepositoryPlan) -> list[Any]:
    """Return the models and their files: a loaded model sees changes of neither."""
    return [(model.name, model.files) for model in plan.models]


def _check_live_config(live: Config, planned: Config) -> None:
    if not includes(live, planned):
        raise ServerError(
            f"{planned.get('name')} was loaded, but its live configuration differs from the plan",
            remedy="compare `config.pbtxt` with the server's; please report a bug",
            details=json.dumps({"live": live, "asked": planned}, indent=1)[:4000],
        )
