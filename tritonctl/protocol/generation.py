# SPDX-License-Identifier: Apache-2.0
"""Text generation on the wire: requests, responses and timings, shared by both clients.

The tensors are those of `ensembles/text_generation.yaml`; with `max_batch_size: 1` each has a
leading batch dimension of 1. Protocol: KServe V2 over gRPC, `ModelStreamInfer`.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any

from tritonctl.errors import RequestRejectedError
from tritonctl.protocol.error_map import refusal

_LENGTH_BYTES = 4  # before each BYTES element
_NS_PER_MS = 1e6
_US_PER_SECOND = 1e6

# {"role": "user", "content": "..."}, and what else chat templates know: tool_calls, tool_call_id.
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """Messages, oldest first, and the tools that the model may call, both in OpenAI's form.

    `template`: what else the chat template reads, by name, such as `enable_thinking`.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    template: Mapping[str, Any] | None = None


# Text that the model continues, or a conversation for the checkpoint's chat template to write out.
Prompt = str | bytes | Sequence[Message] | Conversation


@dataclass(frozen=True)
class SamplingParameters:
    """How to choose tokens; None leaves the choice to the server.

    Greedy unless `temperature` > 0, `top_k` > 1 or `top_p` < 1 is given. Equal `random_seed`,
    equal text. `end_id`: token ids that end the answer instead of the model's own; -1: none.
    `stop_words` end it by its text, which contains them only with `include_stop_word`.
    `exclude_input_in_output=False`: the answer begins with the prompt, in one piece. For engines
    that have them: `lora_name`, an adapter; a guide (json, json_schema, regex or ebnf_grammar).
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    random_seed: int | None = None
    min_tokens: int | None = None
    end_id: int | tuple[int, ...] | None = None
    stop_words: tuple[str, ...] | None = None
    include_stop_word: bool | None = None
    bad_words: tuple[str, ...] | None = None
    exclude_input_in_output: bool | None = None
    return_log_probs: bool | None = None
    lora_name: str | None = None
    guided_decoding_guide_type: str | None = None
    guided_decoding_guide: str | None = None


@dataclass(frozen=True)
class Queueing:
    """How a request waits for a place in the engine; `serving.queue` is the server's side.

    `priority`: 1 goes first; None, or more than the server's `priority_levels`: its default level.
    `timeout`: seconds that it may wait, unless the server's own limit is shorter; time in the
    engine does not count. Triton looks about every half second.
    """

    priority: int | None = None
    timeout: float | None = None


# Data types by the letter of struct; the protocol demands little-endian. BYTES: of each length.
_FORMATS = {"INT32": "<i", "FP32": "<f", "UINT64": "<Q", "BOOL": "<?", "BYTES": "<I"}
_FIELDS = {
    "INT32": ("max_tokens", "top_k", "min_tokens", "end_id"),
    "FP32": ("temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "UINT64": ("random_seed",),
    "BOOL": ("include_stop_word", "exclude_input_in_output", "return_log_probs"),
    "BYTES": (
        *("stop_words", "bad_words", "lora_name"),
        *("guided_decoding_guide_type", "guided_decoding_guide"),
    ),
}
_DATATYPES = {name: datatype for datatype, names in _FIELDS.items() for name in names}
FIRST_COME = Queueing()
_RESUME_DIGEST = "resume_text_sha256"
_MOST_QUEUE_SECONDS = 24 * 3600
_MOST_TEMPLATES = 16  # a guide may be long
_name_of = attrgetter("name")
OUTPUTS = ("text_output", "output_ids", "num_input_tokens", "num_output_tokens", "finish_reason")
LOG_PROB_OUTPUTS = ("cum_log_probs", "output_log_probs")


@dataclass(frozen=True)
class Chunk:
    """One response of a stream. Counts are of the whole stream so far.

    `finish_reason` is "" until the last chunk: then "stop" (end token, stop word) or "length".
    `received_ns` is `time.monotonic_ns()` at arrival. With `return_log_probs`: `log_probs` of the
    tokens of this chunk, `cum_log_prob` of the stream so far. `token_ids`: of this chunk.
    `resumes`: how often the stream broke and went on elsewhere so far. `model_version`: of the
    model that sent this chunk; the number of the release, where one is served.
    """

    text: str
    num_input_tokens: int
    num_output_tokens: int
    finish_reason: str
    received_ns: int
    log_probs: tuple[float, ...] = ()
    cum_log_prob: float | None = None
    token_ids: tuple[int, ...] = ()
    resumes: int = 0
    model_version: str = ""


@dataclass(frozen=True)
class Timing:
    """Latencies of one stream, milliseconds, from sending the request.

    ITL is the mean gap between tokens, (end to end - TTFT) / (tokens - 1), as AIPerf defines it.
    The time that a broken stream takes to resume counts. None: the stream had too few tokens.
    """

    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float
    tokens_per_second: float | None

    @classmethod
    def of(cls, sent_ns: int, chunks: list[Chunk]) -> Timing:
        """The timing of a finished stream."""
        last_ns = chunks[-1].received_ns if chunks else time.monotonic_ns()
        e2e_ms = (last_ns - sent_ns) / _NS_PER_MS
        tokens = chunks[-1].num_output_tokens if chunks else 0
        first_ns = next((c.received_ns for c in chunks if c.num_output_tokens > 0), None)
        if first_ns is None:
            return cls(None, None, e2e_ms, None)
        ttft_ms = (first_ns - sent_ns) / _NS_PER_MS
        itl_ms = (e2e_ms - ttft_ms) / (tokens - 1) if tokens > 1 else None
        return cls(ttft_ms, itl_ms, e2e_ms, tokens / e2e_ms * 1000 if e2e_ms else None)


@dataclass(frozen=True)
class Generation:
    """A finished stream. `token_ids`: of the answer. `resumes`: how often it went on elsewhere.

    `model_versions`: of the models that sent it, in order: two, where it went on with another one.
    """

    text: str
    num_input_tokens: int
    num_output_tokens: int
    finish_reason: str
    timing: Timing
    log_probs: tuple[float, ...] = ()
    cum_log_prob: float | None = None
    token_ids: tuple[int, ...] = ()
    resumes: int = 0
    model_versions: tuple[str, ...] = ()

    @classmethod
    def of(cls, sent_ns: int, chunks: list[Chunk]) -> Generation:
        """Put the chunks of a finished stream together."""
        last = chunks[-1] if chunks else Chunk("", 0, 0, "", time.monotonic_ns())
        return cls(
            text="".join(chunk.text for chunk in chunks),
            num_input_tokens=last.num_input_tokens,
            num_output_tokens=last.num_output_tokens,
            finish_reason=last.finish_reason,
            timing=Timing.of(sent_ns, chunks),
            log_probs=tuple(value for chunk in chunks for value in chunk.log_probs),
            cum_log_prob=last.cum_log_prob,
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            resumes=last.resumes,
            model_versions=tuple(dict.fromkeys(c.model_version for c in chunks if c.model_version)),
        )


def generation_request(
    model: str,
    prompt: Prompt,
    sampling: SamplingParameters,
    *,
    request_id: str = "",
    queueing: Queueing = FIRST_COME,
    resume_ids: Sequence[int] = (),
    resume_text: str | None = None,
) -> Any:
    """The ModelInferRequest of a streamed generation.

    Text goes into `text_input`, bytes as they are; messages go into `messages`, as JSON.
    `resume_ids`: the ids of a broken answer, to continue after. `resume_text`: its text; a model
    to which these ids are another text refuses them. Raises RequestRejectedError for a value that
    does not fit into its tensor's type.
    """
    from tritonclient.grpc import service_pb2

    name, text = prompt_tensor(prompt)
    request = service_pb2.ModelInferRequest()
    request.CopyFrom(_template(model, sampling, queueing, name))
    request.id = request_id
    request.raw_input_contents[0] = struct.pack("<I", len(text)) + text
    if resume_ids:
        content = struct.pack(f"<{len(resume_ids)}i", *resume_ids)
        _add(request, "resume_ids", "INT32", content, len(resume_ids))
        if resume_text is not None:
            # A parameter, not a tensor: releases that do not know it take the request, too.
            digest = hashlib.sha256(resume_text.encode("utf-8", "surrogatepass")).hexdigest()
            request.parameters[_RESUME_DIGEST].string_param = digest
    return request


def _template(model: str, sampling: SamplingParameters, queueing: Queueing, prompt: str) -> Any:
    """The request without its prompt: a client's requests differ in little else."""
    try:
        return _kept_template(model, sampling, queueing, prompt)
    except TypeError:  # lists where tuples are declared: they cannot be looked up
        return _new_template(model, sampling, queueing, prompt)


