# SPDX-License-Identifier: Apache-2.0
"""`tritonctl reload` of a model that is no ensemble: Triton swaps it in place, under load.

Two graphs with the same tensors, y = |x| and y = -x: an answer tells which of them gave it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.servers import ON_FREE_PORTS, meanwhile
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ServerError, TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.publish import render
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.lifecycle import running_server, start, stop
from tritonctl.runtimes.reload import reload
from tritonctl.runtimes.server_state import Server, ServerFiles

pytestmark = [pytest.mark.engine, pytest.mark.server]

TESTS = Path(__file__).resolve().parents[1]
MODEL = "graph"
USERS = 16
PATIENCE = 60.0
ASKED = np.array([[1.0, 2.0, 3.0]], dtype=np.float32)
OLD, NEW = "plain", "negated"
ANSWERS = {3.0: OLD, -3.0: NEW}


BEHIND_CACHE = pytest.mark.parametrize(
    "project", [False, pytest.param(True, marks=pytest.mark.exhaustive)], indirect=True
)


@pytest.fixture
def project(
    request: pytest.FixtureRequest, onnxruntime_environment: Path, tmp_path: Path
) -> Iterator[Project]:
    """The old version, served; with a true parameter behind a response cache."""
    script = TESTS / "onnx_graphs.py"
    subprocess.run([onnxruntime_environment, script, tmp_path, OLD, NEW], check=True)
    engine = {"builder": "onnxruntime", "precision": "fp32", "max_batch_size": 8}
    serving = {"cache": bool(getattr(request, "param", False))}
    model = {"task": "tensors", "checkpoint": "given", "engine": engine, "serving": serving}
    data = {"schema": "tritonctl/v1", "models": {MODEL: model}, "server": ON_FREE_PORTS}
    (tmp_path / "tritonctl.yaml").write_text(json.dumps(data), encoding="utf-8")
    project = load_project(tmp_path)
    build(project, OLD)
    start(project, render(project, Silent()), Silent())
    yield project
    stop(project, Silent())


def build(project: Project, graph: str) -> None:
    """This graph becomes the model's next version."""
    shutil.rmtree(project.root / "given", ignore_errors=True)
    shutil.copytree(project.root / graph, project.root / "given")
    build_engine(project, MODEL, Silent())


@contextmanager
def load(state: Server) -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Users who ask without a pause: answers by graph, and every error."""
    answers: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    done = threading.Event()

    def use() -> None:
        with TritonClient(state.grpc_url) as client:
            while not done.is_set():
                try:
                    last = client.infer(MODEL, {"x": ASKED}, timeout=PATIENCE)["y"][0, 2]
                    answers[ANSWERS[float(last)]] += 1
                except (TritonctlError, KeyError) as error:
                    errors[str(error)] += 1

    threads = [threading.Thread(target=use) for _ in range(USERS)]
    with meanwhile(threads, done):
        yield answers, errors


def until(answers: Counter[str], graph: str, more: int = USERS) -> None:
    """Wait for that many more answers of this graph."""
    wanted, deadline = answers[graph] + more, time.monotonic() + PATIENCE
    while answers[graph] < wanted:
        assert time.monotonic() < deadline, answers
        time.sleep(0.02)


def other(graph: str) -> str:
    """The one that is not served."""
    return OLD if graph == NEW else NEW


def assert_clean(project: Project, state: Server) -> None:
    """The models of the plan, ready, and nothing beside them."""
    assert list(ServerFiles.of(project).standby.iterdir()) == []
    seen = check_health(state)
    assert {name for name, is_ready in seen.models.items() if is_ready == "READY"} == {
        model.name for model in plan_repository(project).models
    }


@BEHIND_CACHE
def test_no_request_is_lost(project: Project) -> None:
    """16 users, four swaps, every answer that of one of the two; none of a version that is gone."""
    state = running_server(project)
    with load(state) as (answers, errors):
        until(answers, OLD)
        gaps = []
        for graph in (NEW, OLD, NEW, OLD):
            build(project, graph)
            gaps.append(reload(project, MODEL, Silent()).gap_seconds)
            until(answers, graph, 4 * USERS)  # whoever was answered before has counted it by now
            gone = answers[other(graph)]
            until(answers, graph)
            assert answers[other(graph)] == gone, "an answer of a version that is gone"
    print(f"{answers.total()} requests, {errors.total()} failed, gaps {gaps}")  # noqa: T201
    assert errors == {}
    assert set(answers) == {OLD, NEW}
    assert_clean(project, state)


def test_a_version_that_does_not_load_leaves_the_old_one(project: Project) -> None:
    """An engine that the server cannot read: Triton's reason, and nobody was refused."""
    state = running_server(project)
    shutil.copytree(TESTS.parent / "python_backends", project.root / "python_backends")
    backend = project.root / "python_backends" / "onnxruntime_engine" / "model.py"
    with backend.open("a", encoding="utf-8") as code:
        code.write('\nraise ImportError("a broken version")\n')
    with load(state) as (answers, errors):
        until(answers, OLD)
        with pytest.raises(ServerError, match="a broken version") as refused:
            reload(project, MODEL, Silent())
        until(answers, OLD)
    assert "keeps serving" in refused.value.problem
    assert errors == {}
    assert set(answers) == {OLD}
    assert_clean(project, state)
