# SPDX-License-Identifier: Apache-2.0
"""Rollouts with a shadow, all of it real: a candidate that answers otherwise is taken back.

The text engine replays one token, each release another; the encoder pools in another way.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests import sample_tokenizers
from tests.engine_cache import build_cached
from tests.server.replay import replay_project
from tests.server.test_groups import HEADER, TOKENS, Users
from tests.server.test_reload import MODEL, NEW, OLD, write_version
from tests.servers import ON_FREE_PORTS, meanwhile
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.releases.publish import publish
from tritonctl.rollout.journal import RolloutPhase
from tritonctl.rollout.shadow.comparison_log import ShadowCounts, read_comparison_records
from tritonctl.rollout.starting import start
from tritonctl.rollout.status import RolloutStatus, rollout_status
from tritonctl.rollout.steering import ProjectSource
from tritonctl.runtimes import slot_servers
from tritonctl.runtimes.lifecycle import stop
from tritonctl.runtimes.release_switch import serve_release
from tritonctl.runtimes.staging_server import skip_smoke_test

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]
PATIENCE_SECONDS = 120.0
PEOPLE = 4
ENCODER = Path(__file__).parents[2] / "examples" / "number-finder"
SETTINGS = {"user_header": HEADER, "shadow": 0.5, "steps": [50, 100], "hold_seconds": 300.0}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two releases, the second of which answers otherwise."""
    tokenizer = sample_tokenizers.byte_level(tmp_path_factory.mktemp("tokenizer"))
    folder = tmp_path_factory.mktemp("s") / "p"
    replay_project(folder, {MODEL: (tokenizer, [])})
    file = folder / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["rollout"] = SETTINGS
    data["gateway"] = {"port": 0, "admin_port": 0}
    data["frontend"] = {"port": 0}
    file.write_text(json.dumps(data), encoding="utf-8")
    project = load_project(file)
    for letter in (OLD, NEW):
        write_version(project.root, letter)
        build_engine(project, MODEL, Silent())
        publish(project, Silent(), partial(skip_smoke_test, reason="the test asks"))
    yield project
    stop(project, Silent())


def ended(project: Project, number: int, folder: Path, compared: int) -> RolloutStatus:
    """Once it has ended, or has compared so many."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = rollout_status(project, number)
        if found.state.is_over or ShadowCounts.read(folder).compared >= compared:
            return found
        said = [file.read_text(encoding="utf-8") for file in folder.glob("*.log")]
        assert time.monotonic() < deadline, (found.state, ShadowCounts.read(folder), said)
        time.sleep(0.2)


def rolled_out(project: Project) -> RolloutStatus:
    """The second release beside the first, which users are asking meanwhile, to its end."""
    source = ProjectSource(project.root / "tritonctl.yaml", None, ())
    found = start(project, source, "2", Silent(), breaking=False)
    return ended(project, found.number, found.folder, compared=1000)


class Asking:
    """People who ask without a pause as `ask` does, given who they are; every error is kept."""

    def __init__(self, ask: Callable[[str], object]) -> None:
        self._ask, self._done = ask, threading.Event()
        self.errors: Counter[str] = Counter()

    def _use(self, user: str) -> None:
        while not self._done.is_set():
            try:
                self._ask(user)
            except (OSError, HTTPException, TritonctlError) as error:
                self.errors[f"{type(error).__name__}: {error}"] += 1

    def going_on(self) -> AbstractContextManager[None]:
        """As long as the context."""
        threads = [threading.Thread(target=self._use, args=[f"user-{n}"]) for n in range(PEOPLE)]
        return meanwhile(threads, self._done)


def gateway_url(project: Project) -> str:
    """Where users come."""
    process = slot_servers.gateway_process(project)
    assert process is not None
    return process.url


def taken_back(found: RolloutStatus) -> set[tuple[float, float]]:
    """What a rollout's shadow found, once it has rolled back for it: noise and difference."""
    assert found.state.phase is RolloutPhase.ROLLED_BACK, (
        found.state,
        ShadowCounts.read(found.folder),
    )
    assert "answers differ" in str(found.state.outcome["reason"])
    lines = list(read_comparison_records(found.folder))
    assert lines
    return {(line.measurement.noise, line.measurement.candidate) for line in lines}


def test_another_text_is_taken_back_by_the_shadow(project: Project) -> None:
    """Not one request has failed before, and no time is longer: only the texts are others."""
    serve_release(project, "1", Silent())
    users = Users(project)
    with users.asking():
        found = rolled_out(project)
    assert taken_back(found) == {(0, 1)}
    # Of the streams that the candidate had when it was taken away.
    assert set(users.errors) <= {"StatusCode.INTERNAL", "StatusCode.UNAVAILABLE"}


def test_what_is_asked_of_the_frontend(project: Project) -> None:
    """By OpenAI's API alone: the shadow asks Triton what the frontend would, streams are whole."""
    serve_release(project, "1", Silent())
    url = gateway_url(project)

    def ask(user: str) -> None:
        body = {"model": MODEL, "prompt": "x", "max_tokens": TOKENS, "seed": 0, "stream": True}
        with closing(HTTPConnection(url, timeout=PATIENCE_SECONDS)) as connection:
            headers = {HEADER: user, "content-type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != HTTPStatus.OK or not text.rstrip().endswith("data: [DONE]"):
            raise HTTPException(f"{answer.status}: {text[-300:]}")

    users = Asking(ask)
    with users.going_on():
        found = rolled_out(project)
    assert taken_back(found) == {(0, 1)}
    assert users.errors == {}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two releases of the shipped encoder: it averages all tokens; it takes the first one."""
    folder = tmp_path_factory.mktemp("e") / "p"
    checkpoint = folder / "checkpoint"
    shutil.copytree(ENCODER / "checkpoint", checkpoint)
    engine = {"builder": "onnxruntime", "precision": "fp32", "max_batch_size": 8}
    model = {"task": "embedding", "checkpoint": "checkpoint", "engine": engine}
    data = {
        "schema": "tritonctl/v1",
        "models": {"finder": model},
        "server": ON_FREE_PORTS,
        "rollout": {**SETTINGS, "shadow": 1.0},
        "gateway": {"port": 0, "admin_port": 0},
    }
    file = folder / "tritonctl.yaml"
    file.write_text(json.dumps(data), encoding="utf-8")
    project = load_project(file)
    pooling = checkpoint / "1_Pooling" / "config.json"
    for mode in ("mean", "cls"):
        content = json.loads(pooling.read_text(encoding="utf-8"))
        pooling.write_text(json.dumps(content | {"pooling_mode": mode}), encoding="utf-8")
        build_cached(project)
        publish(project, Silent(), partial(skip_smoke_test, reason="the test asks"))
    yield project
    stop(project, Silent())


def test_wrong_pooling_is_taken_back_by_the_shadow(encoder: Project) -> None:
    """Vectors of the right size that come in time: only their directions are others."""
    serve_release(encoder, "1", Silent())
    url = gateway_url(encoder)
    texts = (ENCODER / "texts.txt").read_text(encoding="utf-8").splitlines()[:100]

    def ask(user: str) -> None:
        with TritonClient(url, headers={HEADER: user}) as client:
            for text in texts:
                client.embed("finder", [text])

    users = Asking(ask)
    with users.going_on():
        found = rolled_out(encoder)
    differences = taken_back(found)
    assert max(noise for noise, _ in differences) < 0.01
    assert sum(other for _, other in differences) / len(differences) > 0.5
