# SPDX-License-Identifier: Apache-2.0
"""Read the input tensors of an engine model into one validated generation request.

The engine's tensors have the names of TensorRT-LLM's Triton backend; error messages use the public
names of the ensemble, which the client sent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textlib.errors import PromptTooLongError, RequestError, TextPathError
from textlib.tokens.stop_words import check_stop_words
from textlib.triton.sampling import NO_END_TOKEN, SamplingParams, resolve_sampling
from textlib.triton.sampling_table import Number, public_names

ReadTensor = Callable[[str], NDArray[Any] | None]

PUBLIC_NAMES = {
    "request_output_len": "max_tokens",
    "streaming": "stream",
    **public_names(),
    **{
        name: name
        for name in (
            *("end_id", "stop_words", "include_stop_word", "bad_words"),
            *("exclude_input_in_output", "return_log_probs", "resume_ids"),
        )
    },
}
_LIST_TENSORS = ("end_id", "stop_words", "bad_words", "resume_ids")
MAX_END_IDS = 64
# Kinds of guides that an answer can conform to; `json` is any JSON, the others need a text.
GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar")
MAX_GUIDE_BYTES = 65_536
# A request parameter of frontends: the tenant whose share a guide's test takes.
TENANT_PARAMETER = "tritonctl_tenant"
_MAX_TENANT_LENGTH = 128


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """The limits of one engine, in tokens."""

    max_input_len: int
    max_seq_len: int  # prompt and output together
    kv_tokens: int  # size of the whole KV cache
    vocab_size: int
    eos_token_ids: tuple[int, ...]  # end a stream unless the request has end_id

    @property
    def max_request_tokens(self) -> int:
        """Maximum tokens of one request, prompt and output together."""
        return min(self.max_seq_len, self.kv_tokens)


@dataclass(frozen=True, slots=True)
class GuideSpec:
    """The constraint that an answer must conform to."""

    kind: str  # one of GUIDE_TYPES
    text: str = ""  # empty only for `json`


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request of a client.

    lora_name and guide are set only for engines that declare their tensors.
    """

    # The engine's input, INT32[n] with n >= 1: the prompt, then the resumed ids.
    token_ids: NDArray[np.int32]
    # max_tokens (0 is possible in a resumed answer) and min_tokens count the remaining ids.
    sampling: SamplingParams
    streaming: bool  # send ids as they are made
    stop_words: tuple[bytes, ...] = ()  # UTF-8; the first one in the decoded answer ends it
    include_stop_word: bool = False  # the answer contains the stop word
    # Text that must not be generated; an engine that cannot exclude it rejects the request.
    bad_words: tuple[bytes, ...] = ()
    echo_prompt: bool = False  # the answer, in one response, begins with the prompt's text
    # The receiver records every response on the page named in it (`acknowledgements`).
    acknowledged: bool = False
    num_resumed_ids: int = 0  # ids that the client has from another server
    lora_name: str = ""
    guide: GuideSpec | None = None
    tenant: str = ""  # shares what guides cost; "": every client without a tenant

    @property
    def num_input_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return len(self.token_ids) - self.num_resumed_ids

    @property
    def preceding_text_ids(self) -> list[int]:
        """The ids whose text the client has, or receives first: the start of the answer's text."""
        first = 0 if self.echo_prompt else self.num_input_tokens
        ids: list[int] = self.token_ids[first:].tolist()
        return ids


