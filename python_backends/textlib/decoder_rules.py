# SPDX-License-Identifier: Apache-2.0
"""How a tokenizer's decoder turns one token into bytes, and which decoders cannot be streamed.

Three families, by what a token's text depends on:

* *itself*: ByteLevel, Replace, Strip (as many characters as it likes), ByteFallback, Fuse;
* *itself and whether it is the first*: Metaspace (drops the leading space), WordPiece (the first
  token gets no space and keeps its `##`), Strip of one character after Fuse;
* *itself and whether it is the last*: BPEDecoder (the last token's `</w>` is no space).

WordPiece's clean-up of punctuation and contractions is in the second family too: the library
applies it to each token with the space before it, never across tokens (`" n't"` is only found
inside one). So no rule is written down here: the library itself decodes each token once per
position, and the table cannot disagree with it. What depends on neighbours (CTC drops repetitions)
or rewrites the fused text (Replace after Fuse) is refused.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models

TokenToBytes = Callable[[str], bytes]
Step = dict[str, Any]

SUPPORTED = (
    "ByteLevel; any Replace and Strip with one of Metaspace, WordPiece and BPEDecoder (+ Fuse); "
    "and any Replace and Strip (+ ByteFallback) (+ Fuse) (+ Strip of one leading character)"
)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_WHOLE_TOKENS = {"Replace", "Strip"}
_ANCHORED = {"Metaspace", "WordPiece", "BPEDecoder"}


@dataclass(frozen=True, slots=True)
class Rule:
    """A token's bytes inside a stream, as its first and as its last token.

    tail: None where the last token is like any other. empty_counts: a token without text is still
    the first or the last one of its stream.
    """

    data: TokenToBytes
    head: TokenToBytes
    tail: TokenToBytes | None = None
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
    """The rule of a decoder; None if it cannot be streamed exactly, or only with luck."""
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Rule(byte_level_bytes, byte_level_bytes)
    per_token, rest = _split(steps)
    rest_kinds = [step["type"] for step in rest]
    bytes_follow = rest_kinds[:1] == ["ByteFallback"]
    ending = rest[1:] if bytes_follow else rest
    anchors = [step for step in per_token if step["type"] in _ANCHORED]
    if not steps or len(anchors) > 1 or (anchors and bytes_follow):
        return None
    if ending and not _fuses(ending, may_strip=not anchors):
        return None
    rule = _library_rule(per_token, anchored=bool(anchors))
    if rule is not None and bytes_follow:
        rule = _with_bytes(rule)
    return rule and (_stripped(rule, ending[1]) if len(ending) > 1 else rule)


def _split(steps: list[Step]) -> tuple[list[Step], list[Step]]:
    """The steps that see one token at a time, and those from ByteFallback or Fuse on."""
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
    """Ask the library for each token; empty tokens stand for its neighbours."""
    if any(step["type"] == "Strip" and step["stop"] for step in steps):
        return None  # tokenizers 0.23 panics on a token that such a Strip empties
    if not steps:
        return Rule(_encoded, _encoded)
    decode = _decoder(steps).decode
    # What an empty neighbour adds: nothing before, perhaps WordPiece's space after.
    after = decode(["", ""])
    if decode([""]) != "" or (after and not anchored):
        return None  # a regular expression that matches nothing and replaces it

    def inside(token: str) -> bytes:
        return _encoded(decode(["", token, ""]).removesuffix(after))

    if not anchored:
        return Rule(
            lambda token: _encoded(decode([token])), lambda token: _encoded(decode([token]))
        )
    if any(step["type"] == "BPEDecoder" for step in steps):
        tail: TokenToBytes = lambda token: _encoded(decode(["", token]))  # noqa: E731
        return Rule(inside, inside, tail, empty_counts=True)
    return Rule(
        lambda token: _encoded(decode(["", token])),
        lambda token: _encoded(decode([token])),
        empty_counts=True,
    )


def _decoder(steps: list[Step]) -> Any:
    content = json.loads(Tokenizer(models.BPE()).to_str())
    content["decoder"] = {"type": "Sequence", "decoders": steps}
    return Tokenizer.from_str(json.dumps(content)).decoder


def _with_bytes(rule: Rule) -> Rule:
    def inside(token: str) -> bytes:
        text = rule.data(token)
        return _fallback_byte(text.decode()) or text

    return Rule(inside, inside)


def _stripped(rule: Rule, strip: Step) -> Rule:
    if strip["start"] == 0:
        return rule
    unwanted = _encoded(strip["content"])
    return Rule(rule.data, lambda token: rule.data(token).removeprefix(unwanted))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _fallback_byte(token: str) -> bytes | None:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of GPT-2's byte-level BPE (openai/gpt-2, `bytes_to_unicode`)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + offset): byte for offset, byte in enumerate(moved)
    }


_ALPHABET = _byte_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level BPE token; a token with a foreign character stands for itself."""
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return _encoded(token)
