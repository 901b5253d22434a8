# SPDX-License-Identifier: Apache-2.0
"""Triton's gRPC protocol as bytes: build requests from parts, read only the needed response fields.

Concatenated protobuf messages merge, so the parts shared by a request class or a prompt are
serialised once. This module does no I/O.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tritonclient.grpc import service_pb2

from loadlib.failures import WireError, triton_failure
from loadlib.plan_types import GeneratorPlan, PlanRequestClass
from loadlib.prompts import LoadPrompt, Message
from loadlib.signature import Signature
from loadlib.tensors import pack_tensor, triton_type
from loadlib.workload import Turn

SERVICE = "/inference.GRPCInferenceService/"
STREAM, INFER = SERVICE + "ModelStreamInfer", SERVICE + "ModelInfer"
METADATA, READY = SERVICE + "ModelMetadata", SERVICE + "ModelReady"
# Texts may be long, a hidden retry would falsify the measurement, and a server that comes back must
# get its requests at once.
CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not the pause, but the time limit for connecting: TLS to a distant or busy server.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_FINAL = "triton_final_response"
_RESUME_DIGEST = "resume_text_sha256"
_REQUESTED_OUTPUTS = ("text_output", "num_input_tokens", "num_output_tokens", "finish_reason")
_CACHED_PROMPTS = 4096
_LENGTH = 4  # bytes before a text, and of an id


class GrpcBodies:
    """Builds the serialised requests of a plan for a model with this signature."""

    def __init__(self, plan: GeneratorPlan, signature: Signature) -> None:
        self._plan = plan
        self._signature = signature
        self._class_parts = {
            request_class.name: self._class_request(request_class) for request_class in plan.classes
        }
        self._packed: dict[int, bytes] = {}
        self._text = lru_cache(_CACHED_PROMPTS)(self._text_part)
        self._max_tokens = lru_cache(_CACHED_PROMPTS)(self._max_tokens_part)

    def body(
        self, request_class: PlanRequestClass, turn: Turn, messages: Sequence[Message] | None = None
    ) -> bytes:
        """Return a serialised ModelInferRequest; a conversation's `messages` replace the prompt."""
        parts = [self._class_parts[request_class.name], self._prompt(turn.prompt, messages)]
        if turn.max_tokens is not None:
            parts.append(self._max_tokens(turn.max_tokens))
        return b"".join(parts)

    def _prompt(self, prompt: LoadPrompt, messages: Sequence[Message] | None) -> bytes:
        if prompt.inputs is not None:
            return self._tensors(prompt)
        conversation = messages or prompt.messages
        if conversation:
            text = json.dumps(list(conversation), ensure_ascii=False)
            return self._text_part("messages", text)
        return self._text("text_input", prompt.text or "")

    def _class_request(self, request_class: PlanRequestClass) -> bytes:
        request = service_pb2.ModelInferRequest(model_name=self._plan.model)
        if request_class.priority is not None:
            request.parameters["priority"].uint64_param = request_class.priority
        if self._plan.kind == "text":
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            if "stream" in self._signature.inputs:
                self._add(request, "stream", request_class.stream)
            for name in (*_REQUESTED_OUTPUTS, *(("output_ids",) if self._plan.resumes else ())):
                if name in self._signature.outputs:
                    request.outputs.add(name=name)
        for name, value in request_class.parameters.items():
            self._add(request, name, value)
        return bytes(request.SerializeToString())

    def _add(self, request: Any, name: str, value: Any) -> None:
        """Add a parameter as a tensor with the model's declared type and rank."""
        values = value if isinstance(value, list) else [value]
        datatype, rank = self._signature.inputs.get(name, (triton_type(values), 2))
        shape = [1] * (rank - 1) + [len(values)]
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(pack_tensor(datatype, values, f"parameters.{name}"))

    def _text_part(self, name: str, text: str) -> bytes:
        content = text.encode("utf-8", "surrogatepass")
        return self._part(name, "BYTES", struct.pack("<I", len(content)) + content)

    def _max_tokens_part(self, count: int) -> bytes:
        datatype, _ = self._signature.inputs.get("max_tokens", ("INT32", 2))
        return self._part("max_tokens", datatype, pack_tensor(datatype, [count], "max_tokens"))

    def _part(self, name: str, datatype: str, content: bytes) -> bytes:
        request = service_pb2.ModelInferRequest()
        _, rank = self._signature.inputs.get(name, ("", 2))
        request.inputs.add(name=name, datatype=datatype, shape=[1] * rank)
        request.raw_input_contents.append(content)
        return bytes(request.SerializeToString())

    def _tensors(self, prompt: LoadPrompt) -> bytes:
        if id(prompt) not in self._packed:
            # Tensor prompts are never modified and live as long as the workload.
            self._packed[id(prompt)] = self._tensors_part(prompt.inputs or {})
        return self._packed[id(prompt)]

    def _tensors_part(self, inputs: dict[str, Any]) -> bytes:
        request = service_pb2.ModelInferRequest()
        for name, tensor in inputs.items():
            request.inputs.add(name=name, datatype=tensor["datatype"], shape=tensor["shape"])
            content = pack_tensor(tensor["datatype"], tensor["data"], f"inputs.{name}")
            request.raw_input_contents.append(content)
        return bytes(request.SerializeToString())