def read_generation_request(read: ReadTensor, limits: SequenceLimits) -> GenerationRequest:
    """Read and validate every input of an engine; raises RequestError.

    `read` returns the tensor of a name as an array, or None if the request does not have it.
    """
    prompt, resumed = _prompt_ids(read, limits), _list_values(read, "resume_ids") or []
    values = {
        public: _scalar(read, name, public)
        for name, public in PUBLIC_NAMES.items()
        if public not in _LIST_TENSORS
    }
    sampling = resolve_sampling(
        values,
        max_tokens=_max_tokens(values["max_tokens"], len(prompt), limits),
        end_ids=_end_ids(_list_values(read, "end_id"), limits),
    )
    acknowledged = read("acknowledged")
    return GenerationRequest(
        _append_resumed(prompt, resumed, limits),
        _remaining_budget(sampling, len(prompt), len(resumed), limits),
        streaming=bool(values["stream"]),
        stop_words=check_stop_words("stop_words", _list_values(read, "stop_words") or []),
        include_stop_word=bool(values["include_stop_word"]),
        bad_words=check_stop_words("bad_words", _list_values(read, "bad_words") or []),
        # A stream never repeats the prompt: NVIDIA's streams contain only new text in any case.
        echo_prompt=values["exclude_input_in_output"] == 0 and not values["stream"],
        acknowledged=acknowledged is not None and bool(acknowledged.all()),
        num_resumed_ids=len(resumed),
        lora_name=_single_text(read, "lora_name"),
        guide=_guide(read),
    )


def with_tenant(request: GenerationRequest, parameters: Mapping[str, Any]) -> GenerationRequest:
    """Return the request with the tenant that its parameters name."""
    tenant = parameters.get(TENANT_PARAMETER)
    if not isinstance(tenant, str) or not tenant:
        return request
    return replace(request, tenant=tenant[:_MAX_TENANT_LENGTH])


def with_prompt(
    tensors: Mapping[str, NDArray[Any]], prompts: Sequence[NDArray[np.int32] | TextPathError]
) -> dict[str, NDArray[Any]]:
    """Return a request's tensors with the ids of its encoded prompt added.

    Raises the error of its prompt, and RequestError unless there is exactly one prompt.
    """
    if len(prompts) != 1:
        raise RequestError(
            f"the request has {len(prompts)} prompts, expected one: a client could not separate "
            "the interleaved streams of several answers. Send a request for each."
        )
    if isinstance(prompts[0], TextPathError):
        raise prompts[0]
    length = np.array([[len(prompts[0])]], dtype=np.int32)
    return {**tensors, "input_ids": prompts[0][np.newaxis], "input_lengths": length}


def _guide(read: ReadTensor) -> GuideSpec | None:
    kind = _single_text(read, "guided_decoding_guide_type")
    text = _single_text(read, "guided_decoding_guide")
    if not kind and not text:
        return None
    if kind not in GUIDE_TYPES:
        raise RequestError(
            f"guided_decoding_guide_type is '{kind}', expected one of {', '.join(GUIDE_TYPES)}."
        )
    if bool(text) == (kind == "json"):
        expected = "none: `json` is any JSON" if text else f"the {kind} that the answer follows"
        raise RequestError(
            f"guided_decoding_guide has {len(text)} characters, expected {expected}."
        )
    return GuideSpec(kind, text)


def _single_text(read: ReadTensor, name: str) -> str:
    """Return the text of a tensor; empty if the request does not have it."""
    values = _list_values(read, name) or [b""]
    if len(values) != 1 or len(values[0]) > MAX_GUIDE_BYTES:
        size = f"{len(values)} values" if len(values) != 1 else f"{len(values[0])} bytes"
        raise RequestError(f"{name} has {size}, expected one text of at most {MAX_GUIDE_BYTES}.")
    try:
        return bytes(values[0]).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8: {error.reason} at byte {error.start}.") from None


def _list_values(read: ReadTensor, name: str) -> list[Any] | None:
    """Return the values of a tensor [1, n]; None if the request does not have it."""
    array = read(name)
    return None if array is None else array.reshape(-1).tolist()


def _scalar(read: ReadTensor, name: str, public: str) -> Number | None:
    array = read(name)
    if array is None:
        return None
    if array.size != 1:
        raise RequestError(f"{public} has shape {list(array.shape)}, expected one value.")
    value: Number = array.item()
    return value


