# SPDX-License-Identifier: Apache-2.0
"""A Docker Engine with Compose and a base image, and a project that is ready to be deployed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import speller_model
from tests.container_engine import DockerHost, MissingError
from tests.docker import machine
from tests.docker.deployments import Composed
from tests.engine_cache import build_cached
from tritonctl.project.file import load_project


@pytest.fixture(scope="session", autouse=True)
def composing(docker_host: DockerHost) -> Iterator[None]:
    """The engine and Compose for these tests; at their end no container or volume is left."""
    with pytest.MonkeyPatch.context() as environment:
        try:
            for name, value in (docker_host.variables | machine.plugins()).items():
                environment.setenv(name, value)
            machine.import_base_image()
        except MissingError as missing:
            pytest.skip(f"NO DOCKER: compose is not tested here: {missing}")
        # Of an engine of the machine's own, what others run is not ours to judge.
        prefix = "" if docker_host.variables else "tritonctl-"
        before = leftovers(prefix)
        yield
        assert leftovers(prefix) == before


@pytest.fixture(autouse=True)
def proven(composing: None, docker_host: DockerHost) -> None:
    """For each test: an engine that has just answered."""
    docker_host.prove()


@pytest.fixture(scope="session")
def deployable(composing: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder: int8 engine built."""
    folder = tmp_path_factory.mktemp("compose") / f"tritonctl-test-{os.getpid()}"
    folder.mkdir()
    data = {
        "schema": "tritonctl/v1",
        "models": {"speller": speller_model()},
        "server": {"grpc_port": 0, "http_port": 0, "metrics_port": 0, "exit_timeout_seconds": 60},
        "docker": {"base_image": machine.BASE_IMAGE},
    }
    (folder / "tritonctl.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    build_cached(load_project(folder))
    return folder


@pytest.fixture(scope="session")
def composed(deployable: Path) -> Iterator[Composed]:
    """The speller under plain `docker compose`, up as long as tests use it."""
    handle = Composed(load_project(deployable))
    yield handle
    handle.stop()


@pytest.fixture
def running(composed: Composed, proven: None, request: pytest.FixtureRequest) -> Path:
    """Its folder, for one test: the server in it has just answered."""
    return composed.up(request.node)


def leftovers(prefix: str) -> dict[str, list[str]]:
    """What Docker has of names that begin so, images apart."""
    commands = {
        "containers": ["ps", "--all", "--format", "{{.Names}}"],
        "networks": ["network", "ls", "--format", "{{.Name}}"],
        "volumes": ["volume", "ls", "--format", "{{.Name}}"],
    }
    found = {}
    for kind, command in commands.items():
        listing = [machine.program("docker"), *command]
        done = subprocess.run(listing, check=True, capture_output=True, text=True)
        found[kind] = sorted(name for name in done.stdout.split() if name.startswith(prefix))
    return found
