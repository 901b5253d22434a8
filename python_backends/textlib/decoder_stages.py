# SPDX-License-Identifier: Apache-2.0
"""The steps of decoder_chain: each takes pieces of tokens and passes on what is certain."""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer, models

Step = dict[str, Any]
Piece = tuple[str, bool]  # text, and whether it ends its token

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_BYTE_TOKEN_BYTES = 6
# tokenizers, decoders/wordpiece.rs: `cleanup` replaces these one after the other.
CLEANED = [
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    *((f" {ending}", ending) for ending in ("'s", "'ve", "'re")),
]


class Stage(Protocol):
    """One step of a decoder over one stream; decoder_chain says what each holds back."""

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """What becomes certain with this piece."""

    def finish(self) -> Iterator[Piece]:
        """What was held back until the stream ended; every token before it has ended."""


def through(stages: Sequence[Stage], pieces: list[Piece]) -> list[Piece]:
    """The pieces behind these stages."""
    for stage in stages:
        pieces = [out for text, ends in pieces for out in stage.feed(text, ends)]
    return pieces


class _Stateless:
    """A step with nothing left at the end of a stream."""

    def finish(self) -> Iterator[Piece]:
        """Pass on the rest."""
        yield from ()


class Matches:
    """Finds a string in the pieces of a token, from the left, without overlap."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._held = ""

    def feed(self, text: str, ends: bool) -> list[str]:
        """The text between matches; the first part continues the last one of the call before."""
        if not self._pattern:  # it matches in front of every character and at the end
            return ["", *text, ""] if ends else ["", *text]
        *parts, rest = (self._held + text).split(self._pattern)
        count = 0 if ends else self._overlap(rest)
        self._held = rest[len(rest) - count :]
        return [*parts, rest[: len(rest) - count]]

    def _overlap(self, text: str) -> int:
        """Length of the longest end of the text that begins the pattern."""
        longest = min(len(text), len(self._pattern) - 1)
        return next((n for n in range(longest, 0, -1) if text.endswith(self._pattern[:n])), 0)


class Replace(_Stateless):
    """Replaces a string."""

    def __init__(self, pattern: str, content: str) -> None:
        self._matches, self._content = Matches(pattern), content

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        yield self._content.join(self._matches.feed(text, ends)), ends


class ReplaceRegex(_Stateless):
    """Asks the library, for whole tokens."""

    def __init__(self, step: Step) -> None:
        content = json.loads(Tokenizer(models.BPE()).to_str())
        content["decoder"] = step
        decoder: Any = Tokenizer.from_str(json.dumps(content)).decoder
        self._decode: Callable[[list[str]], str] = decoder.decode
        self._held: list[str] = []

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        self._held.append(text)
        if ends:
            whole, self._held = "".join(self._held), []
            yield self._decode([whole]), True


class Spaces(_Stateless):
    """No decoder: tokens joined with spaces."""

    def __init__(self) -> None:
        self._before = ""

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        yield self._before + text, ends
        self._before = " " if ends else ""


class Metaspace(_Stateless):
    """The replacement is a space; in the first token it may be nothing."""

    def __init__(self, replacement: str, *, drops_first: bool) -> None:
        self._replacement = replacement
        self._space = "" if drops_first else " "

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        yield text.replace(self._replacement, self._space), ends
        if ends:
            self._space = " "


class WordPiece(_Stateless):
    """A space before each token, instead of its prefix nothing; the first one stays."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._first = True
        self._held: str | None = ""  # None: the beginning of this token has passed

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        if self._held is not None and not self._first:
            text = self._held + text
            if not ends and len(text) < len(self._prefix) and self._prefix.startswith(text):
                self._held = text
                return
            begins = text.startswith(self._prefix)
            text = text.removeprefix(self._prefix) if begins else " " + text
        self._held = None
        yield text, ends
        if ends:
            self._held, self._first = "", False


