# SPDX-License-Identifier: Apache-2.0
"""A new version comes into a running Triton: no request is lost, a failure changes nothing.

The engine replays one token, each version another: an answer tells who gave it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests import sample_tokenizers
from tests.server.replay import replay_project
from tests.servers import Handle, meanwhile
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ServerError, TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.repository.publish import render
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.lifecycle import running_server, stop
from tritonctl.runtimes.reload import ReloadResult, reload
from tritonctl.runtimes.server_state import Server, ServerFiles
from tritonctl.smoke.outcomes import SmokeReport
from tritonctl.smoke.run import SmokePlan, smoke_server

pytestmark = pytest.mark.server

MODEL = "echo"
REPLAY = Path(__file__).with_name("replay_engine")
USERS, TOKENS = 16, 40
STEP_MS = 20
ASK = SamplingParameters(max_tokens=TOKENS, random_seed=0)
PATIENCE = 60.0
OLD, NEW, NEWER = "d", "e", "f"  # tokens 70, 71, 72

Cli = Callable[..., subprocess.CompletedProcess[str]]


def write_version(folder: Path, letter: str, *, for_all: bool = False) -> None:
    """Have the engine answer with this letter once it is built and loaded.

    for_all: also what comes without `random_seed`.
    """
    token = 70 + "def".index(letter)
    scripts = [{"ids": [token], "repeat": True, "step_ms": STEP_MS, "for_all": for_all}]
    (folder / MODEL / "scripts.json").write_text(json.dumps(scripts), encoding="utf-8")


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """A server of the old version."""
    tokenizer = sample_tokenizers.byte_level(tmp_path_factory.mktemp("tokenizer"))
    folder = tmp_path_factory.mktemp("reload") / "project"
    project = replay_project(folder, {MODEL: (tokenizer, [])})
    write_version(project.root, OLD)
    build_engine(project, MODEL, Silent())
    handle = Handle(project, MODEL)
    yield handle
    handle.stop()


@pytest.fixture
def project(request: pytest.FixtureRequest, handle: Handle) -> Project:
    """The old version, served, whatever the test before has left."""
    project = handle.project
    shutil.copy2(REPLAY / "model.py", project.root / "python_backends" / "replay_engine")
    write_version(project.root, OLD)
    build_engine(project, MODEL, Silent())
    if answer(handle.ready(request.node)) != OLD or render(project, Silent()).changed:
        handle.fresh()
    return project


def answer(state: Server) -> str:
    """The letter that is answered now."""
    with TritonClient(state.grpc_url) as client:
        return client.generate(MODEL, "x", ASK).text[-1]


class Load:
    """Users who ask without a pause: what they were answered, letter by letter, and every error."""

    def __init__(self, url: str, users: int = USERS, **client: Any) -> None:
        self.answers: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._url, self._client, self._done = url, client, threading.Event()
        self._threads = [threading.Thread(target=self._use) for _ in range(users)]

    def _use(self) -> None:
        with TritonClient(self._url, **self._client) as client:
            while not self._done.is_set():
                try:
                    done = client.generate(MODEL, "x", ASK, timeout=PATIENCE)
                    assert done.num_output_tokens == TOKENS
                    assert len(set(done.text)) == 1, "one answer, two versions"
                    self.answers[done.text[0]] += 1
                except (TritonctlError, AssertionError) as error:
                    self.errors[str(error)] += 1

    def until(self, letter: str, count: int = USERS) -> None:
        """Wait until so many answers of this version have come."""
        deadline = time.monotonic() + PATIENCE
        while self.answers[letter] < count:
            assert time.monotonic() < deadline, f"{self.answers}, {self.errors}"
            time.sleep(0.05)

    def going_on(self) -> AbstractContextManager[None]:
        """Users come, and stay as long as the context."""
        return meanwhile(self._threads, self._done)


def assert_clean(project: Project, state: Server, *by_hand: str) -> None:
    """The server as after `up`: the project's models, those by hand, and none beside them."""
    assert list(ServerFiles.of(project).standby.iterdir()) == []
    seen = check_health(state)
    assert seen.ready
    assert {name for name, is_ready in seen.models.items() if is_ready == "READY"} == {
        *(f"{MODEL}{step}" for step in ("", "_tokenizer", "_engine", "_detokenizer")),
        *by_hand,
    }


def new_version(project: Project, letter: str) -> ReloadResult:
    """Build and reload."""
    write_version(project.root, letter)
    build_engine(project, MODEL, Silent())
    return reload(project, MODEL, Silent())


