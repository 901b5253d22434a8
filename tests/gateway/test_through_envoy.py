# SPDX-License-Identifier: Apache-2.0
"""A real Envoy in front of a server that keeps what reaches it: keys, and headers of traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.envoy_process import Envoy
from tritonctl.errors import UsageError
from tritonctl.frontend.budgets.keys import Keys
from tritonctl.frontend.budgets.tenant import TenantLimits
from tritonctl.gateway.placement import EnvoyUpstream
from tritonctl.protocol.api_key import HEADER, ApiKey
from tritonctl.protocol.client import TritonClient

pytestmark = pytest.mark.timed

KEY, SECRET = "5ecret-of-alice", "5ecret-of-the-gateway"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = "vendor=1"
STOP_SECONDS = 10.0
# As Triton writes it, shortened.
STATISTICS = (
    b'{"model_stats":[{"name":"m","version":"1","last_inference":0},{"name":"n","version":"7"}]}'
)
Headers = dict[str, str]


class _Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, seen: list[Headers]) -> None:
        self._seen = seen

    def ModelReady(self, *_: Any) -> Any:  # noqa: N802
        """Every model is."""
        return service_pb2.ModelReadyResponse(ready=True)

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """No outputs."""
        self._seen.append(dict(context.invocation_metadata()))
        return service_pb2.ModelInferResponse(model_name=request.model_name)

    def ModelStreamInfer(self, requests: Any, _: Any) -> Any:  # noqa: N802
        """One response for each request."""
        for request in requests:
            self._seen.append({"model": request.model_name, "version": request.model_version})
            yield service_pb2.ModelStreamInferResponse()


@contextmanager
def upstream(statistics: bytes = STATISTICS) -> Iterator[tuple[EnvoyUpstream, list[Headers]]]:
    """Both ports of a server, and the headers of the inference requests that reached it.

    Of a stream: the model and version of each request.
    """
    seen: list[Headers] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _asked(self) -> None:
            body = statistics if self.path == "/v2/models/stats" else b""
            if "/health/" not in self.path and not body:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                seen.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_OPTIONS = _asked  # noqa: N815 - the standard library's names

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    rest = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    rest.daemon_threads = True
    thread = Thread(target=rest.serve_forever)
    thread.start()
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Triton(seen), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield EnvoyUpstream("127.0.0.1", port, rest.server_address[1]), seen
    server.stop(0).wait(STOP_SECONDS)  # gRPC may wait for a stream that Envoy has left
    rest.shutdown()
    thread.join()
    rest.server_close()


@contextmanager
def gateway(
    root: Path, *, cors: bool = False, **settings: Any
) -> Iterator[tuple[str, list[Headers]]]:
    """Where Envoy answers, and what it let through."""
    with upstream() as (behind, seen):
        frontend = ("127.0.0.1", behind.http_port)
        with Envoy(root, [behind], settings, frontend=frontend, cors=cors) as envoy:
            yield envoy.url, seen


def ask_both(url: str) -> None:
    """One inference over gRPC and one over REST, as parts of a trace."""
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = (("traceparent", TRACE), ("tracestate", STATE), ("x-other", "stays"))
        stub.ModelInfer(service_pb2.ModelInferRequest(model_name="m"), metadata=metadata)
    headers = {"traceparent": TRACE, "tracestate": STATE, "x-other": "stays"}
    body = Request(f"http://{url}/v2/models/m/infer", b"{}", headers)
    with urlopen(body, timeout=30) as answer:  # noqa: S310
        assert answer.status == 200


@pytest.mark.parametrize("trusted", [False, True])
def test_traces_of_strangers(trusted: bool, tmp_path: Path) -> None:
    """Triton would trace each request that brings one: taken off, unless the project says else."""
    settings = {"trust_traces": True} if trusted else {}
    with gateway(tmp_path, **settings) as (url, seen):
        ask_both(url)
    assert len(seen) == 2
    for headers in seen:
        assert headers["x-other"] == "stays"
        found = (headers.get("traceparent"), headers.get("tracestate"))
        assert found == ((TRACE, STATE) if trusted else (None, None))


def test_our_client_has_a_key_of_a_tenant(tmp_path: Path) -> None:
    """It passes with it, is told what to do without, and Triton never sees it."""
    file = tmp_path / "alice"
    file.write_text(f"{KEY}\n")
    other = tmp_path / "other"
    other.write_text("nobody's\n")
    inputs = {"x": numpy.zeros((1, 1), numpy.float32)}
    with gateway(tmp_path, tenants={"alice": {"api_key_file": str(file)}}) as (url, seen):
        with TritonClient(url, api_key=ApiKey(file)) as client:
            assert client.model_ready("m")
            assert client.infer("m", inputs) == {}
        for api_key in (None, ApiKey(other)):
            with TritonClient(url, api_key=api_key) as client:
                with pytest.raises(UsageError, match="no such API key") as caught:
                    client.infer("m", inputs)
                assert "--api-key-file" in caught.value.remedy
    assert [HEADER in headers for headers in seen] == [False]


@pytest.mark.parametrize("telling", [False, True], ids=["keys", "word"])
def test_what_the_frontend_learns_of_the_tenant(telling: bool, tmp_path: Path) -> None:
    """The gateway's word beside its secret, or the client's key; never a client's word."""
    files = {"alice": KEY, "word": SECRET}
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    settings: dict[str, Any] = {"tenants": {"alice": {"api_key_file": "alice"}}}
    if telling:
        settings |= {"frontend_secret_file": "word"}
    lies = {"x-tritonctl-tenant": "bob", "x-tritonctl-gateway": "guess"}
    tenants = {"alice": TenantLimits("alice"), "bob": TenantLimits("bob")}
    keys = Keys(tenants, {"alice": tmp_path / "alice"}, tmp_path / "word" if telling else None)
    with gateway(tmp_path, **settings) as (url, seen):
        for path in ("v1/chat/completions", "v2/models/m/infer"):
            asked = Request(f"http://{url}/{path}", b"{}", {**lies, "x-api-key": KEY})
            with urlopen(asked, timeout=30) as answer:  # noqa: S310
                assert answer.status == 200
        stranger = Request(f"http://{url}/v1/models", headers={**lies, "x-api-key": "guess"})
        if telling:
            with pytest.raises(HTTPError) as caught:
                urlopen(stranger, timeout=30)  # noqa: S310
            assert json.load(caught.value)["error"]["code"] == "invalid_api_key"
        else:
            urlopen(stranger, timeout=30).close()  # noqa: S310
    found = [
        keys.tenant_of([(name.encode(), value.encode()) for name, value in headers.items()])
        for headers in seen
    ]
    assert found[0] is tenants["alice"]
    assert found[2:] == ([] if telling else [None])
    to_triton = seen[1]
    assert not {"x-api-key", "x-tritonctl-tenant", "x-tritonctl-gateway"} & set(to_triton)


