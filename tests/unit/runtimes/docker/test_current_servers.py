# SPDX-License-Identifier: Apache-2.0
"""Where a deployment's servers are now, told by a program that answers as Docker does.

Real containers that come back on other ports are in tests/docker/test_secured.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtimes.docker.test_compose_command import WITH_COMPOSE, install
from tests.unit.runtimes.test_server_state import STATE
from tritonctl.errors import HostError, ServerError
from tritonctl.releases.slots import Slot
from tritonctl.runtimes.discovery import is_running
from tritonctl.runtimes.docker.discovery import containers, current_servers, refresh_server
from tritonctl.runtimes.docker.lifecycle import exit_problem
from tritonctl.runtimes.docker.openai_url import OpenAiApi, deployment_api
from tritonctl.runtimes.embedded import gateway
from tritonctl.runtimes.server_state import (
    ContainerServer,
    Deployment,
    from_record,
    to_record,
    write_state,
)

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

FIRST, SECOND = "a" * 64, "b" * 64
DEPLOYMENT = Deployment(
    FIRST, "/r/deploy", "demo", "triton", ["cpu"], "unix:///nowhere/docker.sock"
)
# `docker ps` names what is there, `docker container inspect` tells of those it is asked for.
ANSWERS = """
import json
records = json.loads({records!r})
if args[0] == "ps":
    assert "--filter=label=com.docker.compose.project=demo" in args
    service = [arg for arg in args if ".service=" in arg][0].rpartition("=")[2]
    mine = [one for one in records if one.get("service", "triton") == service]
    print("\\n".join(record["Id"] for record in reversed(mine)))
    sys.exit(0)
assert args[:2] == ["container", "inspect"]
found = [record for record in records if record["Id"] in args]
print(json.dumps(found))
if len(found) < len(args[2:]):
    sys.stderr.write("Error: No such container: x\\n")
    sys.exit(1)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def record(container: str, number: int, status: str, port: int, asked: str = "") -> dict[str, Any]:
    """What `docker inspect` shows; the three ports follow each other. asked: a fixed gRPC port."""
    ports = {
        f"{inside}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port + at)}]
        for at, inside in enumerate((8001, 8000, 8002))
    }
    return {
        "Id": container,
        "State": {"Status": status, "Pid": 4000 + number},
        "Config": {"Labels": {"com.docker.compose.container-number": str(number)}},
        "NetworkSettings": {"Ports": ports if port else {}},
        "HostConfig": {"PortBindings": {"8001/tcp": [{"HostIp": "", "HostPort": asked}]}},
    }


def state(programs: Path, *records: dict[str, Any]) -> ContainerServer:
    """The state that `up` wrote, while Docker knows of these containers."""
    install(programs, "docker", ANSWERS.format(records=json.dumps(records)))
    known = to_record(STATE) | {"deployment": asdict(DEPLOYMENT)}
    server = from_record(known)
    assert isinstance(server, ContainerServer)
    return server


def test_the_same_container_on_other_ports(programs: Path) -> None:
    """And under another process id; nothing else is asked for."""
    here = refresh_server(state(programs, record(FIRST, 1, "running", 40000)))
    assert here is not None
    assert (here.grpc_port, here.http_port, here.metrics_port) == (40000, 40001, 40002)
    assert (here.pid, here.deployment) == (4001, DEPLOYMENT)


@pytest.mark.parametrize("status", ["exited", "dead", "created"])
def test_another_one_while_it_is_away(programs: Path, status: str) -> None:
    """As long as one serves there is a server."""
    two = (record(FIRST, 1, status, 0), record(SECOND, 2, "running", 40000))
    here = refresh_server(state(programs, *two))
    assert here is not None
    assert (here.deployment.container, here.grpc_port) == (SECOND, 40000)


def test_containers_that_compose_has_made_anew(programs: Path) -> None:
    """The one that was written down is gone, Docker says so, and its labels name the new one."""
    here = refresh_server(state(programs, record(SECOND, 1, "running", 40000)))
    assert here is not None
    assert here.deployment.container == SECOND


def test_a_frozen_one_is_there(programs: Path) -> None:
    """`docker pause`: it does not answer, and has not ended either."""
    assert is_running(state(programs, record(FIRST, 1, "paused", 40000)))


def test_a_fixed_port_stays_while_it_starts_again(programs: Path) -> None:
    """Docker tells it only as what was asked for."""
    here = refresh_server(state(programs, record(FIRST, 1, "restarting", 0, asked="8001")))
    assert here is not None
    assert here.grpc_port == 8001


def test_no_port_yet_out_of_a_range(programs: Path) -> None:
    """Several servers share what was asked for."""
    with pytest.raises(ServerError, match="no ports yet"):
        current_servers(state(programs, record(FIRST, 1, "restarting", 0, asked="9001-9002")))


