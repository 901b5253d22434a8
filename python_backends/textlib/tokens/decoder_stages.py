# SPDX-License-Identifier: Apache-2.0
"""The stages of decoder_chain: each reads pieces of tokens and emits final text."""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer, models

from textlib.panics import panics_as_errors

DecoderStep = dict[str, Any]
Piece = tuple[str, bool]  # text, and whether it ends its token

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_BYTE_TOKEN_BYTES = 6
# tokenizers, decoders/wordpiece.rs: `cleanup` replaces these one after the other.
CLEANUP_REPLACEMENTS = [
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    *((f" {suffix}", suffix) for suffix in ("'s", "'ve", "'re")),
]


class DecoderStage(Protocol):
    """One step of a decoder over one stream; decoder_chain lists what each step holds back."""

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Yield the pieces that become final with this one."""

    def finish(self) -> Iterator[Piece]:
        """Yield the held pieces at the end of the stream; every previous token has ended."""


def feed_stages(stages: Sequence[DecoderStage], pieces: list[Piece]) -> list[Piece]:
    """Feed the pieces through all stages and return the output."""
    for stage in stages:
        pieces = [out for text, ends_token in pieces for out in stage.feed(text, ends_token)]
    return pieces


class _Stateless:
    """A stage that holds nothing at the end of a stream."""

    def finish(self) -> Iterator[Piece]:
        """Yield nothing."""
        yield from ()


class StringMatcher:
    """Finds a string in the pieces of a token, from the left, without overlap."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._held = ""

    def feed(self, text: str, ends_token: bool) -> list[str]:
        """Return the text between matches; the first part continues the previous call's last."""
        if not self._pattern:  # it matches in front of every character and at the end
            return ["", *text, ""] if ends_token else ["", *text]
        *parts, tail = (self._held + text).split(self._pattern)
        count = 0 if ends_token else self._overlap(tail)
        self._held = tail[len(tail) - count :]
        return [*parts, tail[: len(tail) - count]]

    def _overlap(self, text: str) -> int:
        """Length of the longest suffix of the text that is a prefix of the pattern."""
        max_overlap = min(len(text), len(self._pattern) - 1)
        return next((n for n in range(max_overlap, 0, -1) if text.endswith(self._pattern[:n])), 0)


class Replace(_Stateless):
    """Replaces a string."""

    def __init__(self, pattern: str, content: str) -> None:
        self._matches, self._content = StringMatcher(pattern), content

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        yield self._content.join(self._matches.feed(text, ends_token)), ends_token


class ReplaceRegex(_Stateless):
    """Replaces a regular expression in whole tokens, with the library."""

    def __init__(self, step: DecoderStep) -> None:
        content = json.loads(Tokenizer(models.BPE()).to_str())
        content["decoder"] = step
        decoder: Any = Tokenizer.from_str(json.dumps(content)).decoder
        self._decode: Callable[[list[str]], str] = decoder.decode
        self._held: list[str] = []

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        self._held.append(text)
        if ends_token:
            token, self._held = "".join(self._held), []
            with panics_as_errors():
                decoded = self._decode([token])
            yield decoded, True


class JoinWithSpaces(_Stateless):
    """No decoder: tokens joined with spaces."""

    def __init__(self) -> None:
        self._separator = ""

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        yield self._separator + text, ends_token
        self._separator = " " if ends_token else ""


class Metaspace(_Stateless):
    """Turns the replacement character into a space; in the first token optionally into nothing."""

    def __init__(self, replacement: str, *, drops_first: bool) -> None:
        self._replacement = replacement
        self._space = "" if drops_first else " "

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        yield text.replace(self._replacement, self._space), ends_token
        if ends_token:
            self._space = " "


class WordPiece(_Stateless):
    """Puts a space before each token or drops its prefix; leaves the first token as it is."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._first = True
        self._held: str | None = ""  # None: the start of this token has been emitted

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        if self._held is not None and not self._first:
            text = self._held + text
            if not ends_token and len(text) < len(self._prefix) and self._prefix.startswith(text):
                self._held = text
                return
            has_prefix = text.startswith(self._prefix)
            text = text.removeprefix(self._prefix) if has_prefix else " " + text
        self._held = None
        yield text, ends_token
        if ends_token:
            self._held, self._first = "", False


class Strip(_Stateless):
    """Cuts up to `start` leading and `stop` trailing characters off each token."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop
        self._remaining, self._held = start, 0

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        while self._remaining and text:
            if not text.startswith(self._content):
                self._remaining = 0
                break
            text, self._remaining = text[1:], self._remaining - 1
        text = self._content * self._held + text
        trailing = len(text) - len(text.rstrip(self._content)) if self._stop else 0
        self._held = min(trailing, self._stop)
        yield text[: len(text) - self._held], ends_token
        if ends_token:
            self._remaining, self._held = self._start, 0