def _new_template(model: str, sampling: SamplingParameters, queueing: Queueing, prompt: str) -> Any:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    _queue(request, queueing)
    _add(request, prompt, "BYTES", b"")
    # A stream never repeats its prompt: an answer that begins with it comes in one response.
    _add(request, "stream", "BOOL", b"\0" if sampling.exclude_input_in_output is False else b"\1")
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if value is not None:
            values = value if isinstance(value, tuple | list) else (value,)
            content = b"".join(_packed(field.name, item) for item in values)
            _add(request, field.name, _DATATYPES[field.name], content, len(values))
    for name in OUTPUTS + (LOG_PROB_OUTPUTS if sampling.return_log_probs else ()):
        request.outputs.add(name=name)
    return request


_kept_template = lru_cache(maxsize=_MOST_TEMPLATES)(_new_template)


def _queue(request: Any, queueing: Queueing) -> None:
    """Triton's own request parameters; an ensemble passes them on to its steps."""
    priority, timeout = queueing.priority, queueing.timeout
    if priority is not None:
        if not 1 <= priority < 2**32:
            raise RequestRejectedError(
                f"priority is {priority}, expected 1 or more", remedy="1 is the highest priority"
            )
        request.parameters["priority"].uint64_param = priority
    if timeout is not None:
        if not 0 < timeout <= _MOST_QUEUE_SECONDS:
            raise RequestRejectedError(
                f"the queue timeout is {timeout} seconds, expected more than 0 and at most "
                f"{_MOST_QUEUE_SECONDS}",
                remedy="leave it out to wait as long as the server allows",
            )
        # Rounded up: Triton takes 0 for "no timeout".
        request.parameters["timeout"].int64_param = math.ceil(timeout * _US_PER_SECOND)


