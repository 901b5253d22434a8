# SPDX-License-Identifier: Apache-2.0
"""Two servers behind mutual TLS and a gateway with TLS and API keys, all of them in containers.

The engine replays one token for ever, each version another: an answer tells who gave it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import sample_tokenizers
from tests.conftest import Cli
from tests.docker import machine
from tests.docker.deployments import OVERRIDE, Deployed, rendered, succeeded
from tests.json_page import as_documented
from tests.server.replay import replay_project
from tests.server.test_reload import ASK, MODEL, NEW, OLD, TOKENS, Load, write_version
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ServerError, TritonctlError, UsageError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.client import TritonClient
from tritonctl.runtimes.discovery import current_servers
from tritonctl.runtimes.docker.compose import deployment_name
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.runtimes.server_state import ContainerServer, Server, ServerFiles, read_state
from tritonctl.security.certificates import make_certificates, tls_section

pytestmark = pytest.mark.docker

USERS = 8  # two servers, Envoy and they share what the machine has
SERVER_USER = 1000  # of the container, where the model repository is root's
PATIENCE_SECONDS = 120.0


class Secured(Deployed):
    """Servers behind a gateway, whose ports are chosen anew where somebody has taken them."""

    def answers(self) -> bool:
        """Also through the gateway."""
        if not super().answers():
            return False
        try:
            return asked(gateway(self.project)) in {OLD, NEW}
        except TritonctlError:
            return False

    def _start(self) -> None:
        write_version(self.project.root, OLD)
        build_engine(self.project, MODEL, Silent())
        succeeded(self.project.root, "render")
        with reserved_ports("127.0.0.1", {"port": 0, "admin_port": 0}) as ports:
            self._start_at(*ports)

    def _start_at(self, port: int, admin_port: int) -> None:
        file = self.project.root / "tritonctl.yaml"
        data = json.loads(file.read_text(encoding="utf-8"))
        data["gateway"] |= {"port": port, "admin_port": admin_port}
        file.write_text(json.dumps(data), encoding="utf-8")
        self.project = load_project(self.project.root)
        override = OVERRIDE["services"] | {"envoy": OVERRIDE["services"]["triton"]}
        rendered(self.project.root, override)
        super()._start()


@pytest.fixture(scope="module")
def secured(composing: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The old version, served by two containers behind the gateway."""
    folder = tmp_path_factory.mktemp("secured")
    root = folder / f"tritonctl-secured-{os.getpid()}"
    replay_project(root, {MODEL: (sample_tokenizers.byte_level(folder), [])})
    tell_of_streams(root / "python_backends" / "replay_engine" / "model.py")
    make_certificates(root / "certs", ["triton"])
    make_certificates(root / "other")
    (root / "keys").mkdir()
    (root / "keys" / "alice").write_text("k3y-of-alice\n", encoding="utf-8")
    for file in (*(root / "certs").iterdir(), root / "keys" / "alice"):
        os.chown(file, SERVER_USER, SERVER_USER)
    (root / "keys" / "wrong").write_text("k3y-of-nobody\n", encoding="utf-8")
    file = root / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    tls = tls_section(Path("certs"))
    data["server"] |= {"mode": "docker", "restart": True, "tls": tls, "exit_timeout_seconds": 60}
    data["docker"] = {"base_image": machine.BASE_IMAGE, "replicas": 2}
    data["gateway"] = {
        "tls": {"certificate": "certs/server.crt", "key": "certs/server.key"},
        "tenants": {"alice": {"api_key_file": "keys/alice"}},
    }
    file.write_text(json.dumps(data), encoding="utf-8")
    handle = Secured(load_project(root), MODEL)
    yield handle
    handle.stop()


@pytest.fixture
def project(secured: Secured, proven: None, request: pytest.FixtureRequest) -> Project:
    """The project, for one test: its servers and the gateway have just answered."""
    secured.ready(request.node)
    return secured.project


def tell_of_streams(engine: Path) -> None:
    """As every engine of ours does: a server that is to end waits for streams that it knows of."""
    text = engine.read_text(encoding="utf-8")
    assert "publishes_metrics=False" in text
    publishing = text.replace("publishes_metrics=False", "publishes_metrics=True")
    engine.write_text(publishing, encoding="utf-8")


