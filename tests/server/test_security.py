# SPDX-License-Identifier: Apache-2.0
"""A real Triton over mutual TLS: who gets in, who does not; what needs the server's token."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.another_user import as_nobody, as_root
from tests.conftest import EXAMPLE
from tests.server.test_perf_analyzer import link_libraries, perf_analyzer
from tests.servers import Handle
from tritonctl.errors import HostError, ServerError
from tritonctl.host.progress import Silent
from tritonctl.host.resources import SHARED_MEMORY
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.model_control import ModelControl
from tritonctl.protocol.restrictions import GRPC_HEADER, HTTP_HEADER
from tritonctl.releases.slots import stable_slot
from tritonctl.repository.publish import render
from tritonctl.runtimes.lifecycle import start, stop
from tritonctl.runtimes.server_state import EmbeddedServer, Server, ServerFiles
from tritonctl.security.certificate_checks import certificate_files
from tritonctl.security.certificates import make_certificates, tls_section

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]
# Longer than a start takes on a busy machine.
EXPIRES_IN = timedelta(seconds=75)
MODEL, PROMPT, TEXT = "int8", "7 in English:", " seven"


@pytest.fixture
def project(tls: Handle) -> Project:
    """The int8 speller behind mutual TLS, with a load test, served."""
    return tls.project


@pytest.fixture
def server(tls: Handle) -> Server:
    """It runs."""
    return tls.state


def ask(url: str, tls: ClientTls | None) -> str:
    """One answer over a fresh connection."""
    with TritonClient(url, tls=tls) as client:
        return client.generate(MODEL, PROMPT, timeout=20).text


def test_the_right_certificate_streams_text(server: Server) -> None:
    """Both clients, with what the state file names."""
    assert ask(server.grpc_url, server.client_tls) == TEXT

    async def run() -> str:
        async with AsyncTritonClient(server.grpc_url, tls=server.client_tls) as client:
            return (await client.generate(MODEL, PROMPT, timeout=20)).text

    assert asyncio.run(run()) == TEXT


def _of(project: Project, **files: str) -> ClientTls:
    paths = {name: project.root / file for name, file in files.items()}
    return ClientTls(paths.get("ca"), paths.get("certificate"), paths.get("key"))


@pytest.mark.parametrize(
    "files",
    [
        None,  # plain gRPC
        {"ca": "certs/ca.crt"},  # no certificate to show
        {
            "ca": "certs/ca.crt",
            "certificate": "other/client.crt",
            "key": "other/client.key",
        },
        {  # trusts another authority than the server's
            "ca": "other/ca.crt",
            "certificate": "certs/client.crt",
            "key": "certs/client.key",
        },
    ],
    ids=["plaintext", "no-certificate", "other-ca-s-certificate", "other-ca-trusted"],
)
def test_everybody_else_is_refused(
    project: Project, server: Server, files: dict[str, str] | None
) -> None:
    """The connection is not made; the server goes on for those who may use it."""
    tls = None if files is None else _of(project, **files)
    with pytest.raises(ServerError, match="UNAVAILABLE"):
        ask(server.grpc_url, tls)
    assert ask(server.grpc_url, server.client_tls) == TEXT


def test_a_file_that_is_not_there(project: Project, server: Server) -> None:
    """The client says which."""
    with pytest.raises(HostError, match=r"nowhere\.crt cannot be read"):
        ask(server.grpc_url, _of(project, ca="nowhere.crt"))


@pytest.mark.usefixtures("loadtest_environment")
@pytest.mark.parametrize(
    "engine", ["asyncio", pytest.param("locust", marks=pytest.mark.exhaustive)]
)
def test_the_command_line_needs_no_option(
    project: Project, server: Server, cli: Cli, engine: str
) -> None:
    """`status`, `generate` and `loadtest run`, its generators in processes of their own."""
    assert cli("status", cwd=project.root).returncode == 0
    done = cli("generate", MODEL, PROMPT, cwd=project.root)
    assert (done.returncode, done.stdout) == (0, f"{TEXT}\n"), done.stderr
    output = project.root / f"run-{engine}"
    arguments = ["--no-report", "--json", "--generator", engine, "-o", str(output)]
    run = cli("loadtest", "run", *arguments, cwd=project.root)
    counts = json.loads(run.stdout)["counts"]
    assert (counts["sent"], counts["ok"]) == (20, 20), run.stderr
    plan = (output / "plan.json").read_text()
    assert json.loads(plan)["endpoint"]["tls"]["ca"] == str(project.root / "certs" / "ca.crt")
    assert "BEGIN" not in plan
    assert server.token not in plan


@pytest.mark.exhaustive
def test_perf_analyzer_over_mutual_tls(project: Project, server: Server, tmp_path: Path) -> None:
    """NVIDIA's own client, unmodified, with its own flags."""
    certs = project.root / "certs"
    arguments: list[str | Path] = ["-m", MODEL, "--input-data", EXAMPLE / "perf_analyzer.json"]
    arguments += ["--concurrency-range", "2", "--measurement-interval", "2000", "-s", "90"]
    arguments += ["--ssl-grpc-use-ssl"]
    arguments += ["--ssl-grpc-root-certifications-file", certs / "ca.crt"]
    arguments += ["--ssl-grpc-private-key-file", certs / "client.key"]
    arguments += ["--ssl-grpc-certificate-chain-file", certs / "client.crt"]
    libraries = link_libraries(project, tmp_path / "libraries")
    done = perf_analyzer(libraries, server.grpc_url, arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "throughput" in done.stdout


def test_another_server_by_url(project: Project, server: Server, cli: Cli) -> None:
    """--url with the files named; without them it is not reached."""
    url = ["--url", server.grpc_url, "--timeout", "20"]
    names = ["--ca", "certs/ca.crt", "--certificate", "certs/client.crt", "--key"]
    done = cli("generate", MODEL, PROMPT, *url, *names, "certs/client.key", cwd=project.root)
    assert (done.returncode, done.stdout) == (0, f"{TEXT}\n"), done.stderr
    assert cli("generate", MODEL, PROMPT, *url, cwd=project.root).returncode == 7
    refused = cli("generate", MODEL, PROMPT, "--ca", "certs/ca.crt", cwd=project.root)
    assert refused.returncode == 2
    assert "need the address of a server" in refused.stderr


def test_a_stranger_with_a_certificate(
    project: Project, server: Server, cli: Cli, tmp_path: Path
) -> None:
    """Far from the project, its server is asked and compared by its address and the files named."""
    certs = project.root / "certs"
    names = ["--ca", str(certs / "ca.crt"), "--certificate", str(certs / "client.crt")]
    names += ["--key", str(certs / "client.key")]
    asked = cli("smoke", "--url", server.grpc_url, "--models", MODEL, *names, cwd=tmp_path)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    repository = str(project.repository)
    compare = ("check", repository, "--select", "TCS", "--url", server.grpc_url)
    compared = cli(*compare, *names, "--format", "json", cwd=tmp_path)
    assert [f["rule"] for f in json.loads(compared.stdout)["findings"]] == ["TCS26"]
    assert cli(*compare, cwd=tmp_path).returncode == 7


_READ = """
for name in sys.argv[1:]:
    try:
        print(len(pathlib.Path(name).read_bytes()))
    except PermissionError:
        print("refused")
"""


@as_root
def test_other_users_read_neither_memory_nor_logs(project: Project, server: Server) -> None:
    """Prompts and answers pass through the regions of Triton's stubs, and errors through logs."""
    assert isinstance(server, EmbeddedServer)
    regions = sorted(SHARED_MEMORY.glob(f"{server.shm_prefix}*"))
    log = ServerFiles.of(project, stable_slot(project)).log
    assert len(regions) >= 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in (*regions, log)} == {0o600}
    assert set(as_nobody(_READ, *regions).split()) == {"refused"}


