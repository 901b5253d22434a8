# SPDX-License-Identifier: Apache-2.0
"""How a tokenizer's decoder turns one token into bytes, where its neighbours do not matter.

Two families, by what a token's text depends on:

* *itself*: ByteLevel, Replace, Strip of leading characters, Fuse;
* *itself and whether it is the first*: Metaspace (drops the leading space), WordPiece (the first
  token gets no space and keeps its `##`), Strip of one character after Fuse.

WordPiece's clean-up of punctuation and contractions is in the second family too: the library
applies it to each token with the space before it, never across tokens (`" n't"` is only found
inside one). So no rule is written down here: the library itself decodes each token once per
position, and the table cannot disagree with it. Every other decoder is a chain (decoder_chain).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models

from textlib.decoder_stages import Step, byte_level_bytes

TokenToBytes = Callable[[str], bytes]

_WHOLE_TOKENS = {"Replace", "Strip"}
_ANCHORED = {"Metaspace", "WordPiece"}


@dataclass(frozen=True, slots=True)
class Rule:
    """A token's bytes inside a stream, and as its first token.

    empty_counts: a token without text is still the first one of its stream.
    """

    data: TokenToBytes
    head: TokenToBytes
    empty_counts: bool = False


def decoder_steps(tokenizer: Tokenizer) -> list[Step]:
    """The decoder as a flat list, with every default filled in by the library; [] for none."""
    decoder = tokenizer.decoder
    return [] if decoder is None else _flat(json.loads(decoder.__getstate__()))


def _flat(step: Step) -> list[Step]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flat(part)]


def rule_of(steps: list[Step]) -> Rule | None:
    """The rule of a decoder; None if a token's text depends on more than its place."""
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return Rule(byte_level_bytes, byte_level_bytes)
    per_token, ending = _split(steps)
    anchors = [step for step in per_token if step["type"] in _ANCHORED]
    if not steps or len(anchors) > 1:
        return None
    if ending and not _fuses(ending, may_strip=not anchors):
        return None
    rule = _library_rule(per_token, anchored=bool(anchors))
    return rule and (_stripped(rule, ending[1]) if len(ending) > 1 else rule)


def _split(steps: list[Step]) -> tuple[list[Step], list[Step]]:
    """The steps that see one token at a time, and those from Fuse on."""
    known = _WHOLE_TOKENS | _ANCHORED
    count = next((n for n, step in enumerate(steps) if step["type"] not in known), len(steps))
    return steps[:count], steps[count:]


def _fuses(ending: list[Step], *, may_strip: bool) -> bool:
    """Fuse, perhaps with a Strip of at most one leading character."""
    if ending[0]["type"] != "Fuse":
        return False
    if len(ending) == 1:
        return True
    strip = ending[1]
    is_strip = may_strip and len(ending) == 2 and strip["type"] == "Strip"  # noqa: PLR2004
    return is_strip and strip["start"] in (0, 1) and strip["stop"] == 0


def _library_rule(steps: list[Step], *, anchored: bool) -> Rule | None:
    """Ask the library for each token; an empty token stands for the one before."""
    if any(step["type"] == "Strip" and step["stop"] for step in steps):
        return None  # tokenizers 0.23 panics on a token that such a Strip empties
    if not steps:
        return Rule(_encoded, _encoded)
    decode = _decoder(steps).decode
    if decode([""]) != "" or (decode(["", ""]) and not anchored):
        return None  # a regular expression that matches nothing and replaces it

    if not anchored:
        return Rule(
            lambda token: _encoded(decode([token])), lambda token: _encoded(decode([token]))
        )
    return Rule(
        lambda token: _encoded(decode(["", token])),
        lambda token: _encoded(decode([token])),
        empty_counts=True,
    )


def _decoder(steps: list[Step]) -> Any:
    content = json.loads(Tokenizer(models.BPE()).to_str())
    content["decoder"] = {"type": "Sequence", "decoders": steps}
    return Tokenizer.from_str(json.dumps(content)).decoder


def _stripped(rule: Rule, strip: Step) -> Rule:
    if strip["start"] == 0:
        return rule
    unwanted = _encoded(strip["content"])
    return Rule(rule.data, lambda token: rule.data(token).removeprefix(unwanted))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