def gateway(project: Project, key: str = "alice", ca: str = "certs") -> TritonClient:
    """A client of the gateway."""
    assert project.gateway is not None
    return TritonClient(f"127.0.0.1:{project.gateway.port}", **way_in(project, key, ca))


def way_in(project: Project, key: str = "alice", ca: str = "certs") -> dict[str, Any]:
    """The authority to trust, and the key to show."""
    tls = ClientTls(project.root / ca / "ca.crt", None, None)
    return {"tls": tls, "api_key": ApiKey(project.root / "keys" / key)}


def asked(client: TritonClient) -> str:
    """The letter that is answered."""
    with client:
        answer = client.generate(MODEL, "x", ASK, timeout=60)
    assert answer.num_output_tokens == TOKENS
    return answer.text[-1]


def servers(project: Project) -> list[Server]:
    """Both of them."""
    return current_servers(running_server(project))


def test_a_server_in_a_container_speaks_mutual_tls(project: Project, cli: Cli) -> None:
    """Each server: the right certificate is answered, nobody else is; commands know their way."""
    both = servers(project)
    assert len({server.grpc_url for server in both}) == 2
    other = project.root / "other"
    ours = project.root / "certs"
    for server in both:
        assert asked(TritonClient(server.grpc_url, tls=server.client_tls)) == OLD
        for tls in (
            None,
            ClientTls(ours / "ca.crt", None, None),
            ClientTls(ours / "ca.crt", other / "client.crt", other / "client.key"),
            ClientTls(other / "ca.crt", ours / "client.crt", ours / "client.key"),
        ):
            with pytest.raises(ServerError):
                asked(TritonClient(server.grpc_url, tls=tls))
    done = cli("generate", MODEL, "x", "--max-tokens", "3", "--seed", "0", cwd=project.root)
    assert (done.returncode, done.stdout.strip()) == (0, OLD * 3), done.stderr


