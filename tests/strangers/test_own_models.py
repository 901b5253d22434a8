# SPDX-License-Identifier: Apache-2.0
"""Models that somebody wrote into `model_repository/` by hand, beside the project's or alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.configurations import BY_HAND
from tests.handwritten import TWICE, write_ensemble, write_model
from tests.servers import ON_FREE_PORTS, Handle
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.runtimes.lifecycle import stop
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

ASK = ("--input", "x=[1, 2]")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a project's folder."""
    command = [sys.executable, "-m", "tritonctl", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=170
    )


def told(folder: Path, *words: str) -> Any:
    """What a command says in JSON; it must succeed."""
    done = run(folder, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def beside(replay_server: Server, replay_handle: Handle) -> Path:
    """A project with a hand-written model among its own, served; as it was afterwards."""
    assert BY_HAND in replay_server.models
    return replay_handle.project.root


def test_it_is_served_like_the_others(beside: Path) -> None:
    """Kept by `render`, ready in `status`, asked by `infer`."""
    assert told(beside, "status")["models"][BY_HAND] == "READY"
    assert told(beside, "render")["removed"] == []
    assert told(beside, "infer", BY_HAND, *ASK)["outputs"] == {"y": [2.0, 4.0]}


def test_a_new_version(beside: Path) -> None:
    """`reload` takes it; one that does not load leaves what is served, and says why."""
    repository = beside / "model_repository"
    write_model(repository, BY_HAND, "5 * x")
    done = told(beside, "reload", BY_HAND)
    assert (done["loaded"], done["fingerprint"]) == ([BY_HAND], None)
    assert told(beside, "infer", BY_HAND, *ASK)["outputs"] == {"y": [5.0, 10.0]}
    write_model(repository, BY_HAND, "5 * x", imports="import nowhere\n")
    failed = run(beside, "reload", BY_HAND)
    assert failed.returncode == 7
    assert "No module named 'nowhere'" in failed.stderr
    assert f"the previous version of {BY_HAND} keeps serving" in failed.stderr
    assert told(beside, "infer", BY_HAND, *ASK)["outputs"] == {"y": [5.0, 10.0]}
    write_model(repository, BY_HAND, TWICE)
    assert told(beside, "reload", BY_HAND)["servers"] == 1
    assert told(beside, "status")["ready"] is True


def test_a_model_that_nobody_has(beside: Path) -> None:
    """Neither the project nor its repository: the nearest of both is named."""
    failed = run(beside, "reload", "by_hend")
    assert (failed.returncode, f"did you mean `{BY_HAND}`?" in failed.stderr) == (2, True)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Path]:
    """A project whose own model was never built, and three by hand: one cannot be loaded."""
    model = {"checkpoint": "nowhere", "engine": {"builder": "openvino", "precision": "int8"}}
    data = {"schema": "tritonctl/v1", "models": {"later": model}, "server": ON_FREE_PORTS}
    (tmp_path / "tritonctl.yaml").write_text(json.dumps(data), encoding="utf-8")
    repository = tmp_path / "model_repository"
    # Those of the other servers here, so that one environment does for all.
    tokenizer = bundled.find("python_backends/tokenizer/requirements.txt")
    pins = tokenizer.read_text(encoding="utf-8")
    write_model(repository, "good", TWICE, requirements=pins)
    write_model(repository, "bad", TWICE, imports="import nowhere\n")
    write_ensemble(repository, "around", "bad")
    yield tmp_path
    stop(load_project(tmp_path), Silent())


def test_one_that_does_not_load(alone: Path) -> None:
    """`up` names it, its reason once, and the command for the others; that one works."""
    failed = run(alone, "up", "--models", "good,bad,around")
    assert failed.returncode == 7
    assert failed.stderr.count("model bad: Internal: ModuleNotFoundError") == 1
    assert failed.stderr.count("No module named 'nowhere'") == 1
    assert "`tritonctl up --models good`" in failed.stderr
    assert run(alone, "status").returncode == 7
    assert told(alone, "up", "--models", "good")["models"] == ["good"]
    assert told(alone, "status")["models"] == {"good": "READY"}
    assert told(alone, "infer", "good", *ASK)["outputs"] == {"y": [2.0, 4.0]}
    again = told(alone, "up", "--models", "good")
    assert again["started"] is False
    other = run(alone, "up", "--models", "good,bad")
    assert other.returncode == 7
    assert "`tritonctl up --models bad,good` again" in other.stderr
    assert told(alone, "down")["stopped"] is True


def test_all_of_them(alone: Path) -> None:
    """The project's own has no engine; nothing is started or written."""
    failed = run(alone, "up")
    assert failed.returncode == 3
    assert "nowhere is not a folder" in failed.stderr
    assert not (alone / ".tritonctl" / "rendered.json").exists()
