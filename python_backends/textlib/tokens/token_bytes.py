# SPDX-License-Identifier: Apache-2.0
"""The bytes of a tokenizer's ids: a table, or a chain of steps where a table is not enough.

Both are exact. A table needs no state, so a separate detokenizer can use it. A chain has state, so
the engine, which has the whole stream, decodes with it. Formats:
https://huggingface.co/docs/tokenizers/api/decoders
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from textlib.errors import ModelConfigurationError
from textlib.panics import panics_as_errors
from textlib.tokens.decoder_chain import SUPPORTED_STEPS, DecoderChain
from textlib.tokens.decoder_rules import TokenRule, decoder_steps, token_rule
from textlib.tokens.decoder_stages import DecoderStep, byte_level_bytes, fallback_byte
from textlib.tokens.tool_call_tokens import TOOL_MARKS

__all__ = [
    "TokenBytes",
    "TokenChain",
    "TokenTable",
    "byte_level_bytes",
    "bytes_per_id",
    "load_token_bytes",
]

# Steps that see a single token: applied once, when the tokenizer is loaded.
_PER_TOKEN_STEPS = {"Replace", "Strip"}
# Steps of a chain that concatenate the bytes of each token (`<0xE3>` is one byte).
_CONCATENATING_STEPS = {"ByteFallback", "Fuse", "Strip"}


class TextReader(Protocol):
    """Decodes one stream to bytes that no later id can change."""

    def feed(self, token_id: int) -> bytes:
        """Return the bytes that become final with this id."""

    def finish(self) -> bytes:
        """Return the remaining bytes at the end of the stream."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The bytes of each id; all three sequences are indexed by id."""

    data: Sequence[bytes]  # inside a stream; b"" for a skipped special token or an unused id
    first_data: Sequence[bytes]  # as the first visible token of a stream (without leading space)
    is_visible: Sequence[bool]  # the decoder sees the id, so it can be the first one of a text

    def __len__(self) -> int:
        return len(self.data)

    def has_text(self, token_id: int) -> bool:
        """Whether the decoder sees the id; the window of a token_chunk holds only such ids."""
        return 0 <= token_id < len(self.is_visible) and self.is_visible[token_id]

    def reader(self) -> TextReader:
        """Return a reader for a new stream."""
        return _TableReader(self)


@dataclass(slots=True)
class _TableReader:
    table: TokenBytes
    has_started: bool = False

    def feed(self, token_id: int) -> bytes:
        if not self.table.has_text(token_id):
            return b""
        data = self.table.data if self.has_started else self.table.first_data
        self.has_started = True
        return data[token_id]

    def finish(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class TokenChain:
    """The tokens of all ids and the steps that decode them."""

    tokens: Sequence[str | None]  # None for skipped and unused ids
    steps: Sequence[DecoderStep]

    def __len__(self) -> int:
        return len(self.tokens)

    def has_text(self, token_id: int) -> bool:
        """Whether the decoder sees the id."""
        return 0 <= token_id < len(self.tokens) and self.tokens[token_id] is not None

    def reader(self) -> TextReader:
        """Return a reader for a new stream."""
        return _ChainReader(self.tokens, DecoderChain(self.steps))


@dataclass(slots=True)
class _ChainReader:
    tokens: Sequence[str | None]
    chain: DecoderChain

    def feed(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self.tokens):
            return b""
        token = self.tokens[token_id]
        return b"" if token is None else _utf8(self.chain.feed(token))

    def finish(self) -> bytes:
        return _utf8(self.chain.finish())


TokenTable = TokenBytes | TokenChain


def load_token_bytes(tokenizer_json: Path, *, skip_special_tokens: bool) -> TokenTable:
    """Load the decoding table or chain of a tokenizer.json; raises ModelConfigurationError."""
    tokenizer = _read_tokenizer(tokenizer_json)
    steps = _supported_steps(tokenizer, tokenizer_json)
    skipped = _special_ids(tokenizer) if skip_special_tokens else frozenset[int]()
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    tokens = [
        None if number in skipped else tokenizer.id_to_token(number) for number in range(size)
    ]
    rule = token_rule(steps)
    return _token_chain(tokens, steps) if rule is None else _byte_table(tokens, rule)


def bytes_per_id(table: TokenTable) -> Sequence[bytes] | None:
    """Return the bytes that each id adds to a text, possibly part of a character.

    None if they depend on the neighbours. The first token of a text may lose a leading space.
    """
    if isinstance(table, TokenBytes):
        return table.data
    if not all(
        step["type"] in _CONCATENATING_STEPS and not step.get("stop") for step in table.steps
    ):
        return None
    return [
        b"" if token is None else fallback_byte(token) or _utf8(token) for token in table.tokens
    ]


def _byte_table(tokens: Sequence[str | None], rule: TokenRule) -> TokenBytes:
    data = [b"" if token is None else rule.data(token) for token in tokens]
    first_data = data
    if rule.first_data is not rule.data:
        first_data = [b"" if token is None else rule.first_data(token) for token in tokens]
    is_visible = [
        token is not None and (rule.empty_counts or piece != b"")
        for token, piece in zip(tokens, data, strict=True)
    ]
    return TokenBytes(data, first_data, is_visible)


def _token_chain(tokens: Sequence[str | None], steps: Sequence[DecoderStep]) -> TokenChain:
    count = next(
        (n for n, step in enumerate(steps) if step["type"] not in _PER_TOKEN_STEPS), len(steps)
    )
    if count == len(steps):
        count = 0  # an empty chain would mean that the tokenizer has no decoder
    first = DecoderChain(steps[:count]) if count else None
    decoded = [first.feed(token) if first and token is not None else token for token in tokens]
    return TokenChain(decoded, steps[count:])


def _read_tokenizer(tokenizer_json: Path) -> Tokenizer:
    try:
        with panics_as_errors():
            return Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ModelConfigurationError(
            f"{tokenizer_json} cannot be read: {error}. It must be the tokenizer.json of a fast "
            "Hugging Face tokenizer; build the model again."
        ) from error


def _supported_steps(tokenizer: Tokenizer, source: Path) -> list[DecoderStep]:
    steps = decoder_steps(tokenizer)
    if unsupported := sorted({step["type"] for step in steps} - SUPPORTED_STEPS):
        raise ModelConfigurationError(
            f"{source}: unknown decoder {unsupported[0]}, expected "
            f"{', '.join(sorted(SUPPORTED_STEPS))} or a Sequence of them. Serve a model with such "
            "a tokenizer."
        )
    return steps


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(
        token_id
        for token_id, token in added.items()
        if token.special and token.content not in TOOL_MARKS
    )


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
