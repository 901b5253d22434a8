# SPDX-License-Identifier: Apache-2.0
"""The table from token id to the bytes that the id contributes to the decoded text.

It is exact where the decoder of tokenizer.json works token by token, and refused where it does
not: a tokenizer that is decoded almost right would be noticed by users, not by us. Formats:
https://huggingface.co/docs/tokenizers/api/decoders
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from textlib.decoder_rules import SUPPORTED, Rule, byte_level_bytes, decoder_steps, rule_of
from textlib.errors import ConfigurationError

__all__ = ["TokenBytes", "byte_level_bytes", "load_token_bytes"]


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What each id decodes to.

    data[id]: its bytes inside a stream; b"" for a skipped special token or an unused id.
    head[id]: its bytes as the first token that `opens` a stream (a leading space may go).
    opens[id]: the decoder sees the id: it can be the first or the last one of its text.
    tail[id]: its bytes as the last such token; None if no token differs there.
    """

    data: Sequence[bytes]
    head: Sequence[bytes]
    opens: Sequence[bool]
    tail: Sequence[bytes] | None = None

    def __len__(self) -> int:
        return len(self.data)

    def has_text(self, token_id: int) -> bool:
        """Whether the id matters to the text; the window of a token_chunk holds only such ids."""
        return 0 <= token_id < len(self.opens) and self.opens[token_id]


def load_token_bytes(tokenizer_json: Path, *, skip_special_tokens: bool) -> TokenBytes:
    """Build the table of a tokenizer.json; raises ConfigurationError for an unsupported decoder."""
    tokenizer = _read(tokenizer_json)
    rule = _rule(tokenizer, tokenizer_json)
    skipped = _special_ids(tokenizer) if skip_special_tokens else frozenset[int]()
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    tokens = [
        None if number in skipped else tokenizer.id_to_token(number) for number in range(size)
    ]
    data = [b"" if token is None else rule.data(token) for token in tokens]
    head = data
    if rule.head is not rule.data:
        head = [b"" if token is None else rule.head(token) for token in tokens]
    tail = None
    if rule.tail is not None:
        tail = [b"" if token is None else rule.tail(token) for token in tokens]
    opens = [
        token is not None and (rule.empty_counts or piece != b"")
        for token, piece in zip(tokens, data, strict=True)
    ]
    return TokenBytes(data, head, opens, tail)


def _read(tokenizer_json: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ConfigurationError(
            f"{tokenizer_json} cannot be read: {error}. It must be the tokenizer.json of a fast "
            "Hugging Face tokenizer; build the model again."
        ) from error


def _rule(tokenizer: Tokenizer, source: Path) -> Rule:
    steps = decoder_steps(tokenizer)
    rule = rule_of(steps)
    if rule is None:
        raise ConfigurationError(
            f"{source}: the decoder {' + '.join(step['type'] for step in steps) or 'null'} is not "
            f"supported, or not with its settings. Streamed text is only exact for {SUPPORTED}. "
            "Serve a model with such a tokenizer."
        )
    return rule


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)