def test_the_gateway_wants_a_key(project: Project) -> None:
    """TLS at the edge, the tenant's key; the secret is in no container's environment or command."""
    assert asked(gateway(project)) == OLD
    with pytest.raises(UsageError, match="no such API key"):
        asked(gateway(project, key="wrong"))
    with pytest.raises(ServerError):
        asked(gateway(project, ca="other"))
    names = subprocess.run(
        [machine.program("docker"), "ps", "--quiet"], check=True, capture_output=True, text=True
    )
    shown = subprocess.run(
        [machine.program("docker"), "inspect", *names.stdout.split()],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "k3y-of-alice" not in shown.stdout
    assert "PRIVATE KEY" not in shown.stdout


def test_a_rolling_restart_loses_no_stream(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users through the gateway while one container after the other is restarted."""
    assert project.gateway is not None
    load = Load(f"127.0.0.1:{project.gateway.port}", USERS, **way_in(project))
    began = time.monotonic()
    with load.going_on():
        load.until(OLD)
        for server in servers(project):
            assert isinstance(server, ContainerServer)
            restart = ["restart", "--time", "90", server.deployment.container]
            subprocess.run([machine.program("docker"), *restart], check=True, capture_output=True)
            wait_until_healthy(server.deployment.container)
            load.until(OLD, load.answers[OLD] + 16)
    with capsys.disabled():
        print(  # noqa: T201
            f"\nrolling restart: {time.monotonic() - began:.1f} s, {load.answers}, {load.errors}"
        )
    assert load.errors == {}


@contextmanager
def somebody_else_at(server: Server) -> Iterator[None]:
    """Listens where a server was, so that Docker cannot choose those ports again."""
    with ExitStack() as held:
        for port in (server.grpc_port, server.http_port, server.metrics_port):
            held.enter_context(socket.create_server((server.address, port)))
        yield


def docker_on_first(project: Project, verb: str) -> ContainerServer:
    """`docker stop` or `docker start` of the container that `up` wrote down."""
    recorded = read_state(ServerFiles.of(project))
    assert isinstance(recorded, ContainerServer)
    command = [machine.program("docker"), verb, recorded.deployment.container]
    subprocess.run(command, check=True, capture_output=True)
    return recorded


def test_commands_find_a_container_that_came_back_elsewhere(project: Project, cli: Cli) -> None:
    """While it is away the other server answers; somebody who took its ports is not asked."""
    before = running_server(project)
    recorded = docker_on_first(project, "stop")
    with somebody_else_at(before):
        away = cli("status", "--json", cwd=project.root)
        told = json.loads(away.stdout)
        assert (away.returncode, told["ready"]) == (7, False)
        assert [one["container"] for one in told["servers"]] == ["exited", "running"]
        assert "1 of 2 servers" in cli("status", cwd=project.root).stdout
        assert_commands_answer(project, cli)
        docker_on_first(project, "start")
        wait_until_healthy(recorded.deployment.container)
        now = running_server(project)
        assert isinstance(now, ContainerServer)
        assert now.deployment == recorded.deployment
        assert now.grpc_port != before.grpc_port
        back = cli("status", "--json", cwd=project.root)
        assert back.returncode == 0, back.stdout
        assert json.loads(back.stdout)["servers"][0]["grpc"] == now.grpc_url
        assert_commands_answer(project, cli)
        again = cli("up", "--json", cwd=project.root)
        record = json.loads(again.stdout)
        assert (record["started"], record["grpc"]) == (False, now.grpc_url), again.stderr


def assert_commands_answer(project: Project, cli: Cli) -> None:
    """Those that look up the project's server, each by another of its ports."""
    asked = cli("generate", MODEL, "x", "--max-tokens", "3", "--seed", "0", cwd=project.root)
    assert (asked.returncode, asked.stdout.strip()) == (0, OLD * 3), asked.stderr
    seen = cli("top", "--once", "--json", "--interval", "0.2", cwd=project.root)
    assert (seen.returncode, json.loads(seen.stdout)["problem"]) == (0, None), seen.stderr


def wait_until_healthy(container: str) -> None:
    """As Docker, and a deployment that rolls, sees it."""
    command = ["inspect", "--format", "{{.State.Health.Status}}", container]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = subprocess.run(
            [machine.program("docker"), *command], check=True, capture_output=True, text=True
        )
        if done.stdout.strip() == "healthy":
            return
        assert time.monotonic() < deadline, done.stdout
        time.sleep(0.2)


@pytest.mark.exhaustive
def test_a_reload_reaches_both_servers(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, under users of the gateway; then nobody answers with the old one."""
    assert project.gateway is not None
    write_version(project.root, NEW)
    build_engine(project, MODEL, Silent())
    load = Load(f"127.0.0.1:{project.gateway.port}", USERS, **way_in(project))
    with load.going_on():
        load.until(OLD)
        done = as_documented("reload", succeeded(project.root, "reload", MODEL, "--json"))
        load.until(NEW)
    with capsys.disabled():
        print(f"\nreload of both: {done['duration_seconds']:.1f} s, {load.answers}")  # noqa: T201
    assert load.errors == {}
    assert (done["servers"], done["gap_seconds"]) == (2, 0)
    answers = [
        asked(TritonClient(server.grpc_url, tls=server.client_tls)) for server in servers(project)
    ]
    assert answers == [NEW, NEW]


@pytest.mark.exhaustive
def test_a_gateway_s_port_that_is_taken(project: Project, cli: Cli) -> None:
    """It is named; the server, which had started already, is stopped again, nothing is left."""
    assert project.gateway is not None
    succeeded(project.root, "down")
    with socket.create_server(("127.0.0.1", project.gateway.port)):
        done = cli("up", cwd=project.root, timeout=600)
    assert done.returncode == 4, done.stderr
    assert f"cannot publish port {project.gateway.port}" in done.stderr
    assert not ServerFiles.of(project).state.exists()
    label = f"label=com.docker.compose.project={deployment_name(project)}"
    left = subprocess.run(
        [machine.program("docker"), "ps", "--all", "--quiet", "--filter", label],
        check=True,
        capture_output=True,
        text=True,
    )
    assert left.stdout == ""