def prompt_tensor(prompt: Prompt) -> tuple[str, bytes]:
    """The tensor that carries a prompt, and its text.

    What is not UTF-8 goes out as it is: the server says where it is wrong.
    """
    if isinstance(prompt, bytes):
        return "text_input", prompt
    if isinstance(prompt, str):
        return "text_input", prompt.encode("utf-8", "surrogatepass")
    if isinstance(prompt, Conversation):
        value: Any = {"messages": list(prompt.messages)}
        if prompt.tools:
            value["tools"] = list(prompt.tools)
        if prompt.template:
            value["chat_template_kwargs"] = dict(prompt.template)
    else:
        value = [dict(message) for message in prompt]
    text = json.dumps(value, ensure_ascii=False)
    return "messages", text.encode("utf-8", "surrogatepass")


def _packed(name: str, value: float | str) -> bytes:
    datatype = _DATATYPES[name]
    try:
        if isinstance(value, str):
            content = value.encode("utf-8", "surrogatepass")
            return struct.pack(_FORMATS[datatype], len(content)) + content
        return struct.pack(_FORMATS[datatype], value)
    except (struct.error, OverflowError) as error:
        raise RequestRejectedError(
            f"{name}: {value} does not fit into {datatype}",
            remedy=f"give a {name} within the range of {datatype}",
        ) from error


def _add(request: Any, name: str, datatype: str, content: bytes, count: int = 1) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[1, count])
    request.raw_input_contents.append(content)


def read_chunk(response: Any) -> tuple[Chunk | None, bool]:
    """The chunk in a ModelStreamInferResponse, None for the empty final one; is it final?

    Raises RequestRejectedError when the answer is an error, ServerBusyError when it is the queue's,
    StepGoneError when a step's process has died.
    """
    if response.error_message:
        raise refusal(response.error_message)
    answer = response.infer_response
    final = bool(answer.parameters["triton_final_response"].bool_param)
    outputs = answer.outputs
    if not outputs:
        return None, final
    raw = dict(zip(map(_name_of, outputs), answer.raw_output_contents, strict=True))
    log_probs = raw.get("cum_log_probs")
    # Positional: with ten fields by name it takes half as long again, for each token.
    chunk = Chunk(
        _string(raw["text_output"]),
        _int32(raw["num_input_tokens"]),
        _int32(raw["num_output_tokens"]),
        _string(raw["finish_reason"]),
        time.monotonic_ns(),
        _floats(raw["output_log_probs"]) if "output_log_probs" in raw else (),
        next(iter(_floats(log_probs)), None) if log_probs else None,
        _int32s(raw["output_ids"]) if "output_ids" in raw else (),
        0,
        answer.model_version,
    )
    return chunk, final


def _string(raw: bytes) -> str:
    """One BYTES element: a little-endian uint32 length, then that many bytes."""
    return raw[_LENGTH_BYTES:].decode("utf-8", "replace") if len(raw) > _LENGTH_BYTES else ""


def _int32(raw: bytes) -> int:
    """The first element."""
    return int.from_bytes(raw[:4], "little", signed=True)


def _int32s(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 4}i", raw)


def _floats(raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // 4}f", raw)