def test_no_request_is_lost_and_none_is_answered_by_two_versions(project: Project) -> None:
    """16 users, two reloads, four switches of the ensemble."""
    state = running_server(project)
    load = Load(state.grpc_url)
    with load.going_on():
        load.until(OLD)
        done = new_version(project, NEW)
        load.until(NEW)
        new_version(project, NEWER)
        load.until(NEWER)
    assert load.errors == {}
    assert set(load.answers) == {OLD, NEW, NEWER}
    assert done.gap_seconds == 0
    assert done.abandoned == 0
    assert_clean(project, state)
    assert render(project, Silent()).changed == ()


@pytest.mark.parametrize("whole_server", [True, False])
def test_smoke_beside_a_reload(project: Project, *, whole_server: bool) -> None:
    """As a pipeline asks it every minute: what comes and goes is no failure."""
    endpoint = running_server(project).endpoint
    known = None if whole_server else project
    plan = SmokePlan(endpoint, project=known, seconds=30.0, cancellation=False)
    assert smoke_server(plan, Silent()).failures == []
    reports: list[SmokeReport] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            reports.append(smoke_server(plan, Silent()))

    with meanwhile([threading.Thread(target=ask)], done):
        new_version(project, NEW)
        new_version(project, NEWER)
    assert [failure for report in reports for failure in report.failures] == []
    assert reports
    assert answer(running_server(project)) == NEWER


def test_a_version_that_does_not_load_leaves_the_old_one(project: Project) -> None:
    """Triton's reason, the old version before, during and after; `up` after it as before."""
    state, load = running_server(project), Load(running_server(project).grpc_url)
    with (project.root / "python_backends" / "replay_engine" / "model.py").open("a") as code:
        code.write('\nraise ImportError("a broken version")\n')
    with load.going_on():
        load.until(OLD)
        with pytest.raises(ServerError, match="a broken version") as refused:
            new_version(project, NEW)
    assert "keeps serving" in refused.value.problem
    assert load.errors == {}
    assert set(load.answers) == {OLD}
    assert_clean(project, state)


def test_a_version_that_does_not_answer_leaves_the_old_one(cli: Cli, project: Project) -> None:
    """Loaded is not enough: the smoke request fails, and the command says so, exit code 7."""
    state = running_server(project)
    with (project.root / "python_backends" / "replay_engine" / "model.py").open("a") as code:
        code.write("\n\n_Playing.advance = None\n")
    write_version(project.root, NEW)
    build_engine(project, MODEL, Silent())
    done = cli("reload", MODEL, cwd=project.root)
    assert done.returncode == 7
    assert "does not answer a smoke request" in done.stderr
    assert "keeps serving" in done.stderr
    assert answer(state) == OLD
    assert_clean(project, state)


def test_a_killed_reload_is_cleaned_up_by_the_next(project: Project) -> None:
    """SIGKILL while the new version loads: the old one serves, the next reload removes the rest."""
    state = running_server(project)
    write_version(project.root, NEW)
    build_engine(project, MODEL, Silent())
    killed = subprocess.Popen(
        [sys.executable, "-m", "tritonctl", "reload", MODEL], cwd=project.root
    )
    folder, deadline = ServerFiles.of(project).standby, time.monotonic() + PATIENCE
    while not list(folder.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert answer(state) in (OLD, NEW)
    new_version(project, NEWER)
    assert answer(state) == NEWER
    assert_clean(project, state)


def test_reload_without_a_server_or_a_model(cli: Cli, project: Project) -> None:
    """Exit codes 7 and 2, and what to type."""
    unknown = cli("reload", "ecko", cwd=project.root)
    assert unknown.returncode == 2
    assert MODEL in unknown.stderr
    stop(project, Silent())
    done = cli("reload", MODEL, cwd=project.root)
    assert done.returncode == 7
    assert "tritonctl up" in done.stderr


def test_cancelled_streams_do_not_hold_up_a_reload(project: Project) -> None:
    """Triton 2.51 never forgets them: what they hold is told, and the new version serves."""
    state = running_server(project)
    with TritonClient(state.grpc_url) as client:
        for _ in range(4):
            next(client.stream(MODEL, "x", ASK))
    done = new_version(project, NEW)
    assert answer(state) == NEW
    assert set(done.retained_models) <= {
        f"{MODEL}_{step}" for step in ("tokenizer", "engine", "detokenizer")
    }
    with TritonClient(state.grpc_url) as client:
        assert client.model_ready(MODEL)
