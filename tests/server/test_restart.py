# SPDX-License-Identifier: Apache-2.0
"""A real Triton that crashes is started again: what clients lose, how long it takes, what is said.

Figures are printed (`pytest -rP`) and stand in benchmarks/results/faults.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.envoy_process import Envoy, upstream_of
from tests.server.test_faults import ANSWER, PROMPT, SHORT, SOON_SECONDS, Stream, text_of
from tests.servers import Handle, paced_project, server_pid, wait_until
from tritonctl.errors import ServerError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import generation_request
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles
from tritonctl.supervision.restarts import read_restarts

pytestmark = pytest.mark.server

STEP_SECONDS = 0.05
ABORT = "signal 6 (SIGABRT)"
# It took 37 to 161 rounds to crash a server.
ROUNDS = 2000


@pytest.fixture(scope="module")
def handle(speller_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """The int8 speller of a user who changed nothing: it is started again."""
    folder = tmp_path_factory.mktemp("restart") / "restart"
    handle = Handle(paced_project(speller_project, folder, restart=True), "int8")
    yield handle
    handle.stop()


@pytest.fixture
def server(request: pytest.FixtureRequest, handle: Handle) -> Handle:
    """Alive, without a crash so far."""
    handle.ready(request.node, STEP_SECONDS)
    if crashes(handle):
        handle.fresh()
    return handle


def crashes(server: Handle) -> list[str]:
    """How it has crashed."""
    return [each.how for each in read_restarts(ServerFiles.of(server.project).restarts)]


def until_answered(server: Handle, began: float) -> float:
    """Seconds from then until the first token of a request that comes after the crash."""
    state = server.state
    wait_until(lambda: crashes(server), "it crashes")
    with TritonClient(state.grpc_url, resume_on=state.grpc_url) as client:
        next(client.stream("int8", PROMPT, SHORT, timeout=SOON_SECONDS))
    return time.monotonic() - began


def test_streams_go_on_at_the_server_that_was_started_again(
    cli: Callable[..., subprocess.CompletedProcess[str]], server: Handle
) -> None:
    """Those with `resume_on` the same endpoint get every id once; the others are told."""
    state = server.state
    streams = [Stream(state.grpc_url, resume_on) for resume_on in [state.grpc_url, None] * 4]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.begun.wait(SOON_SECONDS)
    killed = time.monotonic()
    os.kill(server_pid(state), signal.SIGABRT)
    first_token = until_answered(server, killed)
    for stream in streams:
        stream.join(SOON_SECONDS)
        assert not stream.is_alive(), "it hangs"
    for stream in streams[::2]:
        assert stream.error is None
        assert stream.whole
        assert stream.resumes > 0
        assert stream.text.startswith(ANSWER)
    assert all(isinstance(stream.error, ServerError) for stream in streams[1::2])
    assert crashes(server) == [ABORT]
    print(f"first token of a new request {first_token:.2f} s after SIGABRT")  # noqa: T201
    record = json.loads(cli("status", "--json", cwd=server.project.root).stdout)
    assert record["ready"] is True
    assert record["crashes"][0]["ready_after"] > 0
    text = cli("status", cwd=server.project.root).stdout
    assert f"{ABORT}; restarted, ready after" in text
    log = ServerFiles.of(server.project).log.read_text(encoding="utf-8")
    assert f"tritonctl: tritonserver crashed: {ABORT}; restarting it" in log


def interleaved(state: EmbeddedServer) -> None:
    """Requests for an unknown model between valid ones, on one gRPC stream, until it ends."""
    known = generation_request("int8", "7 in English:", SHORT)
    unknown = service_pb2.ModelInferRequest()
    unknown.CopyFrom(known)
    unknown.model_name = "nobody"
    with grpc.insecure_channel(state.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        requests = (each for _ in range(ROUNDS) for each in (known, unknown))
        try:
            for _ in stub.ModelStreamInfer(requests):
                pass
        except grpc.RpcError:
            return


def test_unknown_models_amid_valid_requests(server: Handle) -> None:
    """tritonserver 2.51 aborts (`ASSERTION FAILED: !byte_buffer->Valid()`): it is started again."""
    server.pace(0)
    state = server.state
    began = time.monotonic()
    while not crashes(server) and time.monotonic() - began < SOON_SECONDS:
        asking = threading.Thread(target=interleaved, args=(state,), daemon=True)
        asking.start()
        asking.join(SOON_SECONDS)
    ended = time.monotonic()
    first_token = until_answered(server, ended)
    print(  # noqa: T201
        f"crashed after {ended - began:.1f} s: {crashes(server)}; "
        f"first token of a new request {first_token:.2f} s later"
    )
    assert text_of(state.grpc_url, SHORT).startswith(ANSWER[:8])


@pytest.mark.parametrize(("model", "version"), [("nobody", ""), ("int8", "99")])
def test_unknown_models_through_the_gateway(
    server: Handle, tmp_path: Path, model: str, version: str
) -> None:
    """Envoy refuses them, on as many streams as have crashed a server without it."""
    server.pace(0)
    known = generation_request("int8", "7 in English:", SHORT)
    unknown = service_pb2.ModelInferRequest()
    unknown.CopyFrom(known)
    unknown.model_name, unknown.model_version = model, version
    with Envoy(tmp_path, [upstream_of(server.state)]) as envoy:
        for _ in range(100):
            with grpc.insecure_channel(envoy.url) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                with pytest.raises(grpc.RpcError) as refused:
                    list(stub.ModelStreamInfer(iter([known, unknown] * 5), timeout=60))
            assert refused.value.code() == grpc.StatusCode.NOT_FOUND
            assert "is not served here" in str(refused.value.details())
        assert text_of(envoy.url, SHORT).startswith(ANSWER[:8])
    assert crashes(server) == []
