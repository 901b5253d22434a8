# SPDX-License-Identifier: Apache-2.0
"""Releases in a container: all of them are mounted, and a link leads to the one that is served."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import sample_tokenizers
from tests.docker import machine
from tests.docker.deployments import OVERRIDE, compose, rendered, succeeded, tritonctl
from tests.server.replay import replay_project
from tests.server.test_groups import HEADER, Users, traffic
from tests.server.test_reload import MODEL, NEW, OLD, Load, answer, write_version
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.releases.store import stored_releases
from tritonctl.server.groups import Slot, make_stable, start_candidate, stop_group
from tritonctl.server.health import health
from tritonctl.server.lifecycle import running_server
from tritonctl.server.state import ContainerServer

pytestmark = [pytest.mark.docker, pytest.mark.exhaustive]


@pytest.fixture
def project(
    proven: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """Two releases, the second one served from a container."""
    root = tmp_path / f"tritonctl-releases-{os.getpid()}"
    tokenizer = sample_tokenizers.byte_level(tmp_path_factory.mktemp("tokenizer"))
    replay_project(root, {MODEL: (tokenizer, [])})
    file = root / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["server"] |= {"mode": "docker", "restart": True}
    data["docker"] = {"base_image": machine.BASE_IMAGE}
    file.write_text(json.dumps(data), encoding="utf-8")
    for letter in (OLD, NEW):
        write_version(root, letter)
        succeeded(root, "build")
        assert json.loads(succeeded(root, "release", "--json"))["smoke"]["status"] == "not run"
    rendered(root, OVERRIDE["services"])
    try:
        succeeded(root, "up", "--release", "latest")
        yield load_project(root)
    finally:
        tritonctl(root, "down")


def test_back_without_a_lost_request(project: Project) -> None:
    """The container stays the same one, and serves the same release when it is restarted."""
    state = running_server(project)
    assert isinstance(state, ContainerServer)
    assert answer(state) == NEW
    load = Load(state.grpc_url, 4)
    with load.going_on():
        load.until(NEW, 4)
        done = json.loads(succeeded(project.root, "rollback", "--json"))
        load.until(OLD, 4)
    assert (load.errors, done["restarted"], done["gap_seconds"]) == ({}, None, 0)
    after = running_server(project)
    assert isinstance(after, ContainerServer)
    assert (after.deployment, after.release) == (state.deployment, done["release"])
    assert health(after).ready
    compose(project.root / "deploy", "restart", "triton")
    compose(project.root / "deploy", "up", "--detach", "--wait", "--no-recreate")
    assert answer(running_server(project)) == OLD


def test_two_groups(project: Project) -> None:
    """Users move to a second deployment and back, to it for good and back to what is warm."""
    succeeded(project.root, "down")
    file = project.root / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    data |= {"rollout": {"user_header": HEADER}, "gateway": {"port": 0, "admin_port": 0}}
    file.write_text(json.dumps(data), encoding="utf-8")
    succeeded(project.root, "up", "--release", "1")
    project = load_project(file)
    releases, users = stored_releases(project), Users(project)
    with users.asking():
        candidate = start_candidate(project, releases[1], Silent())
        assert isinstance(candidate, ContainerServer)
        assert {*users.next_answers().values()} == {OLD}
        moving = traffic(project)
        moving.move(50)
        assert {*users.next_answers().values()} == {OLD, NEW}
        moving.roll_back()
        assert {*users.next_answers().values()} == {OLD}
        moving.move(100)
        make_stable(project, Slot.B)
        assert {*users.next_answers().values()} == {NEW}
        done = json.loads(succeeded(project.root, "rollback", "--json"))
        assert done["restarted"] is None
        assert {*users.next_answers().values()} == {OLD}
        stop_group(project, Slot.B, at_once=True)
        assert {*users.next_answers().values()} == {OLD}
    assert users.errors == {}
    status = json.loads(succeeded(project.root, "status", "--json"))
    assert (status["gateway"]["ready"], status["beside"]) == (True, None)
