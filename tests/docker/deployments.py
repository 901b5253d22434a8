# SPDX-License-Identifier: Apache-2.0
"""Handles of deployments: brought up once, proven alive for each test, fresh for a retry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.machine import BUILD, program
from tests.servers import LOG_LINES, PROOF, PROOF_SECONDS, USED, ServerHandle
from tritonctl.errors import TritonctlError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.runtimes.discovery import current_servers
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.runtimes.server_state import ContainerServer

OVERRIDE = {"services": {"triton": BUILD}}


def tritonctl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    command = [sys.executable, "-m", "tritonctl", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def succeeded(folder: Path, *arguments: str) -> str:
    """What a command prints that has to succeed."""
    done = tritonctl(folder, *arguments)
    assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def compose(folder: Path, *arguments: str) -> str:
    """`docker compose --profile cpu ARGUMENTS` as a user would type it; what it prints."""
    command = [program("docker"), "compose", "--ansi", "never", "--profile", "cpu", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout.strip()


def rendered(project: Path, services: Mapping[str, Any]) -> Path:
    """The project's deploy/, rendered by the command, with what is different about services."""
    folder = Path(
        json.loads(succeeded(project, "deploy", "compose", "--quiet", "--json"))["folder"]
    )
    assert folder == project / "deploy"
    override = yaml.safe_dump({"services": dict(services)})
    (folder / "compose.override.yaml").write_text(override, encoding="utf-8")
    return folder


def container_logs(folder: Path) -> str:
    """The end of what every container of a deployment wrote."""
    command = [program("docker"), "compose", "--profile", "*", "logs", "--no-color"]
    command += ["--tail", str(LOG_LINES)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}"


class Composed(ServerHandle[ContainerServer]):
    """A project's server under plain `docker compose`, with no command of tritonctl but render."""

    def __init__(self, project: Project) -> None:
        super().__init__(project, next(iter(project.models)))
        self._folder: Path | None = None

    def up(self, item: pytest.Item) -> Path:
        """For one test: the folder of a deployment that answers; a second attempt gets its own."""
        item.stash.setdefault(USED, {})[id(self)] = self
        if getattr(item, "execution_count", 1) > 1 or not self.answers():
            self.fresh()
        assert self._folder is not None
        return self._folder

    def answers(self) -> bool:
        """Whether it generates a token."""
        if self._folder is None:
            return False
        try:
            url = compose(self._folder, "port", "triton", "8001")
            with TritonClient(url) as client:
                model = next(iter(self.project.models))
                done = client.generate(model, "7", PROOF, timeout=PROOF_SECONDS)
        except (TritonctlError, AssertionError):  # it does not run, or does not answer
            return False
        return done.num_output_tokens > 0

    def _start(self) -> None:
        self._folder = rendered(self.project.root, OVERRIDE["services"])
        compose(self._folder, "build")
        try:
            compose(self._folder, "up", "--detach", "--wait")
        except AssertionError as error:
            error.add_note(container_logs(self._folder))
            raise

    def stop(self) -> None:
        """And nothing of it is left."""
        if self._folder is not None:
            compose(self._folder, "--profile", "*", "down", "--volumes")
            self._folder = None

    def log_tail(self) -> str:
        """Of all its containers."""
        return container_logs(self.project.root / "deploy")


class Deployed(ServerHandle[ContainerServer]):
    """A project's servers in containers, by `tritonctl up`."""

    kind = ContainerServer

    def answers(self) -> bool:
        """Whether all of them are ready, and the first one generates a token."""
        if self.spent or not self._states:
            return False
        try:
            servers = current_servers(running_server(self.project))
            if len(servers) < self.project.docker.replicas:
                return False
            return all(check_health(server).ready for server in servers) and self._generates()
        except TritonctlError:
            return False

    def _start(self) -> None:
        try:
            succeeded(self.project.root, "up")
        except AssertionError as error:
            error.add_note(self.log_tail())
            raise
        self._find()

    def stop(self) -> None:
        """And nothing of it is left."""
        succeeded(self.project.root, "down")
        self.spent = False

    def log_tail(self) -> str:
        """Of all its containers."""
        return container_logs(self.project.root / "deploy")
