# SPDX-License-Identifier: Apache-2.0
"""Turn single tokens into bytes, for decoders in which the neighbours do not matter.

A token's text depends on one of two things:

* *itself*: ByteLevel, Replace, Strip of leading characters, Fuse;
* *itself and whether it is the first*: Metaspace (drops the leading space), WordPiece (the first
  token gets no space and keeps its `##`), Strip of one character after Fuse.

WordPiece's clean-up of punctuation and contractions belongs to the second group: the library
applies it to each token with the space in front of it, never across tokens. This module contains no
rule of a decoder: the library itself decodes each token once per position, so the table cannot
disagree with it. Every other decoder is a chain (decoder_chain).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models

from textlib.tokens.decoder_stages import DecoderStep, byte_level_bytes

TokenToBytes = Callable[[str], bytes]

_WHOLE_TOKENS = {"Replace", "Strip"}
_ANCHORED = {"Metaspace", "WordPiece"}


@dataclass(frozen=True, slots=True)
class TokenRule:
    """How a decoder turns a token into bytes."""

    data: TokenToBytes  # inside a stream
    first_data: TokenToBytes  # as the first token of a stream
    empty_counts: bool = False  # a token without text counts as the first one of its stream


def decoder_steps(tokenizer: Tokenizer) -> list[DecoderStep]:
    """Return the decoder's steps with the library's defaults filled in; [] without a decoder."""
    decoder = tokenizer.decoder
    return [] if decoder is None else _flatten_steps(json.loads(decoder.__getstate__()))


def _flatten_steps(step: DecoderStep) -> list[DecoderStep]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flatten_steps(part)]


def token_rule(steps: list[DecoderStep]) -> TokenRule | None:
    """Return the rule of a decoder; None if a token's text depends on more than its position."""
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return TokenRule(byte_level_bytes, byte_level_bytes)
    per_token, joining_steps = _split_steps(steps)
    anchors = [step for step in per_token if step["type"] in _ANCHORED]
    if not steps or len(anchors) > 1:
        return None
    if joining_steps and not _is_supported_fuse(joining_steps, may_strip=not anchors):
        return None
    rule = _rule_from_library(per_token, anchored=bool(anchors))
    return rule and (_with_strip(rule, joining_steps[1]) if len(joining_steps) > 1 else rule)


def _split_steps(steps: list[DecoderStep]) -> tuple[list[DecoderStep], list[DecoderStep]]:
    """Split into the steps that see one token at a time and the steps from Fuse on."""
    per_token_kinds = _WHOLE_TOKENS | _ANCHORED
    count = next(
        (n for n, step in enumerate(steps) if step["type"] not in per_token_kinds), len(steps)
    )
    return steps[:count], steps[count:]


def _is_supported_fuse(joining_steps: list[DecoderStep], *, may_strip: bool) -> bool:
    """Whether the steps are Fuse, optionally followed by a Strip of one leading character."""
    if joining_steps[0]["type"] != "Fuse":
        return False
    if len(joining_steps) == 1:
        return True
    strip = joining_steps[1]
    is_strip = may_strip and len(joining_steps) == 2 and strip["type"] == "Strip"  # noqa: PLR2004
    return is_strip and strip["start"] in (0, 1) and strip["stop"] == 0


def _rule_from_library(steps: list[DecoderStep], *, anchored: bool) -> TokenRule | None:
    """Let the library decode each token; an empty token stands for the previous one."""
    if any(step["type"] == "Strip" and step["stop"] for step in steps):
        return None  # tokenizers 0.23 panics on a token that such a Strip empties
    if not steps:
        return TokenRule(_utf8, _utf8)
    decode = _decoder(steps).decode
    if decode([""]) != "" or (decode(["", ""]) and not anchored):
        return None  # a regular expression that matches nothing and replaces it

    if not anchored:
        return TokenRule(lambda token: _utf8(decode([token])), lambda token: _utf8(decode([token])))
    return TokenRule(
        lambda token: _utf8(decode(["", token])),
        lambda token: _utf8(decode([token])),
        empty_counts=True,
    )


def _decoder(steps: list[DecoderStep]) -> Any:
    content = json.loads(Tokenizer(models.BPE()).to_str())
    content["decoder"] = {"type": "Sequence", "decoders": steps}
    return Tokenizer.from_str(json.dumps(content)).decoder


def _with_strip(rule: TokenRule, strip: DecoderStep) -> TokenRule:
    if strip["start"] == 0:
        return rule
    prefix = _utf8(strip["content"])
    return TokenRule(rule.data, lambda token: rule.data(token).removeprefix(prefix))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
