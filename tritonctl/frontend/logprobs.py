# SPDX-License-Identifier: Apache-2.0
"""`logprobs`: the log probability and the text of each token of an answer.

Engines report only the chosen token's log probability. Greedy decoding chooses the most probable
token, so `top_logprobs: 1` works there as well.
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.text_request import TextGenerationRequest
from tritonctl.frontend.vocabulary import Vocabulary
from tritonctl.protocol.generation import Chunk, SamplingParameters
from tritonctl.protocol.sampling_table import sampling_parameters

_LOG = logging.getLogger("tritonctl.frontend")
_MIN_LOG_PROB = -9999.0  # OpenAI's value for impossible tokens; JSON has no infinity
_CACHED_VOCABULARIES = 16


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """One token of an answer."""

    data: bytes
    log_prob: float
    offset: int  # of its text in the answer, characters

    @property
    def text(self) -> str:
        """The token's text; U+FFFD stands for an incomplete character."""
        return self.data.decode("utf-8", "replace")


def _utf_8() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class LogProbs:
    """Reads the tokens of one streamed answer.

    It skips tokens that add no text: special tokens, and those of a stop word that the answer does
    not contain.
    """

    vocabulary: Vocabulary
    _bytes: int = 0  # of the tokens so far
    _characters: int = 0  # of their text
    _text: int = 0  # bytes of the answer's text so far
    _has_text: bool = False
    _decoder: codecs.IncrementalDecoder = field(default_factory=_utf_8)

    def read(self, chunk: Chunk) -> list[AnswerToken]:
        """Return the tokens of a chunk."""
        self._text += len(chunk.text.encode("utf-8", "replace"))
        tokens = []
        for token_id, log_prob in zip(chunk.token_ids, chunk.log_probs, strict=False):
            data = self.vocabulary.data(token_id, first=not self._has_text)
            self._has_text = self._has_text or bool(self.vocabulary.data(token_id))
            if not data or (chunk.finish_reason and self._bytes >= self._text):
                continue
            tokens.append(AnswerToken(data, max(log_prob, _MIN_LOG_PROB), self._characters))
            self._bytes += len(data)
            self._characters += len(self._decoder.decode(data))
        return tokens


def vocabulary_of(tokenizer: str | None, param: str) -> Vocabulary:
    """Read a model's tokenizer.json. Raises ApiError that names `param`."""
    vocabulary = None if tokenizer is None else _read(tokenizer)
    if vocabulary is not None:
        return vocabulary
    raise ApiError(
        400,
        f"`{param}` is not supported by this model: its tokens do not map to text",
        code="unsupported_parameter",
        param=param,
    )


@lru_cache(_CACHED_VOCABULARIES)
def _read(tokenizer: str) -> Vocabulary | None:
    try:
        return Vocabulary(Path(tokenizer))
    except ConfigurationError as error:  # the client learns only that the model does not support it
        _LOG.warning("no log probabilities: %s", error.problem)
        return None


def with_log_probs(
    generation: TextGenerationRequest, count: int, param: str
) -> TextGenerationRequest:
    """Request log probabilities, also of the `count` most probable tokens. Raises ApiError."""
    _check_top_logprobs(count, generation.sampling, param)
    return replace(generation, sampling=replace(generation.sampling, return_log_probs=True))


def _check_top_logprobs(count: int, sampling: SamplingParameters, param: str) -> None:
    """Raise ApiError if the `count` most probable tokens are unknown."""
    changed = any(
        getattr(sampling, parameter.request_field) not in (None, parameter.neutral)
        for parameter in sampling_parameters().values()
        if parameter.changes_greedy
    )
    changed = changed or sampling.guided_decoding_guide_type is not None
    greedy = sampling.temperature == 0 or sampling.top_k == 1
    if count > 1 or (count == 1 and (changed or not greedy)):
        raise ApiError(
            400,
            f"`{param}`: the engine reports only the chosen token's log probability. Leave it "
            "out, or send 0; 1 is possible with `temperature: 0` and no penalties",
            code="unsupported_parameter",
            param=param,
        )


def chat_record(tokens: Sequence[AnswerToken], top: int) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/chat/completions."""
    return {"content": [token_record(token, top) for token in tokens], "refusal": None}


def token_record(token: AnswerToken, top: int) -> dict[str, Any]:
    """A token with its log probability, as in messages of an assistant."""
    entry = {"token": token.text, "logprob": token.log_prob, "bytes": list(token.data)}
    return {**entry, "top_logprobs": [entry] if top else []}


def completion_record(tokens: Sequence[AnswerToken], top: int) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/completions."""
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.log_prob for token in tokens],
        "top_logprobs": [{token.text: token.log_prob} for token in tokens] if top else None,
        "text_offset": [token.offset for token in tokens],
    }
