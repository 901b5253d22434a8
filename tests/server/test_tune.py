# SPDX-License-Identifier: Apache-2.0
"""`tritonctl tune` on a real Triton: settings are live while they are measured, and gone after."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXAMPLE, write_project
from tests.json_page import as_documented
from tests.report_page import Reader
from tests.servers import Handle, embedded
from tritonctl.errors import RequestRejectedError, SettingsRefusedError
from tritonctl.host.progress import Silent
from tritonctl.loadtest.run.live import SilentBoard
from tritonctl.loadtest.run.plan import select_scenario
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.protocol.model_control import ModelControl
from tritonctl.runtimes.lifecycle import running_server, stop
from tritonctl.runtimes.server_state import EmbeddedServer, Server
from tritonctl.tuning.knobs import build_space
from tritonctl.tuning.outcome import SearchStep
from tritonctl.tuning.report import write_report
from tritonctl.tuning.space import MAX_SEQUENCES, SearchSpace
from tritonctl.tuning.trials import TrialRequest, TuningTrial
from tritonctl.tuning.tuned_server import TunedServer
from tritonctl.tuning.tuner import TuneJob, tune
from tritonctl.tuning.write_back import create_project_edit

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("loadtest_environment")]

Cli = Callable[..., subprocess.CompletedProcess[str]]

MODEL, ENGINE, DETOKENIZER = "int8", "int8_engine", "int8_detokenizer"
DELAY = "detokenizer.max_queue_delay_microseconds"
PATIENCE_SECONDS = 150
CANCELLED = SamplingParameters(max_tokens=400, end_id=-1)
# Generous: the test shares its cores with others.
SLO = {"ttft_p99_ms": 1500, "e2e_p99_ms": 6000}
LOAD = {
    "model": MODEL,
    "requests": [{"prompts": str(EXAMPLE / "prompts.jsonl"), "max_tokens": 16}],
    "arrivals": {"process": "poisson", "rate": 10},
    "cool_down_seconds": 5,
}


def written(folder: Path, speller_project: Project) -> Project:
    """The int8 speller as it is built, with a load test and an SLO."""
    folder.mkdir()
    file = write_project(folder, {MODEL: "int8"})
    record = json.loads(file.read_text())
    record["models"][MODEL]["slo"] = SLO
    record["loadtests"] = {"spell": LOAD}
    record["server"]["readiness_port"] = 0
    file.write_text(json.dumps(record, indent=2))
    engines = speller_project.state / "engines" / MODEL
    shutil.copytree(engines, folder / ".tritonctl" / "engines" / MODEL)
    return load_project(file)


@pytest.fixture(scope="module")
def handle(speller_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """Triton as `tritonctl up` starts it."""
    folder = tmp_path_factory.mktemp("tune") / "project"
    handle = Handle(written(folder, speller_project), MODEL)
    yield handle
    handle.stop()


@pytest.fixture
def project(handle: Handle) -> Project:
    """Its project."""
    return handle.project


@pytest.fixture
def server(request: pytest.FixtureRequest, handle: Handle) -> EmbeddedServer:
    """It, alive."""
    return handle.ready(request.node)


@pytest.fixture
def off(speller_project: Project, tmp_path: Path) -> Iterator[Project]:
    """The same of which no server runs."""
    project = written(tmp_path / "off", speller_project)
    yield project
    stop(project, Silent())


def live_configs(state: Server) -> dict[str, Any]:
    """What every model runs with."""
    with ModelControl(state.endpoint) as control:
        return {name: control.config(name) for name in state.models}


def repository_bytes(project: Project) -> dict[str, bytes]:
    return {
        str(path.relative_to(project.repository)): path.read_bytes()
        for path in project.repository.rglob("config.pbtxt")
    }


class LiveWatcher:
    """Asks Triton, after every trial, what really was live."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.seen: list[tuple[TuningTrial, dict[str, Any]]] = []
        self.steps: list[SearchStep] = []

    def stage(self, text: str) -> None:
        """Not looked at."""

    def measuring(self, request: TrialRequest, space: SearchSpace) -> None:
        """Not looked at."""

    def trial(self, trial: TuningTrial, stored: bool) -> None:
        """Read the configurations back."""
        assert not stored
        self.seen.append((trial, live_configs(running_server(self._project))))

    def step(self, step: SearchStep, space: SearchSpace) -> None:  # noqa: ARG002 - TuningWatcher
        """Remember it."""
        self.steps.append(step)


@pytest.mark.timeout(600)  # a session of half a minute, and what comes around it
def test_settings_are_live_while_they_are_measured_and_gone_afterwards(
    project: Project, server: EmbeddedServer
) -> None:
    """A session with a tiny budget on the server that runs, and its report."""
    before, files = live_configs(server), repository_bytes(project)
    watcher = LiveWatcher(project)
    name, scenario = select_scenario(project, None)
    job = TuneJob(project, name, scenario, 0.5, knobs=(MAX_SEQUENCES, DELAY), validation=False)
    tuned = tune(job, SilentBoard(), watcher)

    assert len(watcher.seen) >= 3
    for trial, live in watcher.seen:
        places = live[ENGINE]["parameters"]["max_num_seqs"]["string_value"]
        assert places == str(trial.request.settings[MAX_SEQUENCES])
        delay = live[DETOKENIZER]["dynamic_batching"].get("max_queue_delay_microseconds", 0)
        assert int(delay) == trial.request.settings[DELAY]
        assert trial.requests > 0
    assert tuned.outcome.baseline.met > 0

    after = running_server(project)
    assert after.pid == server.pid
    assert live_configs(after) == before
    assert repository_bytes(project) == files

    page = write_report(tuned)
    figure = Reader.of(page.read_text(encoding="utf-8")).figures()["pareto"]
    plotted = sum(len(series["x"]) for series in figure["series"])
    assert plotted == sum(bool(trial.p99_ms) for trial in tuned.outcome.trials)
    record = json.loads(page.with_name("report.json").read_text(encoding="utf-8"))
    assert record["pareto"]
    edit = create_project_edit(
        project, None, MODEL, None, {"serving": {"inline_detokenizer": True}}
    )
    assert edit.difference.count("\n+ ") == 1
    added = {"diff": edit.difference, "applied": False, "report": str(page)}  # by the command
    as_documented("tune", json.dumps(record | added))


