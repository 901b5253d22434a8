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
from tests.server.test_reload import MODEL, NEW, OLD, Load, answer, write_version
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
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
