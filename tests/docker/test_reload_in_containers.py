# SPDX-License-Identifier: Apache-2.0
"""`tritonctl reload` of a server that runs in a container: as of the embedded one, nothing is lost.

The engine replays one token for ever, each version another: an answer tells who gave it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import sample_tokenizers
from tests.configurations import BY_HAND
from tests.conftest import Cli
from tests.docker import machine
from tests.docker.deployments import OVERRIDE, Deployed, rendered, succeeded
from tests.handwritten import write_model
from tests.server.replay import replay_project
from tests.server.test_reload import (
    MODEL,
    NEW,
    NEWER,
    OLD,
    Load,
    answer,
    assert_clean,
    write_version,
)
from tritonctl.engines.builds.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.runtimes.server_state import ContainerServer

pytestmark = pytest.mark.docker

# A package that only the model by hand brings, and what it does: double a tensor.
WIDTH = "wcwidth==0.2.13\n"
IMPORTS = "from wcwidth import wcwidth\n"
TWO_COLUMNS = "wcwidth('七') * x"
ASKED = {"inputs": {"x": {"shape": [2], "datatype": "FP32", "data": [1, 2]}}}
LOAD: dict[str, Any] = {
    "model": BY_HAND,
    "kind": "tensors",
    "requests": [{"prompts": "numbers.jsonl"}],
    "arrivals": {"process": "constant", "rate": 20},
    "count": 20,
}


@pytest.fixture(scope="module")
def deployed(composing: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """The old version, served from a container."""
    folder = tmp_path_factory.mktemp("reload")
    tokenizer = sample_tokenizers.byte_level(folder)
    root = folder / f"tritonctl-reload-{os.getpid()}"
    replay_project(root, {MODEL: (tokenizer, [])})
    file = root / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["server"] |= {"mode": "docker", "restart": True}
    data["docker"] = {"base_image": machine.BASE_IMAGE}
    data["loadtests"] = {"short": LOAD}
    file.write_text(json.dumps(data), encoding="utf-8")
    (root / LOAD["requests"][0]["prompts"]).write_text(json.dumps(ASKED), encoding="utf-8")
    write_model(
        root / "model_repository", BY_HAND, TWO_COLUMNS, imports=IMPORTS, requirements=WIDTH
    )
    project = load_project(root)
    build(project, OLD)
    succeeded(root, "render")
    rendered(root, OVERRIDE["services"])
    handle = Deployed(project, MODEL)
    yield handle
    handle.stop()


@pytest.fixture
def project(deployed: Deployed, proven: None, request: pytest.FixtureRequest) -> Project:
    """The project, for one test: its server has just answered."""
    deployed.ready(request.node)
    return deployed.project


def build(project: Project, letter: str) -> None:
    """A version that answers with this letter."""
    write_version(project.root, letter)
    build_engine(project, MODEL, Silent())


def others(letter: str) -> list[str]:
    """The versions that answer with another one."""
    return [other for other in (OLD, NEW, NEWER) if other != letter]


@contextmanager
def changed(file: Path, more: str) -> Iterator[None]:
    """A file with more at its end, for a time."""
    before = file.read_text(encoding="utf-8")
    file.write_text(before + more, encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(before, encoding="utf-8")


def test_no_request_is_lost_and_the_new_version_serves(
    project: Project, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 users, two reloads; the container is the same one, and a restart of it serves the last."""
    state = running_server(project)
    load, first = Load(state.grpc_url), answer(state)
    with load.going_on():
        load.until(first)
        for letter in others(first):
            build(project, letter)
            done = cli("reload", MODEL, "--json", cwd=project.root)
            assert done.returncode == 0, done.stderr
            load.until(letter)
    record = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n{load.answers}, last reload {record['duration_seconds']:.1f} s")  # noqa: T201
    assert load.errors == {}
    assert set(load.answers) == {OLD, NEW, NEWER}
    assert (record["gap_seconds"], record["abandoned"], record["servers"]) == (0, 0, 1)
    after = running_server(project)
    assert isinstance(state, ContainerServer)
    assert isinstance(after, ContainerServer)
    assert after.deployment == state.deployment
    assert_clean(project, state, BY_HAND)


