# SPDX-License-Identifier: Apache-2.0
"""Releases in a container: all of them are mounted, and a link leads to the one that is served."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests import sample_tokenizers
from tests.docker import machine
from tests.docker.deployments import OVERRIDE, compose, rendered, succeeded, tritonctl
from tests.server.replay import replay_project
from tests.server.test_groups import HEADER, Users, traffic
from tests.server.test_reload import MODEL, NEW, OLD, Load, answer, write_version
from tests.servers import wait_until
from tritonctl.errors import ServerError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.metrics import scrape
from tritonctl.releases.store import stored_releases
from tritonctl.rollout.journal import RolloutPhase
from tritonctl.rollout.shadow.comparison_log import read_comparison_records
from tritonctl.rollout.status import rollout_status
from tritonctl.runtimes.docker.discovery import current_servers
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.runtimes.server_state import ContainerServer, Server
from tritonctl.runtimes.slot_servers import Slot, make_stable, start_candidate, stop_slot

pytestmark = [pytest.mark.docker, pytest.mark.exhaustive]
PATIENCE_SECONDS = 180.0


@pytest.fixture
def project(proven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two releases, the second one served from a container."""
    # Short: the shadow's socket is below it, and the kernel takes names of at most 107 bytes.
    root = tmp_path_factory.mktemp("r") / f"tritonctl-r-{os.getpid()}"
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
        assert (
            json.loads(succeeded(root, "releases", "publish", "--json"))["smoke"]["status"]
            == "not run"
        )
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
        done = json.loads(succeeded(project.root, "releases", "rollback", "--json"))
        load.until(OLD, 4)
    assert (load.errors, done["restarted"], done["gap_seconds"]) == ({}, None, 0)
    after = running_server(project)
    assert isinstance(after, ContainerServer)
    assert (after.deployment, after.release) == (state.deployment, done["release"])
    assert check_health(after).ready
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
        done = json.loads(succeeded(project.root, "releases", "rollback", "--json"))
        assert done["restarted"] is None
        assert {*users.next_answers().values()} == {OLD}
        stop_slot(project, Slot.B, at_once=True)
        assert {*users.next_answers().values()} == {OLD}
    assert users.errors == {}
    status = json.loads(succeeded(project.root, "status", "--json"))
    assert (status["gateway"]["ready"], status["standby"]) == (True, None)


def test_a_rollout_of_two_servers_each(project: Project) -> None:
    """Judged and shadowed as one version; its servers all have users, on ports that stay theirs."""
    root = project.root
    succeeded(root, "down")
    file = root / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    settings = {"user_header": HEADER, "shadow": 0.5, "steps": [50, 100], "hold_seconds": 300.0}
    data |= {"rollout": settings, "gateway": {"port": 0, "admin_port": 0}}
    data["docker"]["replicas"] = 2
    file.write_text(json.dumps(data), encoding="utf-8")
    succeeded(root, "up", "--release", "1")
    project = load_project(file)
    users = Users(project)
    with users.asking():
        users.next_answers()
        before = servers(project)
        assert [answered(server) > 0 for server in before] == [True, True]
    assert users.errors == {}
    docker = [machine.program("docker"), "restart", before[1].deployment.container]
    subprocess.run(docker, check=True, capture_output=True)
    wait_until(lambda: len(servers(project)) == len(before), "Docker has its ports again")
    ports = [[each.grpc_port, each.http_port, each.metrics_port] for each in servers(project)]
    assert ports == [[each.grpc_port, each.http_port, each.metrics_port] for each in before]
    again, users = servers(project)[1], Users(project)
    with users.asking():
        wait_until(lambda: check_health(again).ready and answered(again) > 0, "it has users again")
        succeeded(root, "rollout", "start", "2")
        wait_until(
            lambda: rollout_status(project).state.is_over, "the shadow finds it", PATIENCE_SECONDS
        )
        found = rollout_status(project)
        assert len(servers(project)) == 2
        assert {*users.next_answers().values()} == {OLD}
    assert found.state.phase is RolloutPhase.ROLLED_BACK, found.state
    assert "answers differ" in str(found.state.outcome["reason"])
    lines = list(read_comparison_records(found.folder))
    assert {(line.measurement.noise, line.measurement.candidate) for line in lines} == {(0, 1)}


def servers(project: Project) -> list[ContainerServer]:
    """Of the stable release, by number; none while Docker starts one again."""
    state = running_server(project)
    assert isinstance(state, ContainerServer)
    try:
        return current_servers(state)
    except ServerError:
        return []


def answered(server: Server) -> float:
    """Requests since it began."""
    return scrape(server.metrics_url).total("nv_inference_request_success", model=MODEL)
