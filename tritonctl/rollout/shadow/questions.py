# SPDX-License-Identifier: Apache-2.0
"""Turn a copy of a user request into a request that can be repeated, with limits."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tritonctl.protocol.generation import LOG_PROB_OUTPUTS, OUTPUTS
from tritonctl.protocol.model_config import is_decoupled
from tritonctl.protocol.tasks import ServedTask
from tritonctl.rollout.shadow.listening import RequestCopy
from tritonctl.rollout.shadow.rest_requests import (
    InputTensors,
    NotUnderstoodError,
    generate_request,
    infer_request,
    model_and_verb,
)

if TYPE_CHECKING:
    from tritonctl.frontend.config import FrontendConfig

TEXT_TASK = "text_generation"
MAX_TOKENS = 128  # of an answer: differences show in the first tokens
MAX_ROWS = 64
_METHODS = ("/ModelInfer", "/ModelStreamInfer")
# With this request parameter, this project's engine (textlib) excludes the request from its times.
_SHADOW = "tritonctl_shadow"
_SEED = "random_seed"
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
# Parameters that belong to the original client.
_CALLER_PARAMETERS = ("timeout", "priority")


@dataclass(frozen=True)
class ServedModelFacts:
    """The facts of a served model that a request needs."""

    task: ServedTask
    tensors: InputTensors
    outputs: frozenset[str]  # names
    is_streaming: bool  # answers only by ModelStreamInfer

    @classmethod
    def of(cls, metadata: Any, config: Any) -> ServedModelFacts:
        """Read the facts from ModelMetadataResponse and ModelConfigResponse."""
        plain_config = MessageToDict(config.config, preserving_proto_field_name=True)
        task = ServedTask.of(metadata, config)
        datatypes = {tensor.name: tensor.datatype for tensor in metadata.inputs}
        return cls(
            task,
            InputTensors(datatypes, is_batched=bool(task.max_rows)),
            frozenset(tensor.name for tensor in metadata.outputs),
            is_streaming=is_decoupled(plain_config) or task.task.name == TEXT_TASK,
        )


@dataclass(frozen=True)
class ShadowQuestion:
    """A model, and a factory of the ModelInferRequest from the model's facts."""

    model: str
    request: Callable[[ServedModelFacts], Any]


def question_of(copy: RequestCopy, frontend: FrontendConfig | None) -> ShadowQuestion | None:
    """Parse a copy; None if it asks no model. Raises NotUnderstoodError.

    frontend: the configuration of the project's frontend, if any.
    """
    if copy.content is None:
        raise NotUnderstoodError("too long, or compressed")
    content = copy.content
    if copy.is_grpc:
        return _grpc_question(copy.path, content)
    if (model_call := model_and_verb(copy.path)) is not None:
        model, verb = model_call
        if verb == "infer":
            length = copy.headers.get("inference-header-content-length")
            if length is not None and not (length.isascii() and length.isdecimal()):
                raise NotUnderstoodError("invalid JSON length")
            request = infer_request(model, content, int(length) if length else None)
            return ShadowQuestion(model, lambda _: request)
        return ShadowQuestion(model, lambda facts: generate_request(model, content, facts.tensors))
    if frontend is None:
        return None
    from tritonctl.rollout.shadow.openai import openai_question

    if (openai_call := openai_question(copy.path, copy.headers, content, frontend)) is None:
        return None
    model, make = openai_call
    return ShadowQuestion(model, lambda facts: make(facts.task))


def _grpc_question(path: str, content: bytes) -> ShadowQuestion | None:
    if not path.endswith(_METHODS):
        return None
    try:
        request = service_pb2.ModelInferRequest.FromString(content)
    except DecodeError as error:
        raise NotUnderstoodError("not a ModelInferRequest") from error
    return ShadowQuestion(request.model_name, lambda _: request)


def shadow_request(request: Any, facts: ServedModelFacts, seed: int) -> Any:
    """Copy a request for repetition, without the client's identity and with limited output.

    A text has at most MAX_TOKENS. Sampling gets the seed unless the request has one, so that stable
    can repeat its answer. Raises NotUnderstoodError if the request cannot be repeated.
    """
    copy = service_pb2.ModelInferRequest()
    copy.CopyFrom(request)
    copy.id, copy.model_version = "", ""
    if any(name in copy.parameters for name in _SEQUENCE):
        raise NotUnderstoodError("part of a sequence, which has a state")
    for name in _CALLER_PARAMETERS:
        copy.parameters.pop(name, None)
    copy.parameters[_SHADOW].bool_param = True
    if any("shared_memory_region" in tensor.parameters for tensor in copy.inputs):
        raise NotUnderstoodError("inputs in shared memory")
    if len(copy.raw_input_contents) != len(copy.inputs):
        raise NotUnderstoodError("inputs that are not in raw_input_contents")
    del copy.outputs[:]
    if facts.task.task.name == TEXT_TASK:
        _limit_generation(copy, facts, seed)
    elif facts.is_streaming:
        raise NotUnderstoodError("a streaming model without text output")
    else:
        if rows_of(copy, facts) > MAX_ROWS:
            raise NotUnderstoodError(f"more than {MAX_ROWS} rows")
        for name in facts.task.task.outputs:
            copy.outputs.add(name=name)
    return copy


def rows_of(request: Any, facts: ServedModelFacts) -> int:
    """Count the rows of a request; 1 without a batch dimension."""
    shapes = [tensor.shape for tensor in request.inputs]
    return int(shapes[0][0]) if shapes and shapes[0] and facts.task.max_rows else 1


def _limit_generation(request: Any, facts: ServedModelFacts, seed: int) -> None:
    input_indices = {tensor.name: index for index, tensor in enumerate(request.inputs)}
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    max_tokens = MAX_TOKENS
    if "max_tokens" in input_indices:
        raw = request.raw_input_contents[input_indices["max_tokens"]]
        if len(raw) == 4:  # noqa: PLR2004 - INT32
            max_tokens = min(max_tokens, int.from_bytes(raw, "little", signed=True))
    _set_input(request, facts, "max_tokens", struct.pack("<i", max_tokens))
    if _SEED not in input_indices and "seed" not in input_indices:
        _set_input(request, facts, _SEED, struct.pack("<Q", seed))
    requested_outputs: tuple[str, ...] = OUTPUTS
    if "return_log_probs" in facts.tensors.datatypes and facts.outputs.issuperset(LOG_PROB_OUTPUTS):
        _set_input(request, facts, "return_log_probs", b"\1")
        requested_outputs += LOG_PROB_OUTPUTS
    if "stream" not in input_indices:
        _set_input(request, facts, "stream", b"\1")
    for name in requested_outputs:
        if name in facts.outputs:
            request.outputs.add(name=name)


def _set_input(request: Any, facts: ServedModelFacts, name: str, raw: bytes) -> None:
    """Set a single-value input, if the model has it."""
    datatype = facts.tensors.datatypes.get(name)
    if datatype is None:
        return
    for index, tensor in enumerate(request.inputs):
        if tensor.name == name:
            request.raw_input_contents[index] = raw
            return
    shape = [1, 1] if facts.tensors.is_batched else [1]
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