def test_a_version_that_does_not_load_leaves_the_old_one(project: Project, cli: Cli) -> None:
    """Exit code 7 with Triton's reason; nobody was refused, nothing lies beside."""
    state = running_server(project)
    load, before = Load(state.grpc_url), answer(state)
    build(project, others(before)[0])
    backend = project.root / "python_backends" / "replay_engine" / "model.py"
    with changed(backend, '\nraise ImportError("a broken version")\n'), load.going_on():
        load.until(before)
        done = cli("reload", MODEL, cwd=project.root)
    assert done.returncode == 7
    assert "a broken version" in done.stderr
    assert "keeps serving" in done.stderr
    assert load.errors == {}
    assert answer(state) == before
    assert_clean(project, state, BY_HAND)


def test_what_needs_another_container_is_refused(
    project: Project, deployed: Deployed, cli: Cli
) -> None:
    """Other packages, more memory than the container may take: exit code 7, before anything."""
    state = running_server(project)
    before = answer(state)
    build(project, others(before)[0])
    assert isinstance(state, ContainerServer)
    deployed.spent = True  # its memory is not what the deployment says
    limit = ["update", "--memory", "400m", "--memory-swap", "400m", state.deployment.container]
    subprocess.run([machine.program("docker"), *limit], check=True, capture_output=True)
    small = cli("reload", MODEL, cwd=project.root)
    assert (small.returncode, "does not fit in addition" in small.stderr) == (7, True)
    assert "raise docker.memory" in small.stderr
    requirements = project.root / "python_backends" / "replay_engine" / "requirements.txt"
    with changed(requirements, "packaging==24.2\n"):
        other = cli("reload", MODEL, cwd=project.root)
    assert (other.returncode, "needs a different image" in other.stderr) == (7, True)
    assert "tritonctl down" in other.stderr
    assert answer(state) == before


@pytest.mark.exhaustive
def test_a_model_by_hand(project: Project, cli: Cli) -> None:
    """Its packages are in the image; status, infer, reload, loadtest and down know it."""
    repository = project.repository

    def told(*words: str) -> Any:
        done = cli(*words, "--json", cwd=project.root)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def doubled() -> list[float]:
        answer: list[float] = told("infer", BY_HAND, "--input", "x=[1, 2]")["outputs"]["y"]
        return answer

    assert told("status")["models"][BY_HAND] == "READY"
    assert doubled() == [2.0, 4.0]
    write_model(repository, BY_HAND, f"10 * {TWO_COLUMNS}", imports=IMPORTS)
    assert told("reload", BY_HAND)["loaded"] == [BY_HAND]
    assert doubled() == [20.0, 40.0]
    write_model(repository, BY_HAND, TWO_COLUMNS, imports="import nowhere\n")
    failed = cli("reload", BY_HAND, cwd=project.root)
    assert (failed.returncode, "No module named 'nowhere'" in failed.stderr) == (7, True)
    assert f"the previous version of {BY_HAND} keeps serving" in failed.stderr
    with changed(repository / BY_HAND / "1" / "requirements.txt", "packaging==24.2\n"):
        other = cli("reload", BY_HAND, cwd=project.root)
    assert (other.returncode, f"{BY_HAND} needs a different image" in other.stderr) == (7, True)
    sent = cli("loadtest", "run", "short", "--json", cwd=project.root)
    assert sent.returncode in (0, 8, 9), sent.stderr  # 9: on a busy machine it is sent late
    measured = json.loads(sent.stdout)
    assert (measured["counts"]["ok"], measured["errors"]) == (20, [])
    assert doubled() == [20.0, 40.0]
    assert told("down")["stopped"] is True
    assert f"successfully unloaded '{BY_HAND}'" in cli("logs", cwd=project.root).stdout