def _prompt_ids(read: ReadTensor, limits: SequenceLimits) -> NDArray[np.int32]:
    tensor, lengths = read("input_ids"), read("input_lengths")
    if tensor is None or lengths is None or lengths.size != 1:
        raise RequestError("the engine needs input_ids [1, n] and input_lengths [1, 1].")
    row = tensor.reshape(-1).astype(np.int32)  # a copy: the request's memory goes after execute()
    length = int(lengths.item())
    if not 0 <= length <= row.size:
        raise RequestError(f"input_lengths is {length}, but input_ids holds {row.size} ids.")
    if length == 0:
        raise RequestError("text_input is empty: the prompt needs at least one token.")
    check_prompt_length(length, limits.max_input_len)
    ids: NDArray[np.int32] = row[:length]
    if int(ids.min()) < 0 or int(ids.max()) >= limits.vocab_size:
        raise RequestError(
            f"input_ids has ids from {ids.min()} to {ids.max()}, the model has 0 to "
            f"{limits.vocab_size - 1}. Tokenizer and engine probably belong to different models."
        )
    return ids


def check_prompt_length(length: int, max_input_len: int, tensor: str = "text_input") -> None:
    """Raise PromptTooLongError if `length` tokens are more than `max_input_len`."""
    if length > max_input_len:
        raise PromptTooLongError(
            f"{tensor} has {length} tokens, the limit is {max_input_len} (max_input_len). "
            "Shorten the prompt."
        )


def _max_tokens(value: Number | None, prompt: int, limits: SequenceLimits) -> int:
    remaining = limits.max_request_tokens - prompt
    if remaining <= 0:
        raise RequestError(
            f"the prompt has {prompt} tokens and {_limit_text(limits)}: no tokens remain for "
            "the answer. Shorten the prompt."
        )
    if value is None:
        return remaining
    if value <= 0:
        raise RequestError(f"max_tokens is {value}, expected at least 1.")
    if value > remaining:
        raise RequestError(
            f"max_tokens is {value} and the prompt has {prompt} tokens, but "
            f"{_limit_text(limits)}. Request at most {remaining}."
        )
    return int(value)


def _append_resumed(
    prompt: NDArray[np.int32], resumed: list[int], limits: SequenceLimits
) -> NDArray[np.int32]:
    if not resumed:
        return prompt
    for value in resumed:
        if not 0 <= value < limits.vocab_size:
            raise RequestError(
                f"resume_ids has {value}, expected token ids from 0 to {limits.vocab_size - 1}. "
                "They must be the output_ids of the same model."
            )
    return np.concatenate([prompt, np.array(resumed, dtype=np.int32)])


def _remaining_budget(
    sampling: SamplingParams, prompt: int, resumed: int, limits: SequenceLimits
) -> SamplingParams:
    """Subtract the resumed ids from max_tokens and min_tokens."""
    remaining = sampling.max_tokens - resumed
    if remaining < 0:
        raise RequestError(
            f"resume_ids has {resumed} ids, but max_tokens is {sampling.max_tokens}. Send the "
            "output_ids and the max_tokens of the same answer."
        )
    if remaining and prompt + resumed > limits.max_input_len:
        raise RequestError(
            f"the prompt and resume_ids have {prompt + resumed} tokens together, the limit is "
            f"{limits.max_input_len} (max_input_len). This answer cannot be continued."
        )
    return replace(sampling, max_tokens=remaining, min_tokens=max(0, sampling.min_tokens - resumed))


def _limit_text(limits: SequenceLimits) -> str:
    if limits.kv_tokens < limits.max_seq_len:
        return f"the KV cache holds {limits.kv_tokens} tokens (num_kv_blocks x block_size)"
    return f"both together may have {limits.max_seq_len} (max_seq_len)"


def _end_ids(values: list[int] | None, limits: SequenceLimits) -> tuple[int, ...]:
    if values is None:
        return limits.eos_token_ids
    if values == [NO_END_TOKEN]:
        return ()
    if not 0 < len(values) <= MAX_END_IDS:
        raise RequestError(
            f"end_id has {len(values)} ids, expected 1 to {MAX_END_IDS}; {NO_END_TOKEN}: no end id."
        )
    for value in values:
        if not 0 <= value < limits.vocab_size:
            raise RequestError(
                f"end_id is {value}, expected a token id from 0 to {limits.vocab_size - 1}, or "
                f"{NO_END_TOKEN} alone for none."
            )
    return tuple(values)
