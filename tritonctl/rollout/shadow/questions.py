# SPDX-License-Identifier: Apache-2.0
"""What a copy asks, as a request that can be asked again: of which model, of what, how long."""

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
from tritonctl.rollout.shadow.listening import Copy
from tritonctl.rollout.shadow.rest import (
    NotUnderstoodError,
    Tensors,
    generate_request,
    infer_request,
    model_and_verb,
)

if TYPE_CHECKING:
    from tritonctl.frontend.config import FrontendConfig

TEXT_TASK = "text_generation"
MOST_TOKENS = 128  # of an answer: a difference shows in the first ones
MOST_ROWS = 64
_METHODS = ("/ModelInfer", "/ModelStreamInfer")
# A parameter of the request, by which an engine of ours (textlib) leaves its times out: those that
# it publishes are its users'.
_SHADOW = "tritonctl_shadow"
_SEED = "random_seed"
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
# Of the one who asked: how long to wait, and in what order.
_NOT_OURS = ("timeout", "priority")


@dataclass(frozen=True)
class Facts:
    """What has to be known of a served model to ask it.

    outputs: their names. streams: it answers by ModelStreamInfer alone.
    """

    served: ServedTask
    tensors: Tensors
    outputs: frozenset[str]
    streams: bool

    @classmethod
    def of(cls, metadata: Any, config: Any) -> Facts:
        """From ModelMetadataResponse and ModelConfigResponse."""
        plain = MessageToDict(config.config, preserving_proto_field_name=True)
        served = ServedTask.of(metadata, config)
        datatypes = {tensor.name: tensor.datatype for tensor in metadata.inputs}
        return cls(
            served,
            Tensors(datatypes, batched=bool(served.max_rows)),
            frozenset(tensor.name for tensor in metadata.outputs),
            streams=is_decoupled(plain) or served.task.name == TEXT_TASK,
        )


@dataclass(frozen=True)
class Question:
    """The model that is asked, and what makes the ModelInferRequest once it is known."""

    model: str
    request: Callable[[Facts], Any]


def question_of(copy: Copy, frontend: FrontendConfig | None) -> Question | None:
    """What a copy asks; None of one that asks no model. Raises NotUnderstoodError.

    frontend: where the project has one, as it is configured.
    """
    if copy.content is None:
        raise NotUnderstoodError("it is too long, or compressed")
    content = copy.content
    if copy.is_grpc:
        return _of_grpc(copy.path, content)
    if (found := model_and_verb(copy.path)) is not None:
        model, verb = found
        if verb == "infer":
            length = copy.headers.get("inference-header-content-length")
            if length is not None and not (length.isascii() and length.isdecimal()):
                raise NotUnderstoodError("its JSON has no length")
            request = infer_request(model, content, int(length) if length else None)
            return Question(model, lambda _: request)
        return Question(model, lambda facts: generate_request(model, content, facts.tensors))
    if frontend is None:
        return None
    from tritonctl.rollout.shadow.openai import openai_question

    if (asked := openai_question(copy.path, copy.headers, content, frontend)) is None:
        return None
    model, make = asked
    return Question(model, lambda facts: make(facts.served))


def _of_grpc(path: str, content: bytes) -> Question | None:
    if not path.endswith(_METHODS):
        return None
    try:
        request = service_pb2.ModelInferRequest.FromString(content)
    except DecodeError as error:
        raise NotUnderstoodError("it is no ModelInferRequest") from error
    return Question(request.model_name, lambda _: request)


def prepared(request: Any, facts: Facts, seed: int) -> Any:
    """The request as it is asked again: as it was, but for who asks and what is answered.

    A text has at most MOST_TOKENS; one that is drawn gets the seed, unless it has its own, so that
    stable may draw the same twice. Raises NotUnderstoodError for what cannot be asked again.
    """
    again = service_pb2.ModelInferRequest()
    again.CopyFrom(request)
    again.id, again.model_version = "", ""
    if any(name in again.parameters for name in _SEQUENCE):
        raise NotUnderstoodError("part of a sequence, which has a state")
    for name in _NOT_OURS:
        again.parameters.pop(name, None)
    again.parameters[_SHADOW].bool_param = True
    if any("shared_memory_region" in tensor.parameters for tensor in again.inputs):
        raise NotUnderstoodError("inputs in shared memory")
    if len(again.raw_input_contents) != len(again.inputs):
        raise NotUnderstoodError("inputs that are not in raw_input_contents")
    del again.outputs[:]
    if facts.served.task.name == TEXT_TASK:
        _as_text(again, facts, seed)
    elif facts.streams:
        raise NotUnderstoodError("a model that streams, and no text")
    else:
        if rows_of(again, facts) > MOST_ROWS:
            raise NotUnderstoodError(f"more than {MOST_ROWS} rows")
        for name in facts.served.task.outputs:
            again.outputs.add(name=name)
    return again


def rows_of(request: Any, facts: Facts) -> int:
    """How many rows a request has; 1 without a batch dimension."""
    shapes = [tensor.shape for tensor in request.inputs]
    return int(shapes[0][0]) if shapes and shapes[0] and facts.served.max_rows else 1


def _as_text(request: Any, facts: Facts, seed: int) -> None:
    given = {tensor.name: place for place, tensor in enumerate(request.inputs)}
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    most = MOST_TOKENS
    if "max_tokens" in given:
        raw = request.raw_input_contents[given["max_tokens"]]
        most = min(most, int.from_bytes(raw[:4], "little", signed=True)) if len(raw) == 4 else most  # noqa: PLR2004 - INT32
    _set(request, facts, "max_tokens", struct.pack("<i", most))
    if _SEED not in given and "seed" not in given:
        _set(request, facts, _SEED, struct.pack("<Q", seed))
    wanted: tuple[str, ...] = OUTPUTS
    if "return_log_probs" in facts.tensors.datatypes and facts.outputs.issuperset(LOG_PROB_OUTPUTS):
        _set(request, facts, "return_log_probs", b"\1")
        wanted += LOG_PROB_OUTPUTS
    if "stream" not in given:
        _set(request, facts, "stream", b"\1")
    for name in wanted:
        if name in facts.outputs:
            request.outputs.add(name=name)


def _set(request: Any, facts: Facts, name: str, raw: bytes) -> None:
    """Give an input of one value this one, where the model has it."""
    datatype = facts.tensors.datatypes.get(name)
    if datatype is None:
        return
    for place, tensor in enumerate(request.inputs):
        if tensor.name == name:
            request.raw_input_contents[place] = raw
            return
    shape = [1, 1] if facts.tensors.batched else [1]
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
