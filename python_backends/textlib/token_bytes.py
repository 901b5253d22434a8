# SPDX-License-Identifier: Apache-2.0
"""What the ids of a tokenizer decode to: a table of bytes, or a chain where a table cannot say.

Both are exact. A table needs no memory of the stream, so a detokenizer of its own can use it; a
chain remembers, so the engine, which has the whole stream, makes the text. Formats:
https://huggingface.co/docs/tokenizers/api/decoders
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from textlib.decoder_chain import KINDS, Chain
from textlib.decoder_rules import Rule, decoder_steps, rule_of
from textlib.decoder_stages import Step, byte_level_bytes, fallback_byte
from textlib.errors import ConfigurationError
from textlib.tool_marks import TOOL_MARKS

__all__ = [
    "TokenBytes",
    "TokenChain",
    "TokenTable",
    "byte_level_bytes",
    "load_token_bytes",
    "lone_bytes",
]

# Steps that see one token and nothing else: applied once, when the tokenizer is loaded.
_ALONE = {"Replace", "Strip"}
# Steps of a chain that put together what each token gives, `<0xE3>` a byte.
_BYTES_JOINED = {"ByteFallback", "Fuse", "Strip"}


class TextReader(Protocol):
    """The text of one stream, as bytes that no later id can change."""

    def feed(self, token_id: int) -> bytes:
        """What this id makes certain."""

    def finish(self) -> bytes:
        """The rest, at the end of the stream."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What each id decodes to.

    data[id]: its bytes inside a stream; b"" for a skipped special token or an unused id.
    head[id]: its bytes as the first token that `opens` a stream (a leading space may go).
    opens[id]: the decoder sees the id: it can be the first one of its text.
    """

    data: Sequence[bytes]
    head: Sequence[bytes]
    opens: Sequence[bool]

    def __len__(self) -> int:
        return len(self.data)

    def has_text(self, token_id: int) -> bool:
        """Whether the id matters to the text; the window of a token_chunk holds only such ids."""
        return 0 <= token_id < len(self.opens) and self.opens[token_id]

    def reader(self) -> TextReader:
        """For a new stream."""
        return _TableReader(self)


@dataclass(slots=True)
class _TableReader:
    table: TokenBytes
    begun: bool = False

    def feed(self, token_id: int) -> bytes:
        if not self.table.has_text(token_id):
            return b""
        data = self.table.data if self.begun else self.table.head
        self.begun = True
        return data[token_id]

    def finish(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class TokenChain:
    """The tokens, None where skipped or unused, and the steps that make text of them."""

    tokens: Sequence[str | None]
    steps: Sequence[Step]

    def __len__(self) -> int:
        return len(self.tokens)

    def has_text(self, token_id: int) -> bool:
        """Whether the decoder sees the id."""
        return 0 <= token_id < len(self.tokens) and self.tokens[token_id] is not None

    def reader(self) -> TextReader:
        """For a new stream."""
        return _ChainReader(self.tokens, Chain(self.steps))


@dataclass(slots=True)
class _ChainReader:
    tokens: Sequence[str | None]
    chain: Chain

    def feed(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self.tokens):
            return b""
        token = self.tokens[token_id]
        return b"" if token is None else _encoded(self.chain.feed(token))

    def finish(self) -> bytes:
        return _encoded(self.chain.finish())


TokenTable = TokenBytes | TokenChain


def load_token_bytes(tokenizer_json: Path, *, skip_special_tokens: bool) -> TokenTable:
    """What the ids of a tokenizer.json decode to; raises ConfigurationError."""
    tokenizer = _read(tokenizer_json)
    steps = _known_steps(tokenizer, tokenizer_json)
    skipped = _special_ids(tokenizer) if skip_special_tokens else frozenset[int]()
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    tokens = [
        None if number in skipped else tokenizer.id_to_token(number) for number in range(size)
    ]
    rule = rule_of(steps)
    return _chain(tokens, steps) if rule is None else _table(tokens, rule)


def lone_bytes(table: TokenTable) -> Sequence[bytes] | None:
    """What each id adds to a text, half a character too; None where that depends on its neighbours.

    The first token of a text may lose a leading space.
    """
    if isinstance(table, TokenBytes):
        return table.data
    if not all(step["type"] in _BYTES_JOINED and not step.get("stop") for step in table.steps):
        return None
    return [
        b"" if token is None else fallback_byte(token) or _encoded(token) for token in table.tokens
    ]


def _table(tokens: Sequence[str | None], rule: Rule) -> TokenBytes:
    data = [b"" if token is None else rule.data(token) for token in tokens]
    head = data
    if rule.head is not rule.data:
        head = [b"" if token is None else rule.head(token) for token in tokens]
    opens = [
        token is not None and (rule.empty_counts or piece != b"")
        for token, piece in zip(tokens, data, strict=True)
    ]
    return TokenBytes(data, head, opens)


def _chain(tokens: Sequence[str | None], steps: Sequence[Step]) -> TokenChain:
    count = next((n for n, step in enumerate(steps) if step["type"] not in _ALONE), len(steps))
    if count == len(steps):
        count = 0  # an empty chain would be that of no decoder
    first = Chain(steps[:count]) if count else None
    applied = [first.feed(token) if first and token is not None else token for token in tokens]
    return TokenChain(applied, steps[count:])


def _read(tokenizer_json: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ConfigurationError(
            f"{tokenizer_json} cannot be read: {error}. It must be the tokenizer.json of a fast "
            "Hugging Face tokenizer; build the model again."
        ) from error


def _known_steps(tokenizer: Tokenizer, source: Path) -> list[Step]:
    steps = decoder_steps(tokenizer)
    if unknown := sorted({step["type"] for step in steps} - KINDS):
        raise ConfigurationError(
            f"{source}: unknown decoder {unknown[0]}, expected {', '.join(sorted(KINDS))} or a "
            "Sequence of them. Serve a model with such a tokenizer."
        )
    return steps


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(
        token_id
        for token_id, token in added.items()
        if token.special and token.content not in TOOL_MARKS
    )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
