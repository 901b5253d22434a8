# SPDX-License-Identifier: Apache-2.0
"""`tritonctl up --mode docker` as a user meets it: a server's whole life, and what can lack."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.docker.deployments import OVERRIDE, Composed, rendered, succeeded
from tests.docker.machine import program
from tritonctl.host.gpus import installed_gpus

pytestmark = pytest.mark.docker

NOBODY = 65534
ABSENT = "tritonctl-test.invalid/none:1"


@pytest.fixture(scope="module")
def project(deployable: Path, composed: Composed) -> Path:
    """The project with its deployment, which nobody else has started."""
    composed.stop()
    rendered(deployable, OVERRIDE["services"])
    return deployable


@pytest.fixture(autouse=True)
def down(project: Path, proven: None) -> Iterator[None]:
    """Whatever a test has started is stopped."""
    yield
    if not nothing_started(project):
        succeeded(project, "down")


def nothing_started(project: Path) -> bool:
    return not (project / ".tritonctl" / "server" / "state.json").exists()


def test_the_whole_life(project: Path, cli: Cli) -> None:
    """up, again, status, generate, logs, down: as with the embedded server."""
    up = cli("up", "--mode", "docker", "--json", cwd=project, timeout=600)
    assert up.returncode == 0, up.stderr
    record = json.loads(up.stdout)
    assert record["started"] is True
    assert len(record["container"]) == 64
    again = cli("up", "--mode", "docker", "--json", cwd=project)
    assert json.loads(again.stdout)["started"] is False
    status = json.loads(cli("status", "--json", cwd=project).stdout)
    assert (status["ready"], status["grpc"]) == (True, record["grpc"])
    answer = cli("generate", "speller", "7342 in English:", cwd=project)
    assert answer.stdout == " seven thousand three hundred forty-two\n"
    assert "Started GRPCInferenceService" in cli("logs", cwd=project).stdout
    down = cli("down", cwd=project)
    assert down.returncode == 0, down.stderr
    assert cli("status", cwd=project).returncode == 7
    assert "successfully unloaded 'speller_engine'" in cli("logs", cwd=project).stdout
    assert nothing_started(project)


def test_a_port_that_is_taken(project: Path, cli: Cli) -> None:
    """Told before anything is built or started."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        done = cli("up", "--mode", "docker", "--set", f"server.grpc_port={port}", cwd=project)
    assert done.returncode == 4
    assert f"port {port} (server.grpc_port) is in use" in done.stderr
    assert nothing_started(project)


def test_an_image_that_no_registry_gives(project: Path, cli: Cli) -> None:
    """Neither is it here: the command that brings it is named."""
    shutil.move(project / "deploy", project / "put-aside")
    try:
        done = cli("up", "--mode", "docker", "--set", f"docker.image={ABSENT}", cwd=project)
    finally:
        shutil.move(project / "put-aside", project / "deploy")
    assert done.returncode == 4
    assert f"{ABSENT} is not on this machine" in done.stderr
    assert f"docker pull {ABSENT}" in done.stderr
    assert nothing_started(project)


@pytest.mark.exhaustive
def test_an_outdated_deployment(project: Path, cli: Cli) -> None:
    """Rendered anew where nobody changed it, else refused; nothing is started in its old form."""
    file = project / "deploy" / "compose.yaml"
    try:
        done = cli("up", "--mode", "docker", "--set", f"docker.image={ABSENT}", cwd=project)
        assert (done.returncode, ABSENT in file.read_text(encoding="utf-8")) == (4, True)
        assert "has been rendered again: compose.yaml" in done.stderr
        file.write_text(file.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
        done = cli("up", "--mode", "docker", cwd=project)
        assert (done.returncode, "compose.yaml: changed by hand" in done.stderr) == (3, True)
        assert "tritonctl deploy compose --force" in done.stderr
    finally:
        cli("deploy", "compose", "--force", cwd=project)
    assert nothing_started(project)


@pytest.mark.skipif(bool(installed_gpus()[0]), reason="this machine has a GPU")
def test_an_engine_for_a_gpu_without_one(project: Path, cli: Cli) -> None:
    """Before any image of many gigabytes is asked for."""
    group = "models.speller.serving.instance_group=[{kind: KIND_GPU}]"
    done = cli("up", "--mode", "docker", "--set", group, cwd=project)
    cli("render", cwd=project)
    assert done.returncode == 4, done.stderr
    assert "need an NVIDIA GPU, and this machine has none" in done.stderr
    assert nothing_started(project)


def test_a_user_who_may_not_use_docker(
    project: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client, run as nobody, is refused by the real socket."""
    source = (
        f"#!{sys.executable}\nimport os, sys\n"
        f"if 'compose' not in sys.argv:\n    os.setuid({NOBODY})\n"
        f"os.execv({program('docker')!r}, ['docker', *sys.argv[1:]])\n"
    )
    (tmp_path / "docker").write_text(source, encoding="utf-8")
    (tmp_path / "docker").chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path), prepend=":")
        done = cli("up", "--mode", "docker", cwd=project)
    assert done.returncode == 4
    assert "no permission to use Docker's socket" in done.stderr
    assert "usermod -aG docker" in done.stderr
    assert nothing_started(project)


def test_an_engine_that_is_not_there(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that nobody listens on."""
    with monkeypatch.context() as patched:
        patched.setenv("DOCKER_HOST", f"unix://{project}/none.sock")
        done = cli("up", "--mode", "docker", cwd=project)
    assert done.returncode == 4
    assert "its engine does not answer" in done.stderr
    assert nothing_started(project)


@pytest.mark.parametrize("profile", ["cpu", "gpu", "observability", "gateway"])
def test_compose_accepts_every_profile(project: Path, profile: str) -> None:
    """`docker compose config`, which knows every key and type."""
    command = [program("docker"), "compose", "--profile", profile, "config", "--quiet"]
    done = subprocess.run(
        command, cwd=project / "deploy", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_compose_refuses_a_key_that_it_does_not_know(project: Path, tmp_path: Path) -> None:
    """The check above can fail."""
    text = (project / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    (tmp_path / "compose.yaml").write_text(text.replace("cap_drop", "cap_dorp"), encoding="utf-8")
    command = [program("docker"), "compose", "--profile", "cpu", "config", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "cap_dorp" in done.stderr
