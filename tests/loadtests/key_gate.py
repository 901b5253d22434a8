# SPDX-License-Identifier: Apache-2.0
"""Endpoints that answer only who brings an API key, as the gateway does: gRPC and HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

HEADER, REFUSED = "x-api-key", "no such API key: send yours as x-api-key"


class Gate(grpc.ServerInterceptor):  # type: ignore[misc]
    """In front of a servicer. `calls`: the names of all methods that were called."""

    def __init__(self, key: str) -> None:
        self.calls: list[str] = []
        self._key = key

    def intercept_service(self, continuation: Any, call: Any) -> Any:
        """On, or UNAUTHENTICATED."""
        self.calls.append(call.method.rpartition("/")[2])
        if (HEADER, self._key) in call.invocation_metadata:
            return continuation(call)
        if self.calls[-1] == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(_refuse)
        return grpc.unary_unary_rpc_method_handler(_refuse)


def _refuse(_: Any, context: Any) -> Any:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)


@contextmanager
def grpc_gate(
    servicer: Any, key: str, credentials: grpc.ServerCredentials | None = None
) -> Iterator[tuple[str, Gate]]:
    """Where it answers."""
    gate = Gate(key)
    server = grpc.server(ThreadPoolExecutor(8), interceptors=[gate])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    address = "127.0.0.1:0"
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    server.start()
    yield f"127.0.0.1:{port}", gate
    server.stop(0).wait()


_TENSOR = {"datatype": "BYTES", "shape": [-1, 1]}
_METADATA = {
    "name": "text",
    "inputs": [{"name": "text_input", **_TENSOR}, {"name": "stream", **_TENSOR}],
    "outputs": [{"name": "text_output", **_TENSOR}],
}


@contextmanager
def http_gate(key: str) -> Iterator[tuple[str, list[str]]]:
    """A model `text` that streams one word; the paths that were asked for with the key."""
    known: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _asked(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get(HEADER) != key:
                self._answer(401, "text/plain", REFUSED.encode())
                return
            known.append(self.path)
            if self.path.endswith("/generate_stream"):
                self._answer(200, "text/event-stream", b'data: {"text_output": "seven"}\n\n')
            else:
                self._answer(200, "application/json", json.dumps(_METADATA).encode())

        do_GET = do_POST = _asked  # noqa: N815 - the standard library's names

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}", known
    server.shutdown()
    thread.join()
    server.server_close()