@pytest.mark.parametrize("cors", [False, True])
def test_a_browser_s_preflight_has_no_key(cors: bool, tmp_path: Path) -> None:
    """It reaches the frontend that answers pages; nothing else does without a key."""
    for name, text in {"alice": KEY, "word": SECRET}.items():
        (tmp_path / name).write_text(f"{text}\n")
    settings = {"tenants": {"alice": {"api_key_file": "alice"}}, "frontend_secret_file": "word"}
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    with gateway(tmp_path, cors=cors, **settings) as (url, seen):
        for method, headers, passes in (
            ("OPTIONS", preflight, cors),
            ("OPTIONS", {}, False),
            ("POST", preflight, False),
        ):
            asked = Request(f"http://{url}/v1/responses", headers=headers, method=method)
            if passes:
                urlopen(asked, timeout=30).close()  # noqa: S310
            else:
                with pytest.raises(HTTPError) as caught:
                    urlopen(asked, timeout=30)  # noqa: S310
                assert caught.value.code == 401
                caught.value.close()
    assert len(seen) == cors


@pytest.mark.parametrize("limit", ["tokens_per_minute", "concurrency"])
@pytest.mark.parametrize("allowed", [False, True], ids=["v1 alone", "raw"])
def test_limits_of_the_frontend_hold_for_raw_inference(
    limit: str, allowed: bool, tmp_path: Path
) -> None:
    """A tenant whose limits only the frontend keeps has no inference around it."""
    (tmp_path / "alice").write_text(f"{KEY}\n")
    inputs = {"x": numpy.zeros((1, 1), numpy.float32)}
    tenants = {"alice": {"api_key_file": "alice", limit: 5, "allow_raw": allowed}}
    raw_paths = ["infer", "generate", "generate_stream", "versions/1/generate_stream"]
    with gateway(tmp_path, tenants=tenants) as (url, seen):
        with TritonClient(url, api_key=ApiKey(tmp_path / "alice")) as client:
            assert client.model_ready("m")
            if allowed:
                assert client.infer("m", inputs) == {}
            else:
                with pytest.raises(UsageError, match="only the OpenAI API keeps") as caught:
                    client.infer("m", inputs)
                assert "allow_raw" in caught.value.remedy
        for path in [f"v2/models/m/{action}" for action in raw_paths]:
            raw = Request(f"http://{url}/{path}", b"{}", {"x-api-key": KEY})
            if allowed:
                urlopen(raw, timeout=30).close()  # noqa: S310
            else:
                with pytest.raises(HTTPError, match="403"):
                    urlopen(raw, timeout=30)  # noqa: S310
        chat = Request(f"http://{url}/v1/chat/completions", b"{}", {"x-api-key": KEY})
        urlopen(chat, timeout=30).close()  # noqa: S310
    assert len(seen) == (2 + len(raw_paths) if allowed else 1)