class Fuse:
    """Joins all tokens into one."""

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:  # noqa: ARG002 - every end goes
        """Process a piece."""
        yield text, False

    def finish(self) -> Iterator[Piece]:
        """Pass on the rest."""
        yield "", True


class ByteLevel:
    """Joins all tokens into one and maps characters to bytes."""

    def __init__(self) -> None:
        self._token: list[str] = []
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        self._token.append(text)  # one foreign character makes the whole token stand for itself
        if ends_token:
            data, self._token = byte_level_bytes("".join(self._token)), []
            yield self._decode.decode(data), False

    def finish(self) -> Iterator[Piece]:
        """Pass on the rest."""
        yield self._decode.decode(b"", final=True), True


class ByteFallback:
    """Joins a well-formed run of byte tokens; a malformed byte ends it with U+FFFD per byte."""

    def __init__(self) -> None:
        self._held: str | None = ""  # None: this is not a byte token
        self._has_output = False  # characters of the run have been emitted
        self._is_malformed = False
        self._incomplete_bytes = b""

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        if self._held is not None:
            text = self._held + text
            if not ends_token and _may_be_byte_token(text):
                self._held = text
                return
            byte = fallback_byte(text) if ends_token else None
            self._held = ""
            if byte is not None:
                yield from self._add_byte(byte)
                return
            yield from self.finish()
            self._held = None
        yield text, ends_token
        if ends_token:
            self._held = ""

    def finish(self) -> Iterator[Piece]:
        """End the run."""
        if self._incomplete_bytes:
            yield from self._replacement_pieces()
        elif self._has_output:
            yield "", True
        self._has_output = self._is_malformed = False

    def _add_byte(self, byte: bytes) -> Iterator[Piece]:
        self._incomplete_bytes += byte
        try:
            text, used = codecs.utf_8_decode(self._incomplete_bytes, "strict", False)
        except UnicodeDecodeError:
            self._is_malformed = True
        if self._is_malformed:
            yield from self._replacement_pieces()
        elif used:
            self._incomplete_bytes, self._has_output = b"", True
            yield text, False

    def _replacement_pieces(self) -> Iterator[Piece]:
        if self._has_output:
            yield "", True
        self._has_output = False
        yield from [(_REPLACEMENT, True)] * len(self._incomplete_bytes)
        self._incomplete_bytes = b""


def _may_be_byte_token(text: str) -> bool:
    has_prefix = text.startswith("<0x") or "<0x".startswith(text)
    return has_prefix and len(text.encode("utf-8", "replace")) <= _BYTE_TOKEN_BYTES


def fallback_byte(token: str) -> bytes | None:
    """Return the byte that a token such as <0xE4> stands for; None for other tokens."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None


class BpeDecoder:
    """Turns the suffix into a space, and into nothing in the last token."""

    def __init__(self, suffix: str) -> None:
        self._matches = StringMatcher(suffix)
        self._held_parts: list[str] = []  # the parts of a token from its first suffix on
        self._token_ended = False

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        if self._token_ended:
            yield from self._release(" ")
        first, *later_parts = self._matches.feed(text, ends_token)
        if self._held_parts:
            self._held_parts[-1] += first
        else:
            yield first, False
        if later_parts and not self._held_parts:
            self._held_parts.append("")
        self._held_parts += later_parts
        self._token_ended = ends_token

    def finish(self) -> Iterator[Piece]:
        """Pass on the rest."""
        if self._token_ended:
            yield from self._release("")

    def _release(self, suffix: str) -> Iterator[Piece]:
        yield suffix.join(self._held_parts), True
        self._held_parts, self._token_ended = [], False


class DropRepeats(_Stateless):
    """Drops a token that repeats the previous one, as CTC does."""

    def __init__(self) -> None:
        self._previous_token: str | None = None
        self._token: list[str] = []
        self._held: str | None = ""  # None: this token differs

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        self._token.append(text)
        if self._held is not None:
            self._held += text
            if self._previous_token is not None and self._repeats(
                self._previous_token, self._held, ends_token
            ):
                if ends_token:
                    self._token, self._held = [], ""
                return
            text, self._held = self._held, None
        yield text, ends_token
        if ends_token:
            self._previous_token, self._token, self._held = "".join(self._token), [], ""

    @staticmethod
    def _repeats(last: str, text: str, ends_token: bool) -> bool:
        return last == text if ends_token else last.startswith(text)


class DropEmpty(_Stateless):
    """Drops tokens without text, as CTC does."""

    def __init__(self) -> None:
        self._has_text = False

    def feed(self, text: str, ends_token: bool) -> Iterator[Piece]:
        """Process a piece."""
        if text or self._has_text:
            yield text, ends_token
            self._has_text = not ends_token


def _byte_alphabet() -> dict[str, int]:
    """The byte of each printable character in GPT-2's BPE (openai/gpt-2, `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    remapped = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + offset): byte for offset, byte in enumerate(remapped)
    }


_ALPHABET = _byte_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level BPE token; with a foreign character, its UTF-8."""
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")
