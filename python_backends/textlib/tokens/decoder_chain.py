# SPDX-License-Identifier: Apache-2.0
"""Run any decoder of `tokenizers` over a stream; each step passes on text that is final.

The library decodes all tokens at once, step by step: each step turns a list of tokens into another
list, and the text is their concatenation. Here the same steps run over a stream. A *piece* goes
from step to step: some text, and whether it ends its token. A step holds back only text that a
later piece can change, and never revises its output:

| step | holds back |
|---|---|
| ByteFallback, ByteLevel | the bytes of an unfinished character |
| Replace of a string, the clean-up of WordPiece and CTC | a suffix that may start a match |
| Strip | as many trailing characters as it may cut |
| BPEDecoder | a token from its first suffix on, until the next token starts |
| CTC | the prefix that a token shares with the previous token, until they differ |
| Replace of a regular expression | its token, so after Fuse or ByteLevel all text |

ByteFallback differs from the library in one case. The library turns every byte of a run with a
malformed byte into U+FFFD, so an exact stream would have to hold back every run until it ends:
whole sentences in a language with few tokens in the vocabulary. Here the complete characters in
front of the malformed byte stay; from there on each byte of the run becomes one U+FFFD.
"""

from collections.abc import Callable, Sequence

from textlib.tokens.decoder_stages import (
    CLEANUP_REPLACEMENTS,
    BpeDecoder,
    ByteFallback,
    ByteLevel,
    DecoderStage,
    DecoderStep,
    DropEmpty,
    DropRepeats,
    Fuse,
    JoinWithSpaces,
    Metaspace,
    Piece,
    Replace,
    ReplaceRegex,
    Strip,
    WordPiece,
    feed_stages,
)


class DecoderChain:
    """A decoder over one stream of tokens."""

    def __init__(self, steps: Sequence[DecoderStep]) -> None:
        self._stages = build_stages(steps)

    def feed(self, token: str) -> str:
        """Return the text that becomes final with this token."""
        return _join_text(feed_stages(self._stages, [(token, True)]))

    def finish(self) -> str:
        """Return the remaining text; do not call `feed` afterwards."""
        pieces: list[Piece] = []
        for stage in self._stages:
            pieces = [*feed_stages([stage], pieces), *stage.finish()]
        return _join_text(pieces)


def build_stages(steps: Sequence[DecoderStep]) -> list[DecoderStage]:
    """Build the stages of a new stream; raises KeyError for an unknown step."""
    stages: list[DecoderStage] = []
    is_joined = False
    for step in steps or [{"type": None}]:
        stages += _STAGES[step["type"]](step, is_joined)
        is_joined = is_joined or step["type"] in _JOINING_STEPS
    return stages


def _join_text(pieces: Sequence[Piece]) -> str:
    return "".join([text for text, _ in pieces])


def _replace(step: DecoderStep, _: bool) -> list[DecoderStage]:
    literal = step["pattern"].get("String")
    return [Replace(literal, step["content"]) if literal else ReplaceRegex(step)]


def _word_piece(step: DecoderStep, _: bool) -> list[DecoderStage]:
    return [WordPiece(step["prefix"]), *(_cleanup() if step["cleanup"] else [])]


def _ctc(step: DecoderStep, _: bool) -> list[DecoderStage]:
    stages: list[DecoderStage] = [DropRepeats(), Replace(step["pad_token"], "")]
    if step["cleanup"]:
        stages += [*_cleanup(), Replace(step["word_delimiter_token"], " ")]
    return [*stages, DropEmpty()]


def _cleanup() -> list[DecoderStage]:
    return [Replace(*pair) for pair in CLEANUP_REPLACEMENTS]


def _metaspace(step: DecoderStep, _: bool) -> list[DecoderStage]:
    return [Metaspace(step["replacement"], drops_first=step["prepend_scheme"] != "never")]


def _bpe(step: DecoderStep, is_joined: bool) -> list[DecoderStage]:
    # After a joining step the only token is the last one, so its suffix is dropped.
    return [Replace(step["suffix"], "") if is_joined else BpeDecoder(step["suffix"])]


_JOINING_STEPS = {"Fuse", "ByteLevel"}
_STAGES: dict[str | None, Callable[[DecoderStep, bool], list[DecoderStage]]] = {
    None: lambda *_: [JoinWithSpaces()],
    "BPEDecoder": _bpe,
    "ByteFallback": lambda *_: [ByteFallback()],
    "ByteLevel": lambda *_: [ByteLevel()],
    "CTC": _ctc,
    "Fuse": lambda *_: [Fuse()],
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": lambda step, _: [Strip(step["content"], step["start"], step["stop"])],
    "WordPiece": _word_piece,
}
SUPPORTED_STEPS = frozenset(kind for kind in _STAGES if kind)
