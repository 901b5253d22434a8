# SPDX-License-Identifier: Apache-2.0
"""A gRPC server that plays Triton with encoders, classifiers and rerankers, and its own faults.

What it answers is arithmetic on the text, so that a test knows every answer: a text's embedding is
its length, the sum of its bytes, and its first byte.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.protocol.tensors import infer_response, raw_content

MAX_ROWS = 8
TEXT = ("text_input", "BYTES")
COUNTS = (("num_input_tokens", "INT32"), ("truncated", "BOOL"))
MODELS: dict[str, tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]] = {
    "encoder": (
        (TEXT, ("prompt_name", "BYTES"), ("truncate", "BOOL"), ("dimensions", "INT32")),
        (("embedding", "FP32"), *COUNTS),
    ),
    "classifier": (
        (TEXT, ("text_pair", "BYTES"), ("top_k", "INT32"), ("truncate", "BOOL")),
        (("label", "BYTES"), ("score", "FP32"), *COUNTS),
    ),
    "reranker": ((("query", "BYTES"), TEXT, ("truncate", "BOOL")), (("score", "FP32"), *COUNTS)),
    "logits": (
        (("query", "BYTES"), TEXT, ("truncate", "BOOL")),
        (("score", "FP32"), ("logit", "FP32"), *COUNTS),
    ),
    "names": ((TEXT,), (("entities", "BYTES"), *COUNTS)),
    "vision": ((("image", "BYTES"), ("top_k", "INT32")), (("label", "BYTES"), ("score", "FP32"))),
    "tower": ((("image", "BYTES"),), (("embedding", "FP32"),)),
    "speller": ((TEXT, ("max_tokens", "INT32")), (("text_output", "BYTES"),)),
    "plain": ((("x", "FP32"),), (("y", "FP32"),)),
}
LABELS = ("even", "odd", "neither")
LIMIT = 1000  # bytes of a text, beyond which it is cut, or refused
BAD = b"BAD"  # a text with this is refused
NAN = b"NAN"  # a text with this has no number for an answer


def vector(text: bytes) -> list[float]:
    """The embedding of a text."""
    if NAN in text:
        return [float("nan")] * 3
    return [float(len(text)), float(sum(text)), float(text[0] if text else -1)]


@dataclass
class TaskServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays Triton. `before`: called with each request, to wait, or fail it by `context.abort`.

    `looked_at`: how often a client asked what a model takes. `vague`: it names no bad item.
    `factor`: scales the last place of vectors, so that two models differ. `withheld`: it shows no
    configuration, as a gateway.
    """

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    priorities: list[int | None] = field(default_factory=list)
    before: Callable[[Any, Any], None] | None = None
    looked_at: int = 0
    version: str = "1"
    vague: bool = False
    withheld: bool = False
    factor: float = 1.0
    at_once: int = 0
    most_at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Always."""
        return service_pb2.ServerReadyResponse(ready=True)

    def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A Triton."""
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Each that there is."""
        return service_pb2.ModelReadyResponse(ready=request.name in MODELS)

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Inputs and outputs, batch dimension first."""
        if request.name not in MODELS:
            words = f"Request for unknown model: '{request.name}' is not found"
            context.abort(grpc.StatusCode.NOT_FOUND, words)
        answer = service_pb2.ModelMetadataResponse(name=request.name, versions=[self.version])
        for tensors, given in zip(
            (answer.inputs, answer.outputs), MODELS[request.name], strict=True
        ):
            for name, datatype in given:
                tensors.add(name=name, datatype=datatype, shape=[-1, -1])
        return answer

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """How many rows it takes."""
        self.looked_at += 1
        if self.withheld:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not through the gateway")
        answer = service_pb2.ModelConfigResponse()
        answer.config.max_batch_size = MAX_ROWS
        return answer

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Each row's answer."""
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self._answer(request, context)
        finally:
            with self._lock:
                self.at_once -= 1

    def _answer(self, request: Any, context: Any) -> Any:
        asked = _arrays(request)
        with self._lock:
            self.requests.append(asked)
            given = request.parameters
            self.priorities.append(given["priority"].uint64_param if "priority" in given else None)
        if self.before is not None:
            self.before(asked, context)
        unknown = set(asked) - {name for name, _ in MODELS[request.model_name][0]}
        rows = len(next(iter(asked.values())))
        if unknown or rows > MAX_ROWS:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unexpected {unknown}, {rows} rows")
        text = "image" if "image" in asked else "text_input"
        texts = [row[0] for row in asked[text]]
        for number, one in enumerate(texts):
            if BAD in one:
                words = f"{text}[{number}] is bad" if len(texts) > 1 else f"{text} is bad"
                words = "this text is bad" if self.vague else words
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
        return _response(request.model_name, asked, texts, self.factor)


