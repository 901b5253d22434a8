# SPDX-License-Identifier: Apache-2.0
"""A gRPC server that plays Triton with a model that generates text, and its metrics.

The answer to a text is arithmetic: token i is the prompt's length plus i. So a test knows it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

MODEL = "speller"
_INPUTS = {
    "text_input": "BYTES",
    "messages": "BYTES",
    "max_tokens": "INT32",
    "stream": "BOOL",
    "temperature": "FP32",
    "random_seed": "UINT64",
    "return_log_probs": "BOOL",
}
_OUTPUTS = {
    "text_output": "BYTES",
    "output_ids": "INT32",
    "num_input_tokens": "INT32",
    "num_output_tokens": "INT32",
    "finish_reason": "BYTES",
    "cum_log_probs": "FP32",
    "output_log_probs": "FP32",
}


@dataclass
class TextServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """`shift`: added to the third token, so that two versions differ. `before`: as TaskServer's."""

    url: str = ""
    requests: list[Any] = field(default_factory=list)
    shift: int = 0
    before: Callable[[Any, Any], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Always."""
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Inputs and outputs, batch dimension first."""
        if request.name != MODEL:
            words = f"Request for unknown model: '{request.name}' is not found"
            context.abort(grpc.StatusCode.NOT_FOUND, words)
        answer = service_pb2.ModelMetadataResponse(name=MODEL, versions=["1"])
        for tensors, given in ((answer.inputs, _INPUTS), (answer.outputs, _OUTPUTS)):
            for name, datatype in given.items():
                tensors.add(name=name, datatype=datatype, shape=[-1, -1])
        return answer

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Decoupled, with four slots."""
        config = model_config_pb2.ModelConfig(name=request.name, max_batch_size=1)
        config.model_transaction_policy.decoupled = True
        config.parameters["max_num_seqs"].string_value = "4"
        return service_pb2.ModelConfigResponse(config=config)

    def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802
        """Each request's tokens, one by one."""
        for request in requests:
            with self._lock:
                self.requests.append(request)
            if self.before is not None:
                self.before(request, context)
            yield from self._answer(request)

    def _answer(self, request: Any) -> Iterator[Any]:
        given = {
            tensor.name: raw
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        prompt = (given.get("text_input") or given["messages"])[4:]
        most = struct.unpack("<i", given["max_tokens"])[0]
        for place in range(most):
            token = len(prompt) + place + (self.shift if place == 2 else 0)
            yield _response(place, token, last=place == most - 1)


def _response(place: int, token: int, *, last: bool) -> Any:
    values = {
        "text_output": _text(f" {token}"),
        "output_ids": struct.pack("<i", token),
        "num_input_tokens": struct.pack("<i", 1),
        "num_output_tokens": struct.pack("<i", place + 1),
        "finish_reason": _text("length" if last else ""),
        "cum_log_probs": struct.pack("<f", -0.5 * (place + 1)),
        "output_log_probs": struct.pack("<f", -0.5),
    }
    answer = service_pb2.ModelInferResponse(model_name=MODEL, model_version="1")
    answer.parameters["triton_final_response"].bool_param = last
    for name, raw in values.items():
        answer.outputs.add(name=name, datatype=_OUTPUTS[name], shape=[1, 1])
        answer.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=answer)


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<I", len(content)) + content


@contextmanager
def text_server() -> Iterator[TextServer]:
    """One on a port of its own."""
    actor = TextServer()
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(actor, server)
    actor.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield actor
    finally:
        server.stop(None).wait()
