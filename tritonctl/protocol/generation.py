# SPDX-License-Identifier: Apache-2.0
"""Text generation on the wire: requests, responses and timings, shared by both clients.

`ensembles/text_generation.yaml` defines the tensors; with `max_batch_size: 1` each has a leading
batch dimension of 1. Protocol: KServe V2 over gRPC, `ModelStreamInfer`.
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
from tritonctl.protocol.datatypes import BY_CONFIG_NAME
from tritonctl.protocol.error_map import from_message
from tritonctl.protocol.sampling_table import sampling_parameters

PROMPT_IDS = "prompt_ids"  # the tensor of a TokenPrompt
_LENGTH_BYTES = 4  # before each BYTES element
_NS_PER_MS = 1e6
_US_PER_SECOND = 1e6

# {"role": "user", "content": "..."}, and further keys of chat templates: tool_calls, tool_call_id.
Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatPrompt:
    """Messages with tools or template variables."""

    messages: Sequence[Message]  # in OpenAI's form, oldest first
    tools: Sequence[Mapping[str, Any]] = ()  # in OpenAI's form
    template: Mapping[str, Any] | None = None  # variables, such as `enable_thinking`
    # Refuse system messages if the template has no such role, instead of putting them into the
    # user's.
    refuses_system: bool = False


@dataclass(frozen=True)
class TokenPrompt:
    """Token ids that the model continues, at least one; no special tokens are added."""

    ids: tuple[int, ...]


# Text or ids that the model continues, or a conversation that the checkpoint's chat template
# formats.
Prompt = str | bytes | TokenPrompt | Sequence[Message] | ChatPrompt


@dataclass(frozen=True)
class SamplingParameters:
    """How to choose tokens; the server chooses values that are None.

    `python_backends/textlib/triton/sampling.json` describes those from `temperature` to
    `min_tokens`. Equal seeds give equal text.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    random_seed: int | None = None
    min_tokens: int | None = None
    end_id: int | tuple[int, ...] | None = None  # replace the model's end tokens; -1: no end token
    stop_words: tuple[str, ...] | None = None  # texts that end the answer
    include_stop_word: bool | None = None  # keep the stop word in the answer
    bad_words: tuple[str, ...] | None = None
    exclude_input_in_output: bool | None = None  # False: the answer starts with the prompt
    return_log_probs: bool | None = None
    lora_name: str | None = None  # an adapter, for engines with LoRA
    # json, json_schema, regex or ebnf_grammar, for engines with guided decoding
    guided_decoding_guide_type: str | None = None
    guided_decoding_guide: str | None = None


@dataclass(frozen=True)
class Queueing:
    """How a request waits in the queue; `serving.queue` configures the server's side."""

    # 1 goes first; None, or more than the server's `priority_levels`: its default level.
    priority: int | None = None
    # Maximum seconds in the queue, without time in the engine; the server's limit may be shorter.
    # Triton checks about every half second.
    timeout: float | None = None
    # Whose share of the engine's time a guide takes before its answer; None: of all without one.
    tenant: str | None = None


# struct formats by data type; the protocol is little-endian. BYTES: format of each length.
_FORMATS = {"INT32": "<i", "FP32": "<f", "UINT64": "<Q", "BOOL": "<?", "BYTES": "<I"}
_FIELDS = {
    "INT32": ("max_tokens", "end_id"),
    "BOOL": ("include_stop_word", "exclude_input_in_output", "return_log_probs"),
    "BYTES": (
        *("stop_words", "bad_words", "lora_name"),
        *("guided_decoding_guide_type", "guided_decoding_guide"),
    ),
}
_DATATYPES = {name: datatype for datatype, names in _FIELDS.items() for name in names} | {
    parameter.request_field: BY_CONFIG_NAME[parameter.data_type].wire
    for parameter in sampling_parameters().values()
}
DEFAULT_QUEUEING = Queueing()
_RESUME_DIGEST = "resume_text_sha256"
_TENANT = "tritonctl_tenant"
_MAX_QUEUE_SECONDS = 24 * 3600
_MAX_CACHED_TEMPLATES = 16  # a guide may be long
_name_of = attrgetter("name")
OUTPUTS = ("text_output", "output_ids", "num_input_tokens", "num_output_tokens", "finish_reason")
UNCOUNTED = -1  # of a model that does not report its number of tokens
# Of models of other makers.
_ABSENT = {
    "text_output": b"",
    "num_input_tokens": struct.pack("<i", 0),
    "num_output_tokens": struct.pack("<i", UNCOUNTED),
    "finish_reason": b"",
}
LOG_PROB_OUTPUTS = ("cum_log_probs", "output_log_probs")


