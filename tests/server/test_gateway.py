# SPDX-License-Identifier: Apache-2.0
"""A real Envoy in front of two real Tritons: what passes, who may, how often, to whom it goes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.envoy_process import Envoy, upstream_of
from tests.gateway.test_configuration import make_certificate
from tests.page_reader import DOCS, Reader, blocks, typed
from tests.servers import Handle, wait_until
from tritonctl.errors import ServerBusyError, UsageError
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.generation import SamplingParameters, generation_request, read_chunk
from tritonctl.security.certificates import tls_section

pytestmark = pytest.mark.server

PROMPT = "777777 in English:"
LONG = SamplingParameters(max_tokens=60, end_id=-1)
STEP_SECONDS = 0.05  # amid an answer
MODEL = "int8"
KEY = "k3y-of-alice"
Metadata = Sequence[tuple[str, str]]
Start = Callable[..., Envoy]


@pytest.fixture
def start(pair: list[Handle], tmp_path: Path) -> Iterator[Start]:
    """Starts Envoy with these settings in front of both."""
    running: list[Envoy] = []

    def make(**gateway: Any) -> Envoy:
        envoy = Envoy(tmp_path, [upstream_of(replica.state) for replica in pair], gateway)
        running.append(envoy)
        envoy.start()
        return envoy

    yield make
    for envoy in running:
        envoy.close()


def text_of(url: str, prompt: str = PROMPT, metadata: Metadata = ()) -> str:
    """A streamed answer; raises grpc.RpcError as it comes."""
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = generation_request(MODEL, prompt, SamplingParameters())
        responses = stub.ModelStreamInfer(iter([request]), metadata=list(metadata), timeout=60)
        return "".join(chunk.text for r in responses if (chunk := read_chunk(r)[0]))


def code_of(url: str, metadata: Metadata = ()) -> tuple[grpc.StatusCode, str]:
    """How a stream ends."""
    try:
        text_of(url, metadata=metadata)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def rest(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body."""
    connection = http.client.HTTPConnection(url, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, body=data, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def slow(pair: list[Handle]) -> None:
    """A long answer takes some seconds from now on."""
    for handle in pair:
        handle.pace(STEP_SECONDS)


def accesses(envoy: Envoy, count: int) -> list[dict[str, Any]]:
    """The access log once it has so many lines."""
    wait_until(lambda: len(envoy.accesses()) >= count, f"{count} lines of access log")
    return envoy.accesses()


def test_streams_are_exact_and_both_replicas_answer(
    start: Start, pair: list[Handle], held_out: list[dict[str, str]]
) -> None:
    """Sixteen at a time over one connection; neither replica has all of them."""
    prompts = [line["text_input"] for line in held_out[:48]]
    envoy = start()

    async def answers(url: str) -> list[str]:
        gate = asyncio.Semaphore(16)
        async with AsyncTritonClient(url) as client:

            async def one(prompt: str) -> str:
                async with gate:
                    return (await client.generate(MODEL, prompt, timeout=120)).text

            return await asyncio.gather(*(one(prompt) for prompt in prompts))

    assert asyncio.run(answers(envoy.url)) == asyncio.run(answers(pair[0].url))
    lines = accesses(envoy, len(prompts))
    used = Counter(line["replica"] for line in lines)
    assert set(used) == {replica.url for replica in pair}
    # Envoy draws two replicas by chance, in one of four times the slower one twice: that is 12 of
    # 48 for it at worst, on average, and fewer than 4 in less than one of 1,000 runs.
    assert min(used.values()) >= len(prompts) // 12
    # Our client leaves at the final response, before the status.
    assert {line["grpc_status"] for line in lines} <= {"OK", "Unknown"}
    assert {line["status"] for line in lines} == {200}
    assert {line["path"] for line in lines} == {"/inference.GRPCInferenceService/ModelStreamInfer"}


def test_tokens_are_not_held_back(pair: list[Handle], start: Start) -> None:
    """They come as they are made: the first one long before the last."""
    slow(pair)
    with TritonClient(start().url) as client:
        answer = client.generate(MODEL, PROMPT, LONG)
    assert answer.num_output_tokens == 60
    assert answer.timing.ttft_ms is not None
    assert answer.timing.ttft_ms < answer.timing.e2e_ms / 3


def test_rest_on_the_same_port(start: Start) -> None:
    """Health, metadata, one answer, a stream of events."""
    url = start().url
    assert rest(url, "GET", "/v2/health/ready")[0] == 200
    assert json.loads(rest(url, "GET", "/v2")[1])["name"] == "triton"
    assert json.loads(rest(url, "GET", f"/v2/models/{MODEL}")[1])["name"] == MODEL
    assert rest(url, "GET", f"/v2/models/{MODEL}/versions/1/ready")[0] == 200
    status, body = rest(url, "POST", f"/v2/models/{MODEL}/generate", {"text_input": PROMPT})
    assert status == 200
    streamed = {"text_input": PROMPT, "stream": True}
    status, events = rest(url, "POST", f"/v2/models/{MODEL}/generate_stream", streamed)
    assert status == 200
    pieces = [json.loads(line[6:]) for line in events.decode().split("\n\n") if line]
    assert len(pieces) > 1
    assert "".join(piece["text_output"] for piece in pieces) == json.loads(body)["text_output"]


OPERATORS_CALLS = {
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name=MODEL),
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name=MODEL),
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(name="x"),
    "CudaSharedMemoryStatus": service_pb2.CudaSharedMemoryStatusRequest(),
    "TraceSetting": service_pb2.TraceSettingRequest(),
    "LogSettings": service_pb2.LogSettingsRequest(),
    "ModelConfig": service_pb2.ModelConfigRequest(name=MODEL),
    "ModelStatistics": service_pb2.ModelStatisticsRequest(),
}