def test_the_token_is_nobody_else_s(project: Project, server: Server) -> None:
    """In files that only their owner may read, and not in the log."""
    files = ServerFiles.of(project)
    for file in (files.state, files.specification):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(server.token) >= 40
    assert server.token not in files.log.read_text(encoding="utf-8", errors="replace")
    assert server.token not in repr(server)


CALLS: dict[str, Any] = {
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name=MODEL),
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name=MODEL),
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(
        name="x", key="/x", byte_size=8
    ),
    "CudaSharedMemoryStatus": service_pb2.CudaSharedMemoryStatusRequest(),
    "TraceSetting": service_pb2.TraceSettingRequest(),
    "LogSettings": service_pb2.LogSettingsRequest(),
}
OPEN: dict[str, Any] = {
    "ServerReady": service_pb2.ServerReadyRequest(),
    "ServerMetadata": service_pb2.ServerMetadataRequest(),
    "ModelMetadata": service_pb2.ModelMetadataRequest(name=MODEL),
    "ModelConfig": service_pb2.ModelConfigRequest(name=MODEL),
    "ModelStatistics": service_pb2.ModelStatisticsRequest(name=MODEL),
}


def call(endpoint: Endpoint, name: str, request: Any, *metadata: tuple[str, str]) -> str:
    """The status of one call."""
    with endpoint.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            getattr(stub, name)(request, timeout=20, metadata=metadata)
        except grpc.RpcError as error:
            status: str = error.code().name
            return status
    return "OK"


@pytest.mark.parametrize("name", CALLS)
def test_restricted_over_grpc(server: Server, name: str) -> None:
    """Refused without the token and with a wrong one."""
    for metadata in ((), ((GRPC_HEADER, "wrong"),), ((HTTP_HEADER, server.token),)):
        assert call(server.endpoint, name, CALLS[name], *metadata) == "UNAVAILABLE"
    assert ask(server.grpc_url, server.client_tls) == TEXT


@pytest.mark.parametrize("name", ["RepositoryIndex", "LogSettings", "TraceSetting"])
def test_the_token_opens_them(server: Server, name: str) -> None:
    """With Triton's own prefix."""
    assert call(server.endpoint, name, CALLS[name], *server.endpoint.admin_metadata) == "OK"


