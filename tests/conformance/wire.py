# SPDX-License-Identifier: Apache-2.0
"""Requests of the cases on the wire, and everything that comes back."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.protocol.generation import Chunk, read_chunk

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_SECONDS = 120.0
_FORMATS = {"INT32": "<i", "INT64": "<q", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}
_OUTPUTS = ("text_output", "num_input_tokens", "num_output_tokens", "finish_reason")
_LOG_PROBS = ("cum_log_probs", "output_log_probs")


class Target:
    """A model of a server, and what its engine has of the cases' `needs`."""

    def __init__(self, url: str, model: str, has: Sequence[str] | None) -> None:
        self.url = url
        self.model = model
        self.has = frozenset(has or ())
        self.answers: dict[str, Answer] = {}  # of the cases that others refer to


@dataclass(frozen=True)
class Tensor:
    """One input."""

    datatype: str
    shape: Sequence[int]
    content: bytes

    @classmethod
    def of(cls, datatype: str, values: Sequence[Any], shape: Sequence[int] | None = None) -> Tensor:
        """From Python values; text as UTF-8."""
        content = b"".join(_packed(datatype, value) for value in values)
        return cls(datatype, shape or [1, len(values)], content)


def _packed(datatype: str, value: Any) -> bytes:
    if datatype != "BYTES":
        return struct.pack(_FORMATS[datatype], value)
    content = value if isinstance(value, bytes) else str(value).encode()
    return struct.pack("<I", len(content)) + content


@dataclass
class Answer:
    """Everything that one call brought, to its very end.

    message: of the request's error. broken: why the call itself failed.
    """

    chunks: list[Chunk] = field(default_factory=list)
    finals: int = 0
    after_final: int = 0
    message: str = ""
    broken: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def log_probs(self) -> list[float]:
        """Of all chunks."""
        return [value for chunk in self.chunks for value in chunk.log_probs]

    @property
    def essence(self) -> tuple[str, str, int, int]:
        """What equal requests have in common: text, finish reason, tokens in and out."""
        last = self.chunks[-1]
        return self.text, last.finish_reason, last.num_input_tokens, last.num_output_tokens


async def ask(target: Target, inputs: Mapping[str, Tensor]) -> Answer:
    """One request in a connection of its own, read until the server ends the call."""
    answer = Answer()
    async with grpc.aio.insecure_channel(target.url, options=_OPTIONS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        requests = iter([_request(target.model, inputs)])
        # Not with `triton_grpc_error`, which would give errors a code: tritonserver 2.51 then ends
        # the call by itself and sometimes crashes over it (ModelStreamInferHandler, SIGSEGV).
        call = stub.ModelStreamInfer(requests, timeout=_SECONDS)
        try:
            async for response in call:
                _note(answer, response)
        except grpc.RpcError as error:
            answer.broken = f"{error.code().name}: {error.details()}"
    return answer


def _note(answer: Answer, response: Any) -> None:
    if response.error_message:
        answer.message = response.error_message
        return
    chunk, final = read_chunk(response)
    answer.after_final += answer.finals > 0
    answer.finals += final
    if chunk is not None:
        answer.chunks.append(chunk)


def _request(model: str, inputs: Mapping[str, Tensor]) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, tensor in inputs.items():
        request.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.content)
    wanted = inputs.get("return_log_probs")
    for name in _OUTPUTS + (_LOG_PROBS if wanted and any(wanted.content) else ()):
        request.outputs.add(name=name)
    return request
