# SPDX-License-Identifier: Apache-2.0
"""Machines that lack something for containers, each with programs that answer as theirs do.

The real refusals of a real engine are in tests/docker/.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.handwritten import TWICE, write_model
from tests.unit.conftest import MODEL, Cli, Sandbox
from tritonctl.errors import CommandFailedError, HostError
from tritonctl.host.gpus import installed_gpus
from tritonctl.repository.contents import HandwrittenModel
from tritonctl.runtimes.docker.compose_command import (
    Compose,
    port_error,
    require_docker,
    require_image,
)

VERSION_1 = "1.29.2"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, body: str) -> None:
    """A program: Python with its arguments in `args`."""
    file = folder / name
    file.write_text(
        f"#!{sys.executable}\nimport sys\nargs = sys.argv[1:]\n{body}\n", encoding="utf-8"
    )
    file.chmod(0o755)


WITHOUT_COMPOSE = """
sys.stderr.write("docker: 'compose' is not a docker command.\\n")
sys.exit(1)
"""
WITH_COMPOSE = """
if args[0] == "compose":
    print("2.26.1")
    sys.exit(0)
sys.stderr.write("Cannot connect to the Docker daemon. Is the docker daemon running?\\n")
sys.exit(1)
"""


def test_no_docker(programs: Path) -> None:
    """The way without it is named."""
    with pytest.raises(HostError, match="Docker is not installed") as caught:
        require_docker()
    assert "--mode embedded" in caught.value.remedy


def test_no_compose_at_all(programs: Path) -> None:
    """The plugin is named."""
    install(programs, "docker", WITHOUT_COMPOSE)
    with pytest.raises(HostError, match="no compose plugin") as caught:
        require_docker()
    assert "docker-compose-plugin" in caught.value.remedy


def test_compose_of_the_first_version_only(programs: Path) -> None:
    """It would refuse the file with words that help nobody."""
    install(programs, "docker", WITHOUT_COMPOSE)
    install(programs, "docker-compose", f"print({VERSION_1!r})")
    with pytest.raises(HostError, match=rf"only Compose v1 is installed .*{VERSION_1}"):
        require_docker()


def test_an_engine_that_is_not_running(programs: Path) -> None:
    """Docker's own words come along."""
    install(programs, "docker", WITH_COMPOSE)
    with pytest.raises(HostError, match="engine does not answer") as caught:
        require_docker()
    assert "systemctl start docker" in caught.value.remedy
    assert "Is the docker daemon running?" in str(caught.value.details)


PROXY = (
    "Error response from daemon: driver failed programming external connectivity on endpoint "
    "demo-envoy-1 (b6249f): Error starting userland proxy: listen tcp4 127.0.0.1:18080: bind: "
    "address already in use"
)
OTHER = (
    "Error response from daemon: driver failed programming external connectivity on endpoint "
    "demo-envoy-1 (b6249f): Bind for 192.0.2.7:443 failed: port is already allocated"
)


@pytest.mark.parametrize(
    ("said", "port", "address"), [(PROXY, "18080", "127.0.0.1"), (OTHER, "443", "192.0.2.7")]
)
def test_a_port_that_docker_finds_taken(said: str, port: str, address: str) -> None:
    """Somebody else's, or another container's: which port it is, before all that Docker says."""
    failed = CommandFailedError("it failed", remedy="read", details=said, returncode=1)
    error = port_error(failed)
    assert error is not None
    assert error.problem == f"cannot publish port {port} on {address}: it is in use"
    assert f"ss -ltnp | grep :{port}" in error.remedy
    other = CommandFailedError("it failed", remedy="read", details="no space left", returncode=1)
    assert port_error(other) is None