def test_a_gateway_beside_them_asks_each(programs: Path, sandbox: Sandbox) -> None:
    """Every server of a slot is an endpoint of Envoy's, by the ports that Docker published."""
    sandbox.data["server"]["mode"] = "docker"
    sandbox.data["docker"] = {"replicas": 2}
    sandbox.data["rollout"] = {"user_header": "x-user-id"}
    sandbox.write()
    project = sandbox.load()
    two = (record(FIRST, 1, "running", 40000), record(SECOND, 2, "running", 50000))
    gateway.write_endpoints(project, Slot.B, state(programs, *two))
    for cluster, ports in (("triton_grpc_b", [40000, 50000]), ("triton_rest_b", [40001, 50001])):
        file = gateway.GatewayFiles.of(project).endpoints / f"{cluster}.json"
        [resource] = json.loads(file.read_text(encoding="utf-8"))["resources"]
        [group] = resource["endpoints"]
        found = [each["endpoint"] for each in group["lb_endpoints"]]
        addresses = [each["address"]["socket_address"] for each in found]
        assert [each["port_value"] for each in addresses] == ports
        checked = [each["health_check_config"]["port_value"] for each in found]
        assert checked == [40001, 50001]


def test_none_while_docker_has_chosen_no_port(programs: Path) -> None:
    """Somebody else may listen where it was."""
    starting = state(programs, record(FIRST, 1, "restarting", 0), record(SECOND, 2, "exited", 0))
    with pytest.raises(ServerError, match="Docker is restarting the servers of demo") as error:
        refresh_server(starting)
    assert "tritonctl logs" in error.value.remedy


def test_all_of_them_by_number(programs: Path) -> None:
    """A reload takes those that run, and waits for those that are about to."""
    two = (record(FIRST, 1, "running", 40000), record(SECOND, 2, "running", 50000))
    assert [each.grpc_port for each in current_servers(state(programs, *two))] == [40000, 50000]
    assert [each.number for each in containers(DEPLOYMENT)] == [1, 2]
    one = state(programs, two[0], record(SECOND, 2, "exited", 0))
    assert [each.grpc_port for each in current_servers(one)] == [40000]
    with pytest.raises(ServerError, match="no ports yet"):
        current_servers(state(programs, two[0], record(SECOND, 2, "restarting", 0)))


def test_none_at_all(programs: Path) -> None:
    """They have ended, or are gone."""
    assert refresh_server(state(programs, record(FIRST, 1, "exited", 0))) is None
    assert refresh_server(state(programs)) is None


def test_a_docker_that_does_not_answer_is_told_as_that(programs: Path) -> None:
    """Nothing is known of the server then: it may serve well."""
    here = state(programs)
    install(programs, "docker", WITH_COMPOSE)
    with pytest.raises(HostError, match="engine does not answer"):
        refresh_server(here)


def test_commands_end_with_4_where_docker_has_gone(
    built: Sandbox, cli: Cli, programs: Path
) -> None:
    """None of them takes the server for dead; `doctor` reports all the same."""
    from tritonctl.runtimes.server_state import ServerFiles

    write_state(ServerFiles.of(built.load()), state(programs))
    (programs / "docker").unlink()
    for verb in (["status"], ["top", "--once"], ["generate", "m", "x"], ["down"]):
        done = cli(*verb)
        assert (done.returncode, "Docker is not installed" in done.stderr) == (4, True), done.stderr
    assert "ports" in cli("doctor").stdout


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"Status": "exited", "ExitCode": 1, "RestartCount": 0}, "startup with status 1"),
        ({"Status": "running", "ExitCode": 0, "RestartCount": 1}, "exited during startup"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "memory (docker.memory)"),
        ({}, "exited during startup"),
    ],
)
def test_why_a_container_ended(status: dict[str, Any], told: str) -> None:
    """A status is named where Docker still knows it."""
    assert exit_problem(status).endswith(told)


EDGE = {"port": 8090, "tls": {"certificate": "edge.crt", "key": "edge.key"}}


@pytest.mark.parametrize(
    ("gateway", "service", "inside", "url"),
    [
        (None, "frontend", 9100, "http://127.0.0.1:9555/v1"),
        (EDGE, "envoy", 8090, "https://127.0.0.1:9555/v1"),
        (EDGE, "frontend", 9100, "http://127.0.0.1:9555/v1"),
    ],
)
def test_where_clients_find_the_openai_api(
    gateway: Any, service: str, inside: int, url: str, programs: Path, sandbox: Sandbox
) -> None:
    """The frontend's own port, or the gateway's before it; as Docker has published it.

    Its own as well where the gateway runs beside the containers.
    """
    sandbox.data["frontend"] = {"port": 9100}
    if gateway is not None:
        sandbox.data["gateway"] = gateway
    project = sandbox.load()
    front = record(FIRST, 1, "running", 0) | {"service": "frontend"}
    front["State"]["Health"] = {"Status": "healthy"}
    edge = front if service == "frontend" else record(SECOND, 1, "running", 0)
    edge |= {"service": service}
    edge["NetworkSettings"]["Ports"] = {f"{inside}/tcp": [{"HostPort": "9555"}]}
    deployment = state(programs, front, edge).deployment
    assert deployment_api(project, deployment) is None  # not started with it
    edges = ["gateway"] if service == "envoy" else []
    deployment = replace(deployment, profiles=["cpu", "frontend", *edges])
    assert deployment_api(project, deployment) == OpenAiApi(url, 4001, ready=True)
    front["State"]["Health"]["Status"] = "starting"
    state(programs, front, edge)
    assert deployment_api(project, deployment) == OpenAiApi(url, 4001, ready=False)
