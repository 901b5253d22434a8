# SPDX-License-Identifier: Apache-2.0
"""A small server of Triton's gRPC protocol, to run the generator against: `endpoint.py PORT`.

`text` streams as many tokens as `max_tokens` says (default 5), one every `gap_ms` (default 0), with
num_output_tokens counted from the start of the stream; `refuse` refuses with Triton's words for a
full queue; `identity` answers tensors at once. Prompts: "fail" ends the stream with an error,
"hang" leaves it open behind its first token. `Endpoint.together`: nobody is answered before so many
requests have come.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

_FULL = "in ensemble 'refuse', Exceeds maximum queue size"
INPUTS = {
    "text_input": "BYTES",
    "messages": "BYTES",
    "max_tokens": "INT32",
    "stream": "BOOL",
    "temperature": "FP32",
    "random_seed": "UINT64",
    "gap_ms": "INT32",
}
OUTPUTS = {"text_output": "BYTES", "num_input_tokens": "INT32", "num_output_tokens": "INT32"}
PATIENCE = 60.0
MODELS = ("text", "refuse", "identity")


class Endpoint(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The protocol's calls that a load generator makes. `requests` keeps what came."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.together = 0
        self._come = threading.Condition()

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Whether it is one of MODELS."""
        return service_pb2.ModelReadyResponse(ready=request.name in MODELS)

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Names and types."""
        answer = service_pb2.ModelMetadataResponse(name=request.name)
        for name, datatype in INPUTS.items():
            answer.inputs.add(name=name, datatype=datatype, shape=[-1, 1])
        for name, datatype in OUTPUTS.items():
            answer.outputs.add(name=name, datatype=datatype, shape=[-1, 1])
        return answer

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """The inputs again, as outputs."""
        self.requests.append(request)
        answer = service_pb2.ModelInferResponse(model_name=request.model_name)
        for tensor in request.inputs:
            answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        answer.raw_output_contents.extend(request.raw_input_contents)
        return answer

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """The tokens of each request."""
        for request in requests:
            with self._come:
                self.requests.append(request)
                self._come.notify_all()
                self._come.wait_for(self._all_there, PATIENCE)
            yield from _answers(request, context)

    def _all_there(self) -> bool:
        return len(self.requests) >= self.together


def _answers(request: Any, context: Any) -> Iterator[Any]:
    tensors = {
        tensor.name: raw
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }
    if request.model_name == "refuse":
        yield service_pb2.ModelStreamInferResponse(error_message=_FULL)
        return
    gap_ms = struct.unpack("<i", tensors.get("gap_ms", b"\0\0\0\0"))[0]
    for count in range(1, struct.unpack("<i", tensors.get("max_tokens", b"\5\0\0\0"))[0] + 1):
        if tensors.get("text_input", b"")[4:] == b"fail" and count == 2:
            yield service_pb2.ModelStreamInferResponse(error_message="the model broke")
            return
        if tensors.get("text_input", b"")[4:] == b"hang" and count == 2:
            ended = threading.Event()
            if context.add_callback(ended.set):  # the client has gone
                ended.wait(PATIENCE)
            return
        time.sleep(gap_ms / 1000)
        yield _token(count)
    final = service_pb2.ModelStreamInferResponse()
    final.infer_response.parameters["triton_final_response"].bool_param = True
    yield final


def _token(count: int) -> Any:
    response = service_pb2.ModelStreamInferResponse()
    answer = response.infer_response
    answer.parameters["triton_final_response"].bool_param = False
    values = (struct.pack("<I", 2) + b"a ", struct.pack("<i", 7), struct.pack("<i", count))
    for (name, datatype), value in zip(OUTPUTS.items(), values, strict=True):
        answer.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        answer.raw_output_contents.append(value)
    return response


def serve(port: int = 0, threads: int = 64) -> tuple[Any, int, Endpoint]:
    """A started server, its port and what it was asked."""
    server = grpc.server(ThreadPoolExecutor(threads))
    endpoint = Endpoint()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(endpoint, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server, bound, endpoint


if __name__ == "__main__":
    serve(int(sys.argv[1]))[0].wait_for_termination()