class Strip(_Stateless):
    """Cuts up to `start` and `stop` characters off each token."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop
        self._left, self._held = start, 0

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        while self._left and text:
            if not text.startswith(self._content):
                self._left = 0
                break
            text, self._left = text[1:], self._left - 1
        text = self._content * self._held + text
        trailing = len(text) - len(text.rstrip(self._content)) if self._stop else 0
        self._held = min(trailing, self._stop)
        yield text[: len(text) - self._held], ends
        if ends:
            self._left, self._held = self._start, 0


class Fuse:
    """One token of all."""

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:  # noqa: ARG002 - every end goes
        """Take a piece."""
        yield text, False

    def finish(self) -> Iterator[Piece]:
        """Pass on the rest."""
        yield "", True


class ByteLevel:
    """One token of all; characters stand for bytes."""

    def __init__(self) -> None:
        self._token: list[str] = []
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        self._token.append(text)  # one foreign character makes the whole token stand for itself
        if ends:
            data, self._token = byte_level_bytes("".join(self._token)), []
            yield self._decode.decode(data), False

    def finish(self) -> Iterator[Piece]:
        """Pass on the rest."""
        yield self._decode.decode(b"", final=True), True


class ByteFallback:
    """A well-formed run becomes one token; a malformed byte ends it, U+FFFD by U+FFFD."""

    def __init__(self) -> None:
        self._held: str | None = ""  # None: this token is no byte token
        self._shown = False  # characters of the run are out
        self._bad = False
        self._unfinished = b""

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        if self._held is not None:
            text = self._held + text
            if not ends and _may_be_byte_token(text):
                self._held = text
                return
            byte = fallback_byte(text) if ends else None
            self._held = ""
            if byte is not None:
                yield from self._take(byte)
                return
            yield from self.finish()
            self._held = None
        yield text, ends
        if ends:
            self._held = ""

    def finish(self) -> Iterator[Piece]:
        """End the run."""
        if self._unfinished:
            yield from self._replaced()
        elif self._shown:
            yield "", True
        self._shown = self._bad = False

    def _take(self, byte: bytes) -> Iterator[Piece]:
        self._unfinished += byte
        try:
            text, used = codecs.utf_8_decode(self._unfinished, "strict", False)
        except UnicodeDecodeError:
            self._bad = True
        if self._bad:
            yield from self._replaced()
        elif used:
            self._unfinished, self._shown = b"", True
            yield text, False

    def _replaced(self) -> Iterator[Piece]:
        if self._shown:
            yield "", True
        self._shown = False
        yield from [(_REPLACEMENT, True)] * len(self._unfinished)
        self._unfinished = b""


def _may_be_byte_token(text: str) -> bool:
    begins = text.startswith("<0x") or "<0x".startswith(text)
    return begins and len(text.encode("utf-8", "replace")) <= _BYTE_TOKEN_BYTES


def fallback_byte(token: str) -> bytes | None:
    """The byte that a token such as <0xE4> stands for; None for other tokens."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None


class BpeDecoder:
    """The suffix becomes a space, in the last token nothing."""

    def __init__(self, suffix: str) -> None:
        self._matches = Matches(suffix)
        self._owed: list[str] = []  # the parts of a token from its first suffix on
        self._ended = False

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        if self._ended:
            yield from self._let_go(" ")
        first, *others = self._matches.feed(text, ends)
        if self._owed:
            self._owed[-1] += first
        else:
            yield first, False
        if others and not self._owed:
            self._owed.append("")
        self._owed += others
        self._ended = ends

    def finish(self) -> Iterator[Piece]:
        """Pass on the rest."""
        if self._ended:
            yield from self._let_go("")

    def _let_go(self, suffix: str) -> Iterator[Piece]:
        yield suffix.join(self._owed), True
        self._owed, self._ended = [], False


class Distinct(_Stateless):
    """CTC drops a token that repeats the one before it."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._token: list[str] = []
        self._held: str | None = ""  # None: this token differs

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        self._token.append(text)
        if self._held is not None:
            self._held += text
            if self._last is not None and self._repeats(self._last, self._held, ends):
                if ends:
                    self._token, self._held = [], ""
                return
            text, self._held = self._held, None
        yield text, ends
        if ends:
            self._last, self._token, self._held = "".join(self._token), [], ""

    @staticmethod
    def _repeats(last: str, text: str, ends: bool) -> bool:
        return last == text if ends else last.startswith(text)


class NotEmpty(_Stateless):
    """CTC drops tokens without text."""

    def __init__(self) -> None:
        self._begun = False

    def feed(self, text: str, ends: bool) -> Iterator[Piece]:
        """Take a piece."""
        if text or self._begun:
            yield text, ends
            self._begun = not ends


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
        return token.encode("utf-8", "replace")
