# SPDX-License-Identifier: Apache-2.0
"""`logprobs`: the log probability of each token of an answer, by what the token adds to the text.

Engines tell that of the chosen token alone. Greedy decoding chooses the most probable one, so there
`top_logprobs: 1` is known, too.
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.vocabulary import Vocabulary
from tritonctl.protocol.generation import Chunk, SamplingParameters

_LOG = logging.getLogger("tritonctl.frontend")
_LEAST = -9999.0  # OpenAI's word for what cannot be; JSON has no infinity
_KEPT_VOCABULARIES = 16


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer. offset: of its text, characters from the answer's beginning."""

    data: bytes
    log_prob: float
    offset: int

    @property
    def text(self) -> str:
        """Half a character is U+FFFD; `bytes` has it whole."""
        return self.data.decode("utf-8", "replace")


def _utf_8() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class LogProbs:
    """The tokens of one answer, while they come.

    Tokens that add no text are left out: special ones, and those of a stop word that the answer
    does not contain.
    """

    vocabulary: Vocabulary
    _bytes: int = 0  # of the tokens so far
    _characters: int = 0  # that those make
    _text: int = 0  # bytes of the answer's text so far
    _begun: bool = False
    _decoder: codecs.IncrementalDecoder = field(default_factory=_utf_8)

    def read(self, chunk: Chunk) -> list[Token]:
        """The tokens of a chunk."""
        self._text += len(chunk.text.encode("utf-8", "replace"))
        tokens = []
        for token_id, log_prob in zip(chunk.token_ids, chunk.log_probs, strict=False):
            data = self.vocabulary.data(token_id, first=not self._begun)
            self._begun = self._begun or bool(self.vocabulary.data(token_id))
            if not data or (chunk.finish_reason and self._bytes >= self._text):
                continue
            tokens.append(Token(data, max(log_prob, _LEAST), self._characters))
            self._bytes += len(data)
            self._characters += len(self._decoder.decode(data))
        return tokens


def vocabulary_of(tokenizer: str | None) -> Vocabulary:
    """Of a model's tokenizer.json. Raises ApiError that names `logprobs`."""
    vocabulary = None if tokenizer is None else _read(tokenizer)
    if vocabulary is not None:
        return vocabulary
    raise ApiError(
        400,
        "`logprobs` is not supported by this model: its tokens have no text of their own",
        code="unsupported_parameter",
        param="logprobs",
    )


@lru_cache(_KEPT_VOCABULARIES)
def _read(tokenizer: str) -> Vocabulary | None:
    try:
        return Vocabulary(Path(tokenizer))
    except ConfigurationError as error:  # a client learns that this model has none, no more
        _LOG.warning("no log probabilities: %s", error.problem)
        return None


def check_top(count: int, sampling: SamplingParameters, param: str) -> None:
    """Raises ApiError where the `count` most probable tokens are not known."""
    changed = any(
        getattr(sampling, name) not in (None, neutral)
        for name, neutral in (
            ("repetition_penalty", 1.0),
            ("presence_penalty", 0.0),
            ("frequency_penalty", 0.0),
            ("min_tokens", 0),
            ("guided_decoding_guide_type", None),
        )
    )
    greedy = sampling.temperature == 0 or sampling.top_k == 1
    if count > 1 or (count == 1 and (changed or not greedy)):
        raise ApiError(
            400,
            f"`{param}`: the engine tells the log probability of the chosen token alone. Leave it "
            "out, or send 0; 1 is possible with `temperature: 0` and no penalties",
            code="unsupported_parameter",
            param=param,
        )


def chat_record(tokens: Sequence[Token], top: int) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/chat/completions."""
    return {"content": [_entry(token, top) for token in tokens], "refusal": None}


def _entry(token: Token, top: int) -> dict[str, Any]:
    entry = {"token": token.text, "logprob": token.log_prob, "bytes": list(token.data)}
    return {**entry, "top_logprobs": [entry] if top else []}


def completion_record(tokens: Sequence[Token], top: int, *, start: int = 0) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/completions. start: characters of an echoed prompt."""
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.log_prob for token in tokens],
        "top_logprobs": [{token.text: token.log_prob} for token in tokens] if top else None,
        "text_offset": [start + token.offset for token in tokens],
    }
