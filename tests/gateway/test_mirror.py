# SPDX-License-Identifier: Apache-2.0
"""Copies of requests through a real Envoy: what the shadower gets, and what users notice of it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.envoy_copies import copying_envoy
from tests.envoy_process import Envoy, validate
from tests.gateway.test_through_envoy import upstream
from tritonctl.gateway.placement import EnvoyUpstream
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.client import TritonClient
from tritonctl.rollout.shadow.listening import CopyListener, RequestCopy

PATIENCE_SECONDS = 20.0
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Shadower:
    """A listener in a thread of its own, and what it has taken."""

    def __init__(self, path: Path) -> None:
        self.copies: list[RequestCopy] = []
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Shadower:
        self._thread.start()
        self._listener = CopyListener(self._path, self.copies.append)
        self._run(self._listener.start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._listener.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def taken(self, count: int) -> list[RequestCopy]:
        """As soon as there are so many; a moment later there are no more."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.copies) < count:
            assert time.monotonic() < deadline, self.copies
            time.sleep(0.01)
        time.sleep(0.05)
        return self.copies


class _Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def ModelStreamInfer(self, requests: Any, _: Any) -> Any:  # noqa: N802
        """A response to each."""
        for request in requests:
            answer = service_pb2.ModelInferResponse(id=request.id)
            yield service_pb2.ModelStreamInferResponse(infer_response=answer)


@contextmanager
def open_streams(port: int) -> Iterator[None]:
    """Takes the gRPC port of an upstream's, for streams."""
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Triton(), server)
    assert server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    yield
    server.stop(0).wait()


def streamed(url: str, count: int, size: int) -> int:
    """Answers to a stream of so many requests, each of so many bytes."""
    request = service_pb2.ModelInferRequest(model_name="m")
    request.raw_input_contents.append(b"x" * size)
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        requests = iter([request] * count)
        return sum(1 for _ in stub.ModelStreamInfer(requests, timeout=PATIENCE_SECONDS))


def rest(url: str, path: str, body: bytes | None, **headers: str) -> None:
    """Asks by REST."""
    request = Request(f"http://{url}{path}", body, headers)
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
        assert answer.status == 200


def test_what_the_shadower_gets(tmp_path: Path) -> None:
    """Questions to models, by gRPC, REST and OpenAI's API; no metadata, no keys, no cookies."""
    (tmp_path / "alice").write_text("5ecret\n")
    place = tmp_path / "s"
    with upstream() as (behind, seen), Shadower(place) as shadower:
        tenants = {"alice": {"api_key_file": str(tmp_path / "alice")}}
        more: dict[str, Any] = {"gateway": {"tenants": tenants}}
        more["frontend"] = "127.0.0.1", behind.http_port
        with copying_envoy(tmp_path, [behind], place, **more) as envoy:
            with TritonClient(envoy.url, api_key=ApiKey(tmp_path / "alice")) as client:
                assert client.model_ready("m")
                client.infer("m", {"x": np.zeros((1, 1), np.float32)})
            key = {"x-api-key": "5ecret", "cookie": "c=1"}
            rest(envoy.url, "/v2/models/m/infer", b"{}", **key)
            rest(envoy.url, "/v2/models/m", None, **key)
            rest(envoy.url, "/v1/completions", b'{"prompt": "x"}', authorization="Bearer 5ecret")
            copies = shadower.taken(3)
            assert [(copy.path, copy.is_grpc) for copy in copies] == [
                (INFER, True),
                ("/v2/models/m/infer", False),
                ("/v1/completions", False),
            ]
            assert service_pb2.ModelInferRequest.FromString(copies[0].content).model_name == "m"
            assert [copy.content for copy in copies[1:]] == [b"{}", b'{"prompt": "x"}']
            assert "5ecret" not in str(copies)
            assert not any("cookie" in copy.headers for copy in copies)
        assert len(seen) == 4


def test_no_share_no_copies(tmp_path: Path) -> None:
    """And Envoy accepts the configuration without a warning."""
    place = tmp_path / "s"
    with upstream() as (behind, _), Shadower(place) as shadower:
        with copying_envoy(tmp_path, [behind], place, share=0.0) as envoy:
            rest(envoy.url, "/v2/models/m/infer", b"{}")
            assert shadower.taken(0) == []
        done = validate(envoy.file)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[warning]" not in done.stderr


@contextmanager
def streaming(root: Path, place: Path) -> Iterator[Envoy]:
    """An Envoy that copies, in front of a server whose streams last."""
    with upstream() as (behind, _):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        streams = EnvoyUpstream(behind.host, port, behind.http_port)
        with open_streams(port), copying_envoy(root, [streams], place) as envoy:
            yield envoy


def test_a_stream_is_copied_when_it_is_whole(tmp_path: Path) -> None:
    """Each of its requests; of one beyond a MiB none."""
    with Shadower(tmp_path / "s") as shadower, streaming(tmp_path, tmp_path / "s") as envoy:
        assert streamed(envoy.url, 5, 1000) == 5
        copies = shadower.taken(5)
        assert {copy.path for copy in copies} == {STREAM}
        assert streamed(envoy.url, 40, 64 << 10) == 40
        assert len(shadower.taken(5)) == 5


@pytest.mark.parametrize("listening", [True, False], ids=["frozen", "absent"])
def test_users_notice_nothing_of_a_shadower_that_is_down(tmp_path: Path, listening: bool) -> None:
    """Frozen: it takes connections and reads nothing. A stream of 32 MiB gets all its answers."""
    with socket.socket(socket.AF_UNIX) as frozen:
        if listening:
            frozen.bind(str(tmp_path / "s"))
            frozen.listen(100)
        with streaming(tmp_path, tmp_path / "s") as envoy:
            assert streamed(envoy.url, 8, 60 << 10) == 8  # as much as is held, and goes on
            assert streamed(envoy.url, 512, 64 << 10) == 512
            for _ in range(20):
                rest(envoy.url, "/v2/models/m/infer", b"{}")