def test_operators_methods_are_refused(pair: list[Handle], start: Start) -> None:
    """Triton itself would have answered."""
    with grpc.insecure_channel(start().url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for method, request in OPERATORS_CALLS.items():
            with pytest.raises(grpc.RpcError) as caught:
                getattr(stub, method)(request, timeout=30)
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED, method
            assert "not through the gateway" in (caught.value.details() or ""), method
    with grpc.insecure_channel(pair[0].url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL)).ready


OPERATORS_PATHS = [
    ("POST", "/v2/repository/index"),
    ("POST", f"/v2/repository/models/{MODEL}/unload"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("GET", "/v2/cudasharedmemory/status"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/logging"),
    ("GET", "/v2/models/stats"),
    ("GET", f"/v2/models/{MODEL}/stats"),
    ("GET", f"/v2/models/{MODEL}/config"),
    ("GET", f"/v2/models/{MODEL}/%63onfig"),
    ("GET", f"/v2/models/{MODEL}/ready/../config"),
    ("GET", f"/v2/models/{MODEL}//config"),
    ("GET", "/v2/models/%73tats"),
    ("GET", "/v2//models/stats"),
    ("GET", "/metrics"),
    ("GET", "/"),
]


def test_operators_paths_are_refused(start: Start) -> None:
    """Also where they are written in another way."""
    url = start().url
    answers = {
        (method, path): rest(url, method, path, {} if method == "POST" else None)[0]
        for method, path in OPERATORS_PATHS
    }
    assert answers == dict.fromkeys(OPERATORS_PATHS, 403)


def test_slashes_that_are_escaped(start: Start) -> None:
    """What different servers read differently does not pass at all."""
    assert rest(start().url, "GET", f"/v2/models/{MODEL}%2fconfig")[0] == 400


def tenants(folder: Path, **limits: Any) -> dict[str, Any]:
    """Alice with these limits and Bob with none; their keys in files."""
    (folder / "alice.key").write_text(f"{KEY}\n")
    (folder / "bob.key").write_text("b0b\n")
    alice = {"api_key_file": "alice.key", **limits}
    return {"alice": alice, "bob": {"api_key_file": "bob.key"}}


def test_keys(start: Start, tmp_path: Path) -> None:
    """Either header; without one only health. The log knows the tenant, nobody knows the key."""
    envoy = start(tenants=tenants(tmp_path))
    model = f"/v2/models/{MODEL}"
    refused, told = code_of(envoy.url)
    assert (refused, "x-api-key" in told) == (grpc.StatusCode.UNAUTHENTICATED, True)
    for wrong in ("", "k", f"{KEY}x", f"Bearer {KEY}"):
        assert code_of(envoy.url, [("x-api-key", wrong)])[0] == grpc.StatusCode.UNAUTHENTICATED
    assert rest(envoy.url, "GET", model)[0] == 401
    assert rest(envoy.url, "GET", "/v2/health/ready")[0] == 200
    assert code_of(envoy.url, [("x-api-key", KEY)])[0] == grpc.StatusCode.OK
    assert code_of(envoy.url, [("authorization", "Bearer b0b")])[0] == grpc.StatusCode.OK
    assert rest(envoy.url, "GET", model, headers={"X-Api-Key": KEY})[0] == 200
    lines = accesses(envoy, 10)
    assert [line["tenant"] for line in lines[-3:]] == ["alice", "bob", "alice"]
    assert KEY not in envoy.log.read_text() + envoy.admin("/stats/prometheus")


def test_the_guide_to_keys(pair: list[Handle], tmp_path: Path) -> None:
    """docs/how-to/tls-and-keys.md to the letter, but that Envoy is a process, no container."""
    steps = blocks(DOCS / "how-to" / "tls-and-keys.md")
    steps = steps[next(n for n, step in enumerate(steps) if "openssl rand" in step.text) :]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    person = Reader(tmp_path, os.environ | {"PATH": path})
    make_keys, make_certificates, section, deploy, ask = steps[:5]
    for command in (*typed(make_keys), *typed(make_certificates)):
        person.type(command)
    assert "tritonctl deploy compose" in deploy.text  # tests/docker/test_secured.py does that
    settings = yaml.safe_load(section.text)["gateway"]
    with Envoy(tmp_path, [upstream_of(replica.state) for replica in pair], settings) as envoy:
        (command,) = typed(ask)
        command = command.replace("gateway.example.com:8080", envoy.url).replace("speller", MODEL)
        assert person.type(command).strip()
        tls = ClientTls(tmp_path / "certs" / "ca.crt", None, None)
        with TritonClient(envoy.url, tls=tls) as nobody, pytest.raises(UsageError, match="key"):
            nobody.generate(MODEL, PROMPT)
        key = ApiKey(tmp_path / "keys" / "alice")
        alice = TritonClient(envoy.url, tls=tls, api_key=key)
        with alice, pytest.raises(ServerBusyError, match="RESOURCE_EXHAUSTED"):
            ask_until_refused(alice)


def ask_until_refused(client: TritonClient) -> None:
    """As often as it may."""
    for _ in range(500):
        client.generate(MODEL, PROMPT, SamplingParameters(max_tokens=1))


def test_a_key_is_changed_while_envoy_runs(start: Start, tmp_path: Path) -> None:
    """The file is what counts: a new key within seconds, no key when it is gone."""
    envoy = start(tenants=tenants(tmp_path))
    assert code_of(envoy.url, [("x-api-key", KEY)])[0] == grpc.StatusCode.OK
    (tmp_path / "alice.key").write_text("n3w\n")
    new = [("x-api-key", "n3w")]
    wait_until(lambda: code_of(envoy.url, new)[0] == grpc.StatusCode.OK, "the new key counts")
    assert code_of(envoy.url, [("x-api-key", KEY)])[0] == grpc.StatusCode.UNAUTHENTICATED
    (tmp_path / "alice.key").unlink()
    wait_until(lambda: code_of(envoy.url, new)[0] != grpc.StatusCode.OK, "no key counts")


def test_limits(start: Start, tmp_path: Path) -> None:
    """Three at once, then RESOURCE_EXHAUSTED for her alone; what is no inference is not counted."""
    envoy = start(tenants=tenants(tmp_path, requests_per_minute=6, burst=3))
    alice = {"x-api-key": KEY}
    for _ in range(6):
        assert rest(envoy.url, "GET", f"/v2/models/{MODEL}", headers=alice)[0] == 200
    codes = [code_of(envoy.url, list(alice.items()))[0] for _ in range(5)]
    assert codes[:3] == [grpc.StatusCode.OK] * 3
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes[3:]
    assert [code_of(envoy.url, [("x-api-key", "b0b")])[0] for _ in range(5)] == [
        grpc.StatusCode.OK
    ] * 5
    asked = {"text_input": PROMPT}
    answers = [
        rest(envoy.url, "POST", f"/v2/models/{MODEL}/generate", asked, alice)[0] for _ in range(3)
    ]
    assert 429 in answers


def test_circuit_breaker(pair: list[Handle], start: Start) -> None:
    """Two streams under way; the others are told UNAVAILABLE at once, and it heals."""
    slow(pair)
    envoy = start(max_requests=2)

    def ask(_: int) -> tuple[str, float]:
        begun = time.monotonic()
        try:
            with TritonClient(envoy.url) as client:
                client.generate(MODEL, PROMPT, LONG, timeout=60)
        except Exception as error:
            return str(error), time.monotonic() - begun
        return "", time.monotonic() - begun

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(8)))
    fine = [seconds for words, seconds in told if not words]
    refused = [(words, seconds) for words, seconds in told if words]
    assert len(fine) >= 2
    assert len(refused) >= 2
    assert all("UNAVAILABLE" in words and "overflow" in words for words, _ in refused)
    assert min(seconds for _, seconds in refused) < max(fine)
    assert code_of(envoy.url)[0] == grpc.StatusCode.OK


