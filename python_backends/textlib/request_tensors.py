# SPDX-License-Identifier: Apache-2.0
"""From the input tensors of an engine model to one validated generation request.

The engine's tensors have the names of TensorRT-LLM's Triton backend; messages use the public
names of the ensemble, which are the ones that a client typed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textlib.errors import PromptTooLongError, RequestError, TextPathError
from textlib.sampling import NO_END_TOKEN, Number, SamplingParams, resolve_sampling
from textlib.stop_words import check_words

ReadTensor = Callable[[str], NDArray[Any] | None]

PUBLIC_NAMES = {
    "request_output_len": "max_tokens",
    "streaming": "stream",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
} | {
    name: name
    for name in (
        *("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *(
            "seed",
            "random_seed",
            "min_tokens",
            "end_id",
            "stop_words",
            "include_stop_word",
            "bad_words",
        ),
        *("exclude_input_in_output", "return_log_probs", "resume_ids"),
    )
}
_LISTS = ("end_id", "stop_words", "bad_words", "resume_ids")
MAX_END_IDS = 64
# What an answer may have to conform to; `json` is any JSON, the others need a guide.
GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar")
MAX_GUIDE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """What one engine can hold, in tokens.

    max_seq_len: prompt and output together. kv_tokens: size of the whole KV cache.
    eos_token_ids: end a stream unless the request brings its own end_id.
    """

    max_input_len: int
    max_seq_len: int
    kv_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Tokens that one request can ever occupy."""
        return min(self.max_seq_len, self.kv_tokens)


