# SPDX-License-Identifier: Apache-2.0
"""A Docker Engine with Compose and a base image, and a project that is ready to be deployed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.conftest import EXAMPLE
from tests.docker import machine
from tritonctl.engines.build.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project

OVERRIDE = {"services": {"triton": machine.BUILD}}


@pytest.fixture(scope="session")
def docker() -> Iterator[None]:
    """DOCKER_HOST and DOCKER_CONFIG of an engine that has Compose and the base image."""
    with pytest.MonkeyPatch.context() as environment, ExitStack() as running:
        try:
            for name, value in running.enter_context(machine.docker()).items():
                environment.setenv(name, value)
            machine.import_base_image()
        except machine.MissingError as missing:
            pytest.skip(f"NO DOCKER: compose is not tested here: {missing}")
        yield


@pytest.fixture(scope="session")
def deployable(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder: int8 engine built, deploy/ rendered, its image built."""
    folder = tmp_path_factory.mktemp("compose") / f"tritonctl-test-{os.getpid()}"
    folder.mkdir()
    model = {
        "checkpoint": str(EXAMPLE / "checkpoint"),
        "engine": {"builder": "openvino", "precision": "int8", "max_seq_len": 512},
    }
    data = {
        "schema": "tritonctl/v1",
        "models": {"speller": model},
        "server": {"grpc_port": 0, "http_port": 0, "metrics_port": 0, "exit_timeout_seconds": 60},
        "docker": {"base_image": machine.BASE_IMAGE},
    }
    (folder / "tritonctl.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    build_engine(load_project(folder), "speller", Silent())
    return folder


@pytest.fixture
def nothing_left(docker: None) -> Iterator[None]:
    """At the end no container, network or volume is left."""
    before = leftovers()
    yield
    assert leftovers() == before


def leftovers() -> dict[str, str]:
    """What Docker has, images apart."""
    commands = {
        "containers": ["ps", "--all", "--format", "{{.Names}}"],
        "networks": ["network", "ls", "--format", "{{.Name}}"],
        "volumes": ["volume", "ls", "--format", "{{.Name}}"],
    }
    return {
        kind: subprocess.run(
            [machine.program("docker"), *command], check=True, capture_output=True, text=True
        ).stdout
        for kind, command in commands.items()
    }
