# SPDX-License-Identifier: Apache-2.0
"""Any decoder of `tokenizers` over a stream: each step passes on what can no longer change.

The library decodes all tokens at once, step by step: a list of tokens goes in, a list of tokens
comes out, and the text is their concatenation. Here the same steps run over a stream. Between two
steps goes a *piece*: some text, and whether the token that it belongs to ends with it. A step holds
back only what a later piece can change, and never takes anything back:

| step | holds back |
|---|---|
| ByteFallback, ByteLevel | the bytes of an unfinished character |
| Replace of a string, the clean-up of WordPiece and CTC | an end that may begin a match |
| Strip | as many trailing characters as it may cut |
| BPEDecoder | a token from its first suffix on, until the next token begins |
| CTC | the beginning that a token shares with the token before it, until they differ |
| Replace of a regular expression | its token, so behind Fuse or ByteLevel all text |

One difference to the library remains, in ByteFallback: a run of byte tokens with a malformed byte
becomes U+FFFD for each byte of the run, so a stream that shows nothing to take back would wait for
the end of every run: sentences, where a language has few tokens of its own. Here the complete
characters in front of the malformed byte stay; from there on each byte of the run is one U+FFFD.
"""

from collections.abc import Callable, Sequence

from textlib.decoder_stages import (
    CLEANED,
    BpeDecoder,
    ByteFallback,
    ByteLevel,
    Distinct,
    Fuse,
    Metaspace,
    NotEmpty,
    Piece,
    Replace,
    ReplaceRegex,
    Spaces,
    Stage,
    Step,
    Strip,
    WordPiece,
    through,
)


class Chain:
    """A decoder over one stream of tokens."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._stages = stages(steps)

    def feed(self, token: str) -> str:
        """The text that this token makes certain."""
        return _text(through(self._stages, [(token, True)]))

    def finish(self) -> str:
        """The rest of the text; nothing may be fed afterwards."""
        pieces: list[Piece] = []
        for stage in self._stages:
            pieces = [*through([stage], pieces), *stage.finish()]
        return _text(pieces)


def stages(steps: Sequence[Step]) -> list[Stage]:
    """New stages for a stream; raises KeyError for a step that is unknown."""
    made: list[Stage] = []
    alone = False
    for step in steps or [{"type": None}]:
        made += _STAGES[step["type"]](step, alone)
        alone = alone or step["type"] in _JOINING
    return made


def _text(pieces: Sequence[Piece]) -> str:
    return "".join([text for text, _ in pieces])


def _replace(step: Step, _: bool) -> list[Stage]:
    literal = step["pattern"].get("String")
    return [Replace(literal, step["content"]) if literal else ReplaceRegex(step)]


def _word_piece(step: Step, _: bool) -> list[Stage]:
    return [WordPiece(step["prefix"]), *(_cleanup() if step["cleanup"] else [])]


def _ctc(step: Step, _: bool) -> list[Stage]:
    stages: list[Stage] = [Distinct(), Replace(step["pad_token"], "")]
    if step["cleanup"]:
        stages += [*_cleanup(), Replace(step["word_delimiter_token"], " ")]
    return [*stages, NotEmpty()]


def _cleanup() -> list[Stage]:
    return [Replace(*pair) for pair in CLEANED]


def _metaspace(step: Step, _: bool) -> list[Stage]:
    return [Metaspace(step["replacement"], drops_first=step["prepend_scheme"] != "never")]


def _bpe(step: Step, alone: bool) -> list[Stage]:
    """`alone`: a step before made one token of all, which is the last."""
    return [Replace(step["suffix"], "") if alone else BpeDecoder(step["suffix"])]


_JOINING = {"Fuse", "ByteLevel"}
_STAGES: dict[str | None, Callable[[Step, bool], list[Stage]]] = {
    None: lambda *_: [Spaces()],
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
KINDS = frozenset(kind for kind in _STAGES if kind)
