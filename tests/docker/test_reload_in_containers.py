# SPDX-License-Identifier: Apache-2.0
"""`tritonctl reload` of a server that runs in a container: as of the embedded one, nothing is lost.

The engine replays one token for ever, each version another: an answer tells who gave it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import sample_tokenizers
from tests.conftest import Cli
from tests.docker import machine
from tests.docker.conftest import OVERRIDE
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
from tritonctl.engines.build.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.server.lifecycle import running_server

pytestmark = pytest.mark.docker


@pytest.fixture
def project(docker: None, nothing_left: None, tmp_path: Path, cli: Cli) -> Iterator[Project]:
    """The old version, served from a container."""
    tokenizer = sample_tokenizers.byte_level(tmp_path)
    root = tmp_path / f"tritonctl-reload-{os.getpid()}"
    replay_project(root, {MODEL: (tokenizer, [])})
    file = root / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["server"] |= {"mode": "docker"}
    data["docker"] = {"base_image": machine.BASE_IMAGE}
    file.write_text(json.dumps(data), encoding="utf-8")
    project = load_project(root)
    build(project, OLD)
    assert cli("render", cwd=root).returncode == 0
    assert cli("deploy", "compose", cwd=root).returncode == 0
    override = root / "deploy" / "compose.override.yaml"
    override.write_text(yaml.safe_dump(OVERRIDE), encoding="utf-8")
    up = cli("up", cwd=root, timeout=600)
    assert up.returncode == 0, up.stderr
    yield project
    cli("down", cwd=root)


def build(project: Project, letter: str) -> None:
    """A version that answers with this letter."""
    write_version(project.root, letter)
    build_engine(project, MODEL, Silent())


def test_no_request_is_lost_and_the_new_version_serves(
    project: Project, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 users, two reloads; the container is the same one, and a restart of it serves the last."""
    state = running_server(project)
    load = Load(state.grpc_url)
    with load.going_on():
        load.until(OLD)
        for letter in (NEW, NEWER):
            build(project, letter)
            done = cli("reload", MODEL, "--json", cwd=project.root)
            assert done.returncode == 0, done.stderr
            load.until(letter)
    record = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n{load.answers}, last reload {record['seconds']:.1f} s")  # noqa: T201
    assert load.errors == {}
    assert set(load.answers) == {OLD, NEW, NEWER}
    assert (record["gap_seconds"], record["abandoned"], record["servers"]) == (0, 0, 1)
    assert running_server(project).deployment == state.deployment
    assert_clean(project, state)


def test_a_version_that_does_not_load_leaves_the_old_one(project: Project, cli: Cli) -> None:
    """Exit code 7 with Triton's reason; nobody was refused, nothing lies beside."""
    state = running_server(project)
    load = Load(state.grpc_url)
    with (project.root / "python_backends" / "replay_engine" / "model.py").open("a") as code:
        code.write('\nraise ImportError("a broken version")\n')
    build(project, NEW)
    with load.going_on():
        load.until(OLD)
        done = cli("reload", MODEL, cwd=project.root)
    assert done.returncode == 7
    assert "a broken version" in done.stderr
    assert "goes on serving" in done.stderr
    assert load.errors == {}
    assert answer(state) == OLD
    assert_clean(project, state)


def test_what_needs_another_container_is_refused(project: Project, cli: Cli) -> None:
    """Other packages, more memory than the container may take: exit code 7, before anything."""
    build(project, NEW)
    state = running_server(project)
    assert state.deployment is not None
    limit = ["update", "--memory", "400m", "--memory-swap", "400m", state.deployment.container]
    subprocess.run([machine.program("docker"), *limit], check=True, capture_output=True)
    small = cli("reload", MODEL, cwd=project.root)
    assert (small.returncode, "does not fit beside the first" in small.stderr) == (7, True)
    assert "raise docker.memory" in small.stderr
    requirements = project.root / "python_backends" / "replay_engine" / "requirements.txt"
    with requirements.open("a", encoding="utf-8") as file:
        file.write("packaging==24.2\n")
    other = cli("reload", MODEL, cwd=project.root)
    assert (other.returncode, "needs another image" in other.stderr) == (7, True)
    assert "tritonctl down" in other.stderr
    assert answer(state) == OLD
