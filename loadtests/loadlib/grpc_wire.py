# SPDX-License-Identifier: Apache-2.0
"""Triton's gRPC protocol as bytes: requests put together from parts, responses read sparingly.

Concatenated protobuf messages merge into one: what is the same for a class of requests, or for a
prompt, is serialised once. Nothing here does I/O.
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
from loadlib.plan import Plan, RequestClass
from loadlib.prompts import Message, Prompt
from loadlib.signature import Signature
from loadlib.tensors import packed, triton_type
from loadlib.workload import Turn

SERVICE = "/inference.GRPCInferenceService/"
STREAM, INFER = SERVICE + "ModelStreamInfer", SERVICE + "ModelInfer"
METADATA, READY = SERVICE + "ModelMetadata", SERVICE + "ModelReady"
# Text may be long; a hidden retry would falsify the measurement; and a server that comes back gets
# its requests at once.
CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not the pause, but the time that a connection may take: TLS to a distant or busy server.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_FINAL = "triton_final_response"
_RESUME_DIGEST = "resume_text_sha256"
_WANTED = ("text_output", "num_input_tokens", "num_output_tokens", "finish_reason")
_KEPT_PROMPTS = 4096
_LENGTH = 4  # bytes before a text, and of an id


class Bodies:
    """Makes the requests of a plan for a model of this signature, as bytes."""

    def __init__(self, plan: Plan, signature: Signature) -> None:
        self._plan = plan
        self._signature = signature
        self._same = {one.name: self._of_class(one) for one in plan.classes}
        self._packed: dict[int, bytes] = {}
        self._text = lru_cache(_KEPT_PROMPTS)(self._text_part)
        self._max_tokens = lru_cache(_KEPT_PROMPTS)(self._max_tokens_part)

    def body(
        self, request_class: RequestClass, turn: Turn, messages: Sequence[Message] | None = None
    ) -> bytes:
        """A serialised ModelInferRequest. `messages`: of a conversation, in place of the prompt."""
        parts = [self._same[request_class.name], self._prompt(turn.prompt, messages)]
        if turn.max_tokens is not None:
            parts.append(self._max_tokens(turn.max_tokens))
        return b"".join(parts)

    def _prompt(self, prompt: Prompt, messages: Sequence[Message] | None) -> bytes:
        if prompt.inputs is not None:
            return self._tensors(prompt)
        conversation = messages or prompt.messages
        if conversation:
            text = json.dumps(list(conversation), ensure_ascii=False)
            return self._text_part("messages", text)
        return self._text("text_input", prompt.text or "")

    def _of_class(self, one: RequestClass) -> bytes:
        request = service_pb2.ModelInferRequest(model_name=self._plan.model)
        if one.priority is not None:
            request.parameters["priority"].uint64_param = one.priority
        if self._plan.kind == "text":
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            if "stream" in self._signature.inputs:
                self._add(request, "stream", one.stream)
            for name in (*_WANTED, *(("output_ids",) if self._plan.resumes else ())):
                if name in self._signature.outputs:
                    request.outputs.add(name=name)
        for name, value in one.parameters.items():
            self._add(request, name, value)
        return bytes(request.SerializeToString())

    def _add(self, request: Any, name: str, value: Any) -> None:
        """A parameter as a tensor, in the type and with the dimensions that the model declares."""
        values = value if isinstance(value, list) else [value]
        datatype, rank = self._signature.inputs.get(name, (triton_type(values), 2))
        shape = [1] * (rank - 1) + [len(values)]
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(packed(datatype, values, f"parameters.{name}"))

    def _text_part(self, name: str, text: str) -> bytes:
        content = text.encode("utf-8", "surrogatepass")
        return self._part(name, "BYTES", struct.pack("<I", len(content)) + content)

    def _max_tokens_part(self, count: int) -> bytes:
        datatype, _ = self._signature.inputs.get("max_tokens", ("INT32", 2))
        return self._part("max_tokens", datatype, packed(datatype, [count], "max_tokens"))

    def _part(self, name: str, datatype: str, content: bytes) -> bytes:
        request = service_pb2.ModelInferRequest()
        _, rank = self._signature.inputs.get(name, ("", 2))
        request.inputs.add(name=name, datatype=datatype, shape=[1] * rank)
        request.raw_input_contents.append(content)
        return bytes(request.SerializeToString())

    def _tensors(self, prompt: Prompt) -> bytes:
        if id(prompt) not in self._packed:
            # Prompts of tensors come from the file as they are and live as long as the workload.
            self._packed[id(prompt)] = self._tensors_part(prompt.inputs or {})
        return self._packed[id(prompt)]

    def _tensors_part(self, inputs: dict[str, Any]) -> bytes:
        request = service_pb2.ModelInferRequest()
        for name, tensor in inputs.items():
            request.inputs.add(name=name, datatype=tensor["datatype"], shape=tensor["shape"])
            content = packed(tensor["datatype"], tensor["data"], f"inputs.{name}")
            request.raw_input_contents.append(content)
        return bytes(request.SerializeToString())


def version(content: bytes) -> str:
    """The model's version in a serialised ModelInferResponse."""
    return str(service_pb2.ModelInferResponse.FromString(content).model_version)


class StreamReader:
    """Reads the responses of one stream: how many tokens each brings, and which is the last.

    `num_output_tokens` counts the whole stream so far; without it each response with text is one
    token. The text is kept only for conversations.
    """

    __slots__ = (
        "_ids",
        "_texts",
        "complete",
        "final",
        "input_tokens",
        "output_tokens",
        "version",
    )

    def __init__(self, keep_text: bool = False, keep_ids: bool = False) -> None:
        self.final = self.complete = False
        self.input_tokens: int | None = None
        self.output_tokens = 0
        self.version = ""
        self._texts: list[bytes] | None = [] if keep_text or keep_ids else None
        self._ids: list[bytes] | None = [] if keep_ids else None

    @property
    def text(self) -> str:
        """The answer so far, if it is kept."""
        return b"".join(self._texts or ()).decode("utf-8", "replace")

    def rest(self) -> bytes:
        """What makes the request one for the rest of a broken answer, to be put behind it."""
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
        """New tokens in a serialised ModelStreamInferResponse; WireError for one with an error."""
        response = service_pb2.ModelStreamInferResponse.FromString(content)
        if response.error_message:
            raise WireError(triton_failure(response.error_message))
        answer = response.infer_response
        self.version = answer.model_version
        if _FINAL in answer.parameters:
            self.final = answer.parameters[_FINAL].bool_param
        return self._tokens(answer) if answer.outputs else 0

    def _tokens(self, answer: Any) -> int:
        text, counted = b"", -1
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=False):
            name = output.name
            if name == "num_output_tokens":
                counted = int.from_bytes(raw[:4], "little")
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
        if counted < 0:
            counted = self.output_tokens + bool(text)
        new, self.output_tokens = counted - self.output_tokens, counted
        return new