@pytest.mark.parametrize("name", OPEN)
def test_what_nvidia_s_clients_read_stays_open(server: Server, name: str) -> None:
    """No token."""
    assert call(server.endpoint, name, OPEN[name]) == "OK"


def http_status(server: Server, method: str, path: str, **headers: str) -> int:
    """The status of one HTTP request."""
    connection = http.client.HTTPConnection(urlsplit(server.http_url).netloc, timeout=20)
    try:
        connection.request(method, path, body=b"{}" if method == "POST" else None, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", f"/v2/repository/models/{MODEL}/load"),
        ("POST", f"/v2/repository/models/{MODEL}/unload"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("GET", "/v2/cudasharedmemory/status"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/trace/setting"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/logging"),
    ],
)
def test_restricted_over_http(server: Server, method: str, path: str) -> None:
    """403 without the token and with a wrong one."""
    assert http_status(server, method, path) == 403
    assert http_status(server, method, path, **{HTTP_HEADER: "wrong"}) == 403


def test_http_with_the_token_and_what_is_open(server: Server) -> None:
    """Health and metadata need none."""
    assert http_status(server, "GET", "/v2/logging", **{HTTP_HEADER: server.token}) == 200
    for path in ("/v2", "/v2/health/ready", f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/config"):
        assert http_status(server, "GET", path) == 200, path
    assert http_status(server, "GET", f"/v2/models/{MODEL}/stats") == 200


def test_model_control_sends_it(server: Server) -> None:
    """As the tuner does; without it the server is as good as not there."""
    name = f"{MODEL}_tokenizer"
    with ModelControl(server.endpoint) as control:
        control.load(name, control.config(name))
        control.wait_until_ready([name, MODEL])
    without = replace(server.endpoint, token="")
    with ModelControl(without) as control, pytest.raises(ServerError, match="UNAVAILABLE"):
        control.load(name, control.config(name))
    assert ask(server.grpc_url, server.client_tls) == TEXT


def with_tls(project: Project, *overrides: str, **fields: Any) -> Project:
    """A project with TLS from its folder's `certs`; None leaves a field out."""
    file = project.root / "tritonctl.yaml"
    record = json.loads(file.read_text())
    tls = tls_section(Path("certs")) | fields
    record["server"]["tls"] = {name: path for name, path in tls.items() if path is not None}
    file.write_text(json.dumps(record))
    return load_project(file, overrides=overrides)


def test_tls_for_every_client(small_project: Project, server: Server) -> None:
    """Without client_ca nobody has to show a certificate; plain gRPC is refused all the same.

    Each server has a token of its own.
    """
    make_certificates(small_project.root / "certs")
    nobody = {"client_ca": None, "client_certificate": None, "client_key": None}
    project = with_tls(small_project, **nobody)
    state, _ = start(project, render(project, Silent()), Silent())
    assert ask(state.grpc_url, ClientTls(project.root / "certs" / "ca.crt")) == TEXT
    with pytest.raises(ServerError, match="UNAVAILABLE"):
        ask(state.grpc_url, None)
    assert state.token != server.token


def listens(address: str, port: int) -> bool:
    """Whether a connection to that address is accepted."""
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_beyond_loopback_only_grpc_is_open(small_project: Project) -> None:
    """Told to take the risk, the server is reached by other addresses, HTTP and metrics are not."""
    make_certificates(small_project.root / "certs")
    everywhere = ("server.address=0.0.0.0", "server.accept_known_holes=true")
    project = with_tls(small_project, *everywhere)
    state, _ = start(project, render(project, Silent()), Silent())
    assert ask(state.grpc_url, state.client_tls) == TEXT
    assert listens("127.0.0.2", state.grpc_port)
    for port in (state.http_port, state.metrics_port):
        assert listens("127.0.0.1", port)
        assert not listens("127.0.0.2", port)


@pytest.mark.exhaustive
def test_a_certificate_that_expires_under_a_running_server(small_project: Project) -> None:
    """Connections that are there go on; new ones are refused; the next start tells why."""
    make_certificates(small_project.root / "certs", lifetime=EXPIRES_IN)
    project = with_tls(small_project)
    state, _ = start(project, render(project, Silent()), Silent())
    expires = certificate_files(project)["certificate"].certificates[0].not_valid_after_utc
    with TritonClient(state.grpc_url, tls=state.client_tls) as connected:
        assert connected.generate(MODEL, PROMPT, timeout=20).text == TEXT
        time.sleep(max(0.0, (expires - datetime.now(UTC)).total_seconds()) + 1.5)
        assert connected.generate(MODEL, PROMPT, timeout=20).text == TEXT
        with pytest.raises(ServerError, match="UNAVAILABLE"):
            ask(state.grpc_url, state.client_tls)
    stop(project, Silent())
    with pytest.raises(HostError, match=r"server\.tls\.certificate: .* expired on"):
        start(project, render(project, Silent()), Silent())