@dataclass(frozen=True)
class Chunk:
    """One response of a stream. Counts cover the whole stream so far."""

    text: str
    num_input_tokens: int  # 0: the model does not report it
    num_output_tokens: int  # of chunks with text, if the model does not report it
    finish_reason: str  # "" until the last chunk: "stop" (end token, stop word) or "length"
    received_ns: int  # `time.monotonic_ns()` at arrival
    log_probs: tuple[float, ...] = ()  # of this chunk, with `return_log_probs`
    cum_log_prob: float | None = None  # of the stream so far, with `return_log_probs`
    token_ids: tuple[int, ...] = ()  # of this chunk
    resumes: int = 0  # how often the stream was resumed so far
    model_version: str = ""  # of the model that sent this chunk: its release's number, if any


@dataclass(frozen=True)
class Timing:
    """Latencies of one stream in milliseconds, measured from sending the request.

    ITL is the mean gap between tokens, (end to end - TTFT) / (tokens - 1), as AIPerf defines it. It
    includes the time to resume a broken stream. None: the stream had too few tokens, or all of them
    in one chunk.
    """

    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float
    tokens_per_second: float | None

    @classmethod
    def of(cls, sent_ns: int, chunks: list[Chunk]) -> Timing:
        """Compute the timing of a finished stream."""
        last_ns = chunks[-1].received_ns if chunks else time.monotonic_ns()
        e2e_ms = (last_ns - sent_ns) / _NS_PER_MS
        tokens = chunks[-1].num_output_tokens if chunks else 0
        first = next((chunk for chunk in chunks if chunk.num_output_tokens > 0), None)
        if first is None:
            return cls(None, None, e2e_ms, None)
        ttft_ms = (first.received_ns - sent_ns) / _NS_PER_MS
        has_gap = tokens > first.num_output_tokens  # not all tokens came in one chunk
        itl_ms = (e2e_ms - ttft_ms) / (tokens - 1) if has_gap else None
        return cls(ttft_ms, itl_ms, e2e_ms, tokens / e2e_ms * 1000 if e2e_ms else None)


@dataclass(frozen=True)
class Generation:
    """A finished stream."""

    text: str
    num_input_tokens: int
    num_output_tokens: int
    finish_reason: str
    timing: Timing
    log_probs: tuple[float, ...] = ()
    cum_log_prob: float | None = None
    token_ids: tuple[int, ...] = ()  # of the answer
    resumes: int = 0  # how often the stream was resumed
    model_versions: tuple[str, ...] = ()  # of the models that sent it, in order

    @classmethod
    def of(cls, sent_ns: int, chunks: list[Chunk]) -> Generation:
        """Combine the chunks of a finished stream."""
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
    queueing: Queueing = DEFAULT_QUEUEING,
    resume_ids: Sequence[int] = (),
    resume_text: str | None = None,
) -> Any:
    """Build the ModelInferRequest of a streamed generation.

    Text goes into `text_input`, bytes unchanged; messages go into `messages` as JSON, ids into
    `prompt_ids`. `resume_ids`: token ids of a broken answer to continue. `resume_text`: its text; a
    model whose tokens give another text refuses the request. Raises RequestRejectedError for a
    value that does not fit into its tensor's type.
    """
    from tritonclient.grpc import service_pb2

    name, content = prompt_tensor(prompt)
    request = service_pb2.ModelInferRequest()
    request.CopyFrom(_template(model, sampling, queueing, name))
    request.id = request_id
    if isinstance(prompt, TokenPrompt):
        request.inputs[0].shape[1] = len(prompt.ids)
    else:
        content = struct.pack("<I", len(content)) + content
    request.raw_input_contents[0] = content
    if resume_ids:
        content = struct.pack(f"<{len(resume_ids)}i", *resume_ids)
        _add_input(request, "resume_ids", "INT32", content, len(resume_ids))
        if resume_text is not None:
            # A parameter, not a tensor: older releases ignore unknown parameters.
            digest = hashlib.sha256(resume_text.encode("utf-8", "surrogatepass")).hexdigest()
            request.parameters[_RESUME_DIGEST].string_param = digest
    return request


def _template(model: str, sampling: SamplingParameters, queueing: Queueing, prompt: str) -> Any:
    """Return the request without its prompt. It is cached: a client's requests differ little."""
    try:
        return _cached_template(model, sampling, queueing, prompt)
    except TypeError:  # lists instead of tuples are not hashable
        return _new_template(model, sampling, queueing, prompt)