def test_tls_at_the_edge(pair: list[Handle], tmp_path: Path) -> None:
    """With a client's certificate where one is asked for; plaintext gets nowhere."""
    make_certificate(tmp_path, "edge")
    make_certificate(tmp_path, "client")
    tls = {"certificate": "edge.crt", "key": "edge.key", "client_ca": "client.crt"}
    upstreams = [upstream_of(replica.state) for replica in pair]
    root, key, chain = (
        (tmp_path / name).read_bytes() for name in ("edge.crt", "client.key", "client.crt")
    )
    request = service_pb2.ModelReadyRequest(name=MODEL)
    with Envoy(tmp_path, upstreams, {"tls": tls}) as envoy:
        known = grpc.ssl_channel_credentials(root, key, chain)
        with grpc.secure_channel(envoy.url, known) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ModelReady(request, timeout=30).ready
        for credentials in (grpc.ssl_channel_credentials(root), None):
            make = grpc.insecure_channel if credentials is None else grpc.secure_channel
            with make(envoy.url, *([credentials] if credentials else [])) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                    stub.ModelReady(request, timeout=30)


def test_tls_to_triton(tls: Handle, tmp_path: Path) -> None:
    """Both sides show a certificate; Envoy looks at Triton's, and at what it is for."""
    section = tls_section(tls.project.root / "certs")
    upstreams = [upstream_of(tls.state)]
    with Envoy(tmp_path, upstreams, server={"tls": section}) as envoy:
        assert text_of(envoy.url)
        assert rest(envoy.url, "GET", f"/v2/models/{MODEL}")[0] == 200
    other = {**section, "ca": str(tls.project.root / "other" / "ca.crt")}
    with Envoy(tmp_path, upstreams, server={"tls": other}) as envoy:
        assert code_of(envoy.url)[0] == grpc.StatusCode.UNAVAILABLE
        assert envoy.metric("envoy_cluster_ssl_fail_verify_error") > 0
    with Envoy(tmp_path, upstreams) as envoy:
        assert code_of(envoy.url)[0] == grpc.StatusCode.UNAVAILABLE