@pytest.mark.skipif(bool(installed_gpus()[0]), reason="this machine has a GPU")
def test_an_engine_for_a_gpu_without_one(sandbox: Sandbox, cli: Cli) -> None:
    """Told before an engine is asked for, which nobody can build here."""
    group = f"models.{MODEL}.serving.instance_group=[{{kind: KIND_GPU}}]"
    done = cli("up", "--mode", "docker", "--set", group)
    assert (done.returncode, "need an NVIDIA GPU" in done.stderr) == (4, True), done.stderr
    by_hand = write_model(sandbox.root / "model_repository", "mine", TWICE)
    with (by_hand.parents[1] / "config.pbtxt").open("a", encoding="utf-8") as file:
        file.write("instance_group [{ kind: KIND_GPU }]\n")
    done = cli("up", "--mode", "docker")
    assert (done.returncode, "this machine has none (mine)" in done.stderr) == (4, True), (
        done.stderr
    )


def test_the_command_ends_with_4_and_leaves_nothing(
    built: Sandbox, cli: Cli, programs: Path
) -> None:
    """`up --mode docker` on a machine without Docker."""
    done = cli("up", "--mode", "docker")
    assert done.returncode == 4, done.stderr
    assert "Docker is not installed" in done.stderr
    assert not (built.root / ".tritonctl" / "server" / "state.json").exists()


SERVICE = {"services": {"triton": {"build": {"args": {"BASE_IMAGE": "example/base:1"}}}}}
# `docker compose build`, the steps that went well included: BuildKit shows them all.
BUILDING = """
import json
if "config" in args:
    print(json.dumps({service!r}))
    sys.exit(0)
print("#3 [triton internal] load metadata for docker.io/example/base:1")
print({said!r})
sys.exit(17)
"""


def test_an_image_with_another_file(programs: Path, tmp_path: Path) -> None:
    """pip refuses a package whose hash is not in the lock: which one, and why that may be."""
    refused = "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If"
    lines = [f"ERROR: {refused}", "    one==1.0 from https://a.example/one.whl (from -r x):"]
    lines += [f"        Expected sha256 {number:064}" for number in range(30)]
    lines += [f"             Got        {1:064}"]
    said = "\n".join(f"#9 4.123 {line}" for line in lines)
    install(programs, "docker", BUILDING.format(service=SERVICE, said=said))
    context = tmp_path / "deploy" / "triton"
    context.mkdir(parents=True)
    (context / "cpu_requirements.lock").touch()
    compose = Compose(str(programs / "docker"), context.parent, "demo")
    with pytest.raises(HostError) as caught:
        require_image(compose, "triton", [], lambda _: None)
    assert f"one==1.0 (SHA-256 {1:064}) from https://a.example/one.whl" in caught.value.problem
    assert str(context / "cpu_requirements.lock") in caught.value.problem
    assert "a mirror that rebuilds packages" in caught.value.remedy


@pytest.mark.parametrize(
    ("said", "problem", "remedy"),
    [
        ("#9 ERROR: No matching distribution found for WCwidth==99.1", "mine/1", "as a wheel"),
        ("#9   ERROR: Failed building wheel for wcwidth", "mine/1", "as a wheel"),
        ("#9 ERROR: No matching distribution found for other==1", "status 17", "compose build"),
        ("#6 ERROR: executor failed running: network bridge not found", "status 17", "deploy"),
        (" > [triton internal] load metadata for a/b:1:\nno such host", "base:1 is not", "pull"),
    ],
)
def test_an_image_that_cannot_be_built(
    programs: Path, tmp_path: Path, said: str, problem: str, remedy: str
) -> None:
    """Whose package it is, that its base is missing, or what was printed."""
    install(programs, "docker", BUILDING.format(service=SERVICE, said=said))
    version = tmp_path / "mine" / "1"
    version.mkdir(parents=True)
    (version / "requirements.txt").write_text("wcwidth\n", encoding="utf-8")
    deployment = tmp_path / "deploy"
    deployment.mkdir()
    compose = Compose(str(programs / "docker"), deployment, "demo")
    models = [HandwrittenModel("mine", version.parent)]
    with pytest.raises(HostError) as caught:
        require_image(compose, "triton", models, lambda _: None)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert caught.value.details is not None
    assert said.splitlines()[-1] in caught.value.details