def response_version(content: bytes) -> str:
    """Return the model version in a serialised ModelInferResponse."""
    return str(service_pb2.ModelInferResponse.FromString(content).model_version)


class StreamReader:
    """Reads the responses of one stream: token counts and the final flag.

    `num_output_tokens` counts the whole stream so far; without it each response with text is one
    token. Only conversations and resumable streams keep the text.
    """

    __slots__ = (
        "_ids",
        "_texts",
        "complete",
        "final",
        "input_tokens",
        "output_tokens",
        "uncounted",
        "version",
    )

    def __init__(self, keep_text: bool = False, keep_ids: bool = False) -> None:
        self.final = self.complete = False
        self.uncounted = False  # the model does not report num_output_tokens
        self.input_tokens: int | None = None
        self.output_tokens = 0
        self.version = ""
        self._texts: list[bytes] | None = [] if keep_text or keep_ids else None
        self._ids: list[bytes] | None = [] if keep_ids else None

    @property
    def text(self) -> str:
        """The response text so far, if kept."""
        return b"".join(self._texts or ()).decode("utf-8", "replace")

    def resume_part(self) -> bytes:
        """Return the bytes to append to the request so that it resumes a broken stream."""
        ids = b"".join(self._ids or ())
        if not ids:
            return b""
        request = service_pb2.ModelInferRequest()
        request.inputs.add(name="resume_ids", datatype="INT32", shape=[1, len(ids) // _LENGTH])
        request.raw_input_contents.append(ids)
        digest = hashlib.sha256(b"".join(self._texts or ())).hexdigest()
        request.parameters[_RESUME_DIGEST].string_param = digest
        return bytes(request.SerializeToString())

    def feed(self, content: bytes) -> int:
        """Return the new tokens in a serialised ModelStreamInferResponse.

        Raises WireError for an error response.
        """
        response = service_pb2.ModelStreamInferResponse.FromString(content)
        if response.error_message:
            raise WireError(triton_failure(response.error_message))
        answer = response.infer_response
        self.version = answer.model_version
        if _FINAL in answer.parameters:
            self.final = answer.parameters[_FINAL].bool_param
        return self._count_tokens(answer) if answer.outputs else 0

    def _count_tokens(self, answer: Any) -> int:
        text, total_tokens = b"", -1
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=False):
            name = output.name
            if name == "num_output_tokens":
                total_tokens = int.from_bytes(raw[:4], "little")
            elif name == "text_output":
                text = raw[4:]
            elif name == "num_input_tokens" and self.input_tokens is None:
                self.input_tokens = int.from_bytes(raw[:4], "little")
            elif name == "finish_reason":
                self.complete = len(raw) > _LENGTH
            elif name == "output_ids" and self._ids is not None:
                self._ids.append(raw)
        if self._texts is not None:
            self._texts.append(text)
        if total_tokens < 0:
            self.uncounted = self.uncounted or bool(text)
            total_tokens = self.output_tokens + bool(text)
        new, self.output_tokens = total_tokens - self.output_tokens, total_tokens
        return new
