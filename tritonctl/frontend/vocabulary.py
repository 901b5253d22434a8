# SPDX-License-Identifier: Apache-2.0
"""Map the token ids of a tokenizer.json to the bytes that each adds to a text.

It needs no library. Tokenizers whose tokens do not map to bytes have no vocabulary.
https://huggingface.co/docs/tokenizers/api/decoders
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from tritonctl.errors import ConfigurationError

# Special tokens that the text path keeps (python_backends/textlib/tokens/tool_call_tokens.py).
TOOL_MARKS = frozenset(
    {
        # Hermes, Qwen, GLM, Granite 4; Jamba
        *("<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        # Mistral
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        # Llama 3
        "<|python_tag|>",
        # DeepSeek
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        # Kimi K2
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        # Granite 3, Phi 4 mini; Command R7B; InternLM 2
        *("<|tool_call|>", "<|/tool_call|>", "<|START_ACTION|>", "<|END_ACTION|>"),
        *("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    }
)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_PIECEWISE = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class Vocabulary:
    """Bytes by token id; b"" for special tokens, which add no text, and for unknown ids."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigurationError for an invalid file or an unsupported decoder."""
        try:
            content = orjson.loads(file.read_bytes())
            steps = list(_steps(content.get("decoder")))
            added = content.get("added_tokens") or []
            tokens = dict(_tokens(content["model"]["vocab"]))
            names = {token["id"]: token["content"] for token in added}
            special = {token["id"] for token in added if token.get("special")}
            special -= {number for number, text in names.items() if text in TOOL_MARKS}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{file} is not a valid tokenizer.json: {error}",
                remedy="check the model's checkpoint",
            ) from error
        decode = _decoder(steps)
        if decode is None:
            raise ConfigurationError(
                f"{file}: the decoder {', '.join(steps) or 'none'} does not map tokens to bytes",
                remedy="leave `logprobs` out for this model",
            )
        self._data: dict[int, bytes] = {number: decode(token) for number, token in tokens.items()}
        self._data |= {number: text.encode() for number, text in names.items()}
        self._data |= dict.fromkeys(special, b"")
        self._strips = "Strip" in steps or "Metaspace" in steps

    def data(self, token_id: int, *, first: bool = False) -> bytes:
        """Return an id's bytes. first: at the text's start, where some decoders drop a space."""
        data = self._data.get(token_id, b"")
        return data.removeprefix(b" ") if first and self._strips else data


def _steps(decoder: Any) -> Iterator[str]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder["type"]


def _tokens(vocab: Any) -> Iterator[tuple[int, str]]:
    if isinstance(vocab, Mapping):
        for token, number in vocab.items():
            yield number, token
    else:  # Unigram: [token, score] in the order of ids
        for number, (token, _score) in enumerate(vocab):
            yield number, token


def _decoder(steps: list[str]) -> Callable[[str], bytes] | None:
    if steps == ["ByteLevel"]:
        table = byte_level()
        return lambda token: _bytes_of(token, table)
    if steps and set(steps) <= _PIECEWISE:
        return _piece
    return None


def _bytes_of(token: str, table: Mapping[str, int]) -> bytes:
    try:
        return bytes(table[character] for character in token)
    except KeyError:
        return token.encode("utf-8", "replace")


def _piece(token: str) -> bytes:
    match = _BYTE.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode()


def byte_level() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {
        chr(256 + place): value for place, value in enumerate(hidden)
    }