@pytest.mark.exhaustive
def test_every_knob_can_be_turned_and_put_back(project: Project, server: EmbeddedServer) -> None:
    """Through model control where that is enough, with a restart where files change."""
    before = live_configs(server)
    space = build_space(project, MODEL, priorities=2, cores=2)
    restarts = []
    with TunedServer(space, project.state / "tuning", Silent()) as tuned:
        for knob in space.knobs:
            value = next(value for value in reversed(knob.values) if value != knob.base)
            applied = tuned.apply({**space.base, knob.name: value})
            restarts += [knob.name] if applied.restarted else []
            assert set(applied.loaded) <= set(before), knob.name
            assert applied.restarted or knob.model in applied.loaded, knob.name
        assert "inline_detokenizer" in restarts
        assert len(restarts) < len(space.knobs) / 2
        assert tuned.state.pid != server.pid
    again = embedded(running_server(project))
    assert (again.grpc_port, again.settings) == (server.grpc_port, server.settings)
    assert again.readiness_port == server.readiness_port is not None
    assert live_configs(again) == before


@pytest.mark.exhaustive
@pytest.mark.alone
def test_a_text_engine_that_was_loaded_again_bears_load(project: Project, cli: Cli) -> None:
    """Three times other settings of the engine alone, then forty requests side by side each."""
    space = build_space(project, MODEL, priorities=0, cores=2)
    load = ("--rate", "20", "--duration", "2", "--no-report", "--json")
    with TunedServer(space, project.state / "tuning", Silent()) as tuned:
        for places in (8, 4, 16):
            applied = tuned.apply({**space.base, MAX_SEQUENCES: places})
            assert (applied.restarted, applied.loaded) == (False, (ENGINE, MODEL))
            assert applied.gap_seconds > 0
            done = cli("loadtest", "run", *load, "--url", tuned.state.grpc_url, cwd=project.root)
            counts = json.loads(done.stdout)["counts"]
            assert counts["ok"] == counts["planned"] > 0, done.stderr


def refused(client: TritonClient) -> None:
    """One request that fails."""
    with pytest.raises(RequestRejectedError):
        client.generate(MODEL, "")


def cancelled(client: TritonClient) -> None:
    """One request whose client leaves."""
    stream = client.stream(MODEL, "777777 in English:", CANCELLED)
    next(stream)
    assert isinstance(stream, Generator)
    stream.close()


@pytest.mark.parametrize("lose", [refused, pytest.param(cancelled, marks=pytest.mark.exhaustive)])
def test_a_lost_request_does_not_hold_up_other_settings(
    project: Project, server: EmbeddedServer, lose: Callable[[TritonClient], None]
) -> None:
    """tritonserver 2.51 never ends an ensemble that had one: nobody waits for that.

    After a cancel it may not let go of the engine, either: then the server is started anew.
    """
    before = live_configs(server)
    space = build_space(project, MODEL, priorities=0, cores=2)
    with TunedServer(space, project.state / "tuning", Silent()) as tuned:
        with TritonClient(tuned.state.grpc_url) as client:
            lose(client)
        applied = tuned.apply({**space.base, MAX_SEQUENCES: 8})
        if lose is refused:
            assert not applied.restarted
        assert applied.loaded == (() if applied.restarted else (ENGINE, MODEL))
        assert applied.gap_seconds < PATIENCE_SECONDS
        live = live_configs(tuned.state)[ENGINE]["parameters"]["max_num_seqs"]
        assert live["string_value"] == "8"
        with TritonClient(tuned.state.grpc_url) as client:
            assert client.generate(MODEL, "12 in English:").text == " twelve"
    assert live_configs(running_server(project)) == before


def test_refused_settings_leave_the_server_as_it_was(
    project: Project, server: EmbeddedServer
) -> None:
    """An engine that cannot be loaded: the error is named, the old one still answers."""
    space = build_space(project, MODEL, priorities=0, cores=2)
    before = live_configs(server)
    with TunedServer(space, project.state / "tuning", Silent()) as tuned:
        with pytest.raises(SettingsRefusedError, match="int8_engine"):
            tuned.apply({**space.base, MAX_SEQUENCES: "none"})
        assert live_configs(tuned.state) == before
    assert live_configs(running_server(project)) == before


def test_without_a_server_one_is_started_and_stopped(off: Project) -> None:
    """And the project's repository is not even rendered."""
    space = build_space(off, MODEL, priorities=0, cores=2)
    with TunedServer(space, off.state / "tuning", Silent()) as tuned:
        pid = tuned.state.pid
        assert running_server(off).pid == pid
    assert not off.repository.exists()
    with pytest.raises(Exception, match="no server is running"):
        running_server(off)


def test_an_impossible_job_is_refused_before_anything_starts(off: Project, cli: Cli) -> None:
    """No such knob: told with those that there are."""
    done = cli("tune", "--knob", "speed", cwd=off.root)
    assert done.returncode == 2
    assert "no knob speed" in done.stderr
    assert "engine.max_num_seqs" in done.stderr