def _new_template(model: str, sampling: SamplingParameters, queueing: Queueing, prompt: str) -> Any:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    _add_queueing(request, queueing)
    _add_input(request, prompt, "INT32" if prompt == PROMPT_IDS else "BYTES", b"")
    # A stream cannot include its prompt: such an answer comes in one response.
    _add_input(
        request, "stream", "BOOL", b"\0" if sampling.exclude_input_in_output is False else b"\1"
    )
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if value is not None:
            values = value if isinstance(value, tuple | list) else (value,)
            content = b"".join(_pack(field.name, item) for item in values)
            _add_input(request, field.name, _DATATYPES[field.name], content, len(values))
    for name in OUTPUTS + (LOG_PROB_OUTPUTS if sampling.return_log_probs else ()):
        request.outputs.add(name=name)
    return request


_cached_template = lru_cache(maxsize=_MAX_CACHED_TEMPLATES)(_new_template)


def _add_queueing(request: Any, queueing: Queueing) -> None:
    """Set Triton's request parameters; an ensemble passes them on to its steps."""
    priority, timeout = queueing.priority, queueing.timeout
    if queueing.tenant:
        request.parameters[_TENANT].string_param = queueing.tenant
    if priority is not None:
        if not 1 <= priority < 2**32:
            raise RequestRejectedError(
                f"priority is {priority}, expected 1 or more", remedy="1 is the highest priority"
            )
        request.parameters["priority"].uint64_param = priority
    if timeout is not None:
        if not 0 < timeout <= _MAX_QUEUE_SECONDS:
            raise RequestRejectedError(
                f"the queue timeout is {timeout} seconds, expected more than 0 and at most "
                f"{_MAX_QUEUE_SECONDS}",
                remedy="leave it out to wait as long as the server allows",
            )
        # Rounded up, because 0 means "no timeout" to Triton.
        request.parameters["timeout"].int64_param = math.ceil(timeout * _US_PER_SECOND)


def prompt_tensor(prompt: Prompt) -> tuple[str, bytes]:
    """Return the name of a prompt's tensor, and the encoded prompt.

    Invalid UTF-8 is sent unchanged: the server reports its position.
    """
    if isinstance(prompt, bytes):
        return "text_input", prompt
    if isinstance(prompt, str):
        return "text_input", prompt.encode("utf-8", "surrogatepass")
    if isinstance(prompt, TokenPrompt):
        return PROMPT_IDS, struct.pack(f"<{len(prompt.ids)}i", *prompt.ids)
    if isinstance(prompt, ChatPrompt):
        value: Any = {"messages": list(prompt.messages)}
        if prompt.tools:
            value["tools"] = list(prompt.tools)
        if prompt.template:
            value["chat_template_kwargs"] = dict(prompt.template)
        if prompt.refuses_system:
            value["system_messages"] = "refuse"
    else:
        value = [dict(message) for message in prompt]
    text = json.dumps(value, ensure_ascii=False)
    return "messages", text.encode("utf-8", "surrogatepass")


def _pack(name: str, value: float | str) -> bytes:
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


def _add_input(request: Any, name: str, datatype: str, content: bytes, count: int = 1) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[1, count])
    request.raw_input_contents.append(content)


def read_chunk(response: Any, model: str = "") -> tuple[Chunk | None, bool]:
    """Return the chunk of a ModelStreamInferResponse, and whether the response is final.

    The chunk is None for the empty final response. `model`: its name in errors. Raises
    RequestRejectedError for an error, ModelFailedError for a model's exception, ServerBusyError for
    a queue's error, StepGoneError if a step's process has died.
    """
    if response.error_message:
        raise from_message(response.error_message, model)
    answer = response.infer_response
    final = bool(answer.parameters["triton_final_response"].bool_param)
    outputs = answer.outputs
    if not outputs:
        return None, final
    raw = dict(zip(map(_name_of, outputs), answer.raw_output_contents, strict=True))
    log_probs = raw.get("cum_log_probs")
    if len(raw) < len(OUTPUTS):
        raw = _ABSENT | raw
    # Positional arguments: ten keywords would take 50 % longer, for every token.
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
    """Decode one BYTES element: a little-endian uint32 length, then that many bytes."""
    return raw[_LENGTH_BYTES:].decode("utf-8", "replace") if len(raw) > _LENGTH_BYTES else ""


def _int32(raw: bytes) -> int:
    """Decode the first element."""
    return int.from_bytes(raw[:4], "little", signed=True)


def _int32s(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 4}i", raw)


def _floats(raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // 4}f", raw)