@dataclass(frozen=True, slots=True)
class Guide:
    """What the answer must conform to. kind: one of GUIDE_TYPES. text: empty for `json` alone."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """token_ids: what the engine reads, INT32[n] with n >= 1: the prompt, then, where the
    answer broke off on another server, the `resumed` ids that its client has. sampling: its
    max_tokens (then perhaps 0) and min_tokens count what is still to come. streaming: send ids as
    they are made.

    stop_words: UTF-8; the first one in the decoded answer ends it, and is part of it only with
    include_stop_word. bad_words: text that must not be generated; an engine that cannot do it
    refuses them. echo_prompt: the answer, in one response, begins with the text of the prompt.
    acknowledged: the receiver notes every response on the page named in it (textlib.receipts).
    lora_name, guide: only engines that declare their tensors get them.
    """

    token_ids: NDArray[np.int32]
    sampling: SamplingParams
    streaming: bool
    stop_words: tuple[bytes, ...] = ()
    include_stop_word: bool = False
    bad_words: tuple[bytes, ...] = ()
    echo_prompt: bool = False
    acknowledged: bool = False
    resumed: int = 0
    lora_name: str = ""
    guide: Guide | None = None

    @property
    def num_input_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids) - self.resumed

    @property
    def earlier_text_ids(self) -> list[int]:
        """The ids whose text the client has, or gets first: they open the text of the answer."""
        first = 0 if self.echo_prompt else self.num_input_tokens
        ids: list[int] = self.token_ids[first:].tolist()
        return ids


def read_generation_request(read: ReadTensor, limits: SequenceLimits) -> GenerationRequest:
    """Read and validate every input of an engine; raises RequestError.

    `read` returns the tensor of that name as an array, or None if the request does not have it.
    """
    prompt, resumed = _prompt(read, limits), _row(read, "resume_ids") or []
    values = {
        public: _scalar(read, name, public)
        for name, public in PUBLIC_NAMES.items()
        if public not in _LISTS
    }
    sampling = resolve_sampling(
        values,
        max_tokens=_max_tokens(values["max_tokens"], len(prompt), limits),
        end_ids=_end_ids(_row(read, "end_id"), limits),
    )
    acknowledged = read("acknowledged")
    return GenerationRequest(
        _with_resumed(prompt, resumed, limits),
        _rest(sampling, len(prompt), len(resumed), limits),
        streaming=bool(values["stream"]),
        stop_words=check_words("stop_words", _row(read, "stop_words") or []),
        include_stop_word=bool(values["include_stop_word"]),
        bad_words=check_words("bad_words", _row(read, "bad_words") or []),
        # A stream never repeats the prompt: NVIDIA's has only what is new, whatever this says.
        echo_prompt=values["exclude_input_in_output"] == 0 and not values["stream"],
        acknowledged=acknowledged is not None and bool(acknowledged.all()),
        resumed=len(resumed),
        lora_name=_text(read, "lora_name"),
        guide=_guide(read),
    )


def with_prompt(
    given: Mapping[str, NDArray[Any]], prompts: Sequence[NDArray[np.int32] | TextPathError]
) -> dict[str, NDArray[Any]]:
    """The tensors of a request whose prompts are encoded already, with the ids among them.

    Raises the error of its prompt, RequestError for more prompts than one.
    """
    if len(prompts) != 1:
        raise RequestError(
            f"the request has {len(prompts)} prompts, expected one: an answer of several "
            "interleaved streams could not be told apart. Send a request for each."
        )
    if isinstance(prompts[0], TextPathError):
        raise prompts[0]
    length = np.array([[len(prompts[0])]], dtype=np.int32)
    return {**given, "input_ids": prompts[0][np.newaxis], "input_lengths": length}


def _guide(read: ReadTensor) -> Guide | None:
    kind = _text(read, "guided_decoding_guide_type")
    text = _text(read, "guided_decoding_guide")
    if not kind and not text:
        return None
    if kind not in GUIDE_TYPES:
        raise RequestError(
            f"guided_decoding_guide_type is '{kind}', expected one of {', '.join(GUIDE_TYPES)}."
        )
    if bool(text) == (kind == "json"):
        wanted = "none: `json` is any JSON" if text else f"the {kind} that the answer follows"
        raise RequestError(f"guided_decoding_guide has {len(text)} characters, expected {wanted}.")
    return Guide(kind, text)


def _text(read: ReadTensor, name: str) -> str:
    """A tensor of one text; empty if the request does not have it."""
    values = _row(read, name) or [b""]
    if len(values) != 1 or len(values[0]) > MAX_GUIDE_BYTES:
        size = f"{len(values)} values" if len(values) != 1 else f"{len(values[0])} bytes"
        raise RequestError(f"{name} has {size}, expected one text of at most {MAX_GUIDE_BYTES}.")
    try:
        return bytes(values[0]).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8: {error.reason} at byte {error.start}.") from None


def _row(read: ReadTensor, name: str) -> list[Any] | None:
    """A list tensor [1, n]; None if the request does not have it."""
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


def _prompt(read: ReadTensor, limits: SequenceLimits) -> NDArray[np.int32]:
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
            f"input_ids has ids from {ids.min()} to {ids.max()}, the model knows 0 to "
            f"{limits.vocab_size - 1}. Tokenizer and engine are probably of different models."
        )
    return ids


def check_prompt_length(length: int, max_input_len: int, tensor: str = "text_input") -> None:
    """Raises PromptTooLongError if `length` tokens are more than the model takes."""
    if length > max_input_len:
        raise PromptTooLongError(
            f"{tensor} has {length} tokens, the limit is {max_input_len} (max_input_len). "
            "Shorten the prompt."
        )


def _max_tokens(value: Number | None, prompt: int, limits: SequenceLimits) -> int:
    room = limits.longest - prompt
    if room <= 0:
        raise RequestError(
            f"the prompt has {prompt} tokens and {_limit_text(limits)}: nothing is left for "
            "the answer. Shorten the prompt."
        )
    if value is None:
        return room
    if value <= 0:
        raise RequestError(f"max_tokens is {value}, expected at least 1.")
    if value > room:
        raise RequestError(
            f"max_tokens is {value} and the prompt has {prompt} tokens, but "
            f"{_limit_text(limits)}. Ask for at most {room}."
        )
    return int(value)


def _with_resumed(
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


def _rest(
    sampling: SamplingParams, prompt: int, resumed: int, limits: SequenceLimits
) -> SamplingParams:
    """What the broken stream has left of its budget."""
    left = sampling.max_tokens - resumed
    if left < 0:
        raise RequestError(
            f"resume_ids has {resumed} ids, but max_tokens is {sampling.max_tokens}. Send the "
            "output_ids and the max_tokens of one and the same answer."
        )
    if left and prompt + resumed > limits.max_input_len:
        raise RequestError(
            f"the prompt and resume_ids have {prompt + resumed} tokens together, the limit is "
            f"{limits.max_input_len} (max_input_len). This answer cannot be continued."
        )
    return replace(sampling, max_tokens=left, min_tokens=max(0, sampling.min_tokens - resumed))


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
            f"end_id has {len(values)} ids, expected 1 to {MAX_END_IDS}; {NO_END_TOKEN} is none."
        )
    for value in values:
        if not 0 <= value < limits.vocab_size:
            raise RequestError(
                f"end_id is {value}, expected a token id from 0 to {limits.vocab_size - 1}, or "
                f"{NO_END_TOKEN} alone for none."
            )
    return tuple(values)