def _arrays(request: Any) -> dict[str, Any]:
    """The inputs by name, as a server reads them."""
    answer = service_pb2.ModelInferResponse()
    for tensor in request.inputs:
        answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    answer.raw_output_contents.extend(request.raw_input_contents)
    return infer_response(answer)


def _response(model: str, asked: dict[str, Any], texts: list[bytes], factor: float) -> Any:
    made: dict[str, Any] = {}
    if model in {"encoder", "tower"}:
        size = int(asked["dimensions"][0, 0]) if "dimensions" in asked else 3
        vectors = [[*vector(text)[:2], factor * vector(text)[2]] for text in texts]
        made["embedding"] = np.array(vectors, dtype=np.float32)[:, :size]
    elif model == "reranker":
        scores = [[float(text.count(query))] for query, text in _pairs(asked)]
        made["score"] = np.array(scores, dtype=np.float32)
    elif model == "logits":
        logits = [[20.0 + text.count(query)] for query, text in _pairs(asked)]
        made["logit"] = np.array(logits, dtype=np.float32)
        made["score"] = 1 / (1 + np.exp(-made["logit"]))
    elif model == "names":
        found = [[{"label": "N", "score": 0.5, "start": 0, "end": len(text)}] for text in texts]
        made["entities"] = np.array([[json.dumps(one).encode()] for one in found], dtype=object)
    else:
        made |= _labels(asked, texts)
    if model not in {"vision", "tower"}:
        made["num_input_tokens"] = np.array([[len(text)] for text in texts], dtype=np.int32)
        made["truncated"] = np.array([[len(text) > LIMIT] for text in texts])
    answer = service_pb2.ModelInferResponse(model_name=model, model_version="1")
    kinds = dict(MODELS[model][1])
    for name, array in made.items():
        answer.outputs.add(name=name, datatype=kinds[name], shape=array.shape)
        answer.raw_output_contents.append(raw_content(array, kinds[name]))
    return answer


def _pairs(asked: dict[str, Any]) -> Iterator[tuple[bytes, bytes]]:
    yield from zip(asked["query"][:, 0], asked["text_input"][:, 0], strict=True)


def _labels(asked: dict[str, Any], texts: list[bytes]) -> dict[str, Any]:
    """The label of a text, with its pair's length, is whether its length is odd."""
    pairs = [row[0] for row in asked["text_pair"]] if "text_pair" in asked else [b""] * len(texts)
    most = int(asked["top_k"][0, 0]) if "top_k" in asked else len(LABELS)
    labels, scores = [], []
    for text, pair in zip(texts, pairs, strict=True):
        odd = (len(text) + len(pair)) % 2
        labels.append([LABELS[odd], LABELS[1 - odd], LABELS[2]][:most])
        scores.append([0.75, 0.25, 0.0][:most])
    return {
        "label": np.array([[one.encode() for one in row] for row in labels], dtype=object),
        "score": np.array(scores, dtype=np.float32),
    }


@contextmanager
def task_server(*, workers: int = 8, port: int = 0) -> Iterator[TaskServer]:
    """One on a port of its own."""
    actor = TaskServer()
    server = grpc.server(ThreadPoolExecutor(max_workers=workers))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(actor, server)
    actor.url = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield actor
    finally:
        server.stop(0).wait()
