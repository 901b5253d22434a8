# SPDX-License-Identifier: Apache-2.0
"""Split protobuf's text format into tokens with their spans.

Follows the tokenizer of protobuf's C++ library, which is what Triton reads config.pbtxt with:
https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tritonctl.checks.config.characters import describe_character, is_utf16
from tritonctl.checks.source_span import Span

Kind = Literal["identifier", "integer", "float", "string", "symbol", "end"]

# Skipped whitespace and comments, then a token; at the end of the text there is no token.
_TOKEN = re.compile(
    r"""
    (?:[ \t\r\n\v\f]+|\#[^\n\0]*)*
    (?:
        (?P<identifier>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<float>
            (?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?|\d+[eE][+-]?\d+[fF]?|\d+[fF](?![A-Za-z0-9_])
        )
      | (?P<integer>0[xX][0-9A-Fa-f]+|\d+)
      | (?P<string>"(?:[^"\\\n\0]|\\[^\n\0])*"|'(?:[^'\\\n\0]|\\[^\n\0])*')
      | (?P<symbol>[^\s])
    )?
    """,
    re.VERBOSE | re.ASCII,
)
_USUAL_SYMBOLS = frozenset("{}[]<>:,;-./")
_MAX_DIGITS = 400
_OCTAL = re.compile(r"0[0-7]*\Z")
_ESCAPE = re.compile(
    rb"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9A-Fa-f]{1,2})|u(?P<u4>[0-9A-Fa-f]{4})"
    rb"|U(?P<u8>[0-9A-Fa-f]{8})|(?P<letter>[\s\S]))"
)
_LETTERS = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip


class TextprotoError(Exception):
    """The text is not valid text format."""

    def __init__(self, problem: str, span: Span) -> None:
        super().__init__(problem)
        self.problem = problem
        self.span = span


class TextprotoToken(NamedTuple):
    """A token."""

    kind: Kind
    text: str  # as written
    span: Span


def tokens(text: str) -> Iterator[TextprotoToken]:
    """Yield every token, then one of kind "end". Raises TextprotoError."""
    position, match = 0, _TOKEN.match
    while matched := match(text, position):
        kind: Kind | None = matched.lastgroup  # type: ignore[assignment]
        if kind is None:
            yield TextprotoToken("end", "", Span(len(text), len(text)))
            return
        start, position = matched.span(kind)
        token = TextprotoToken(kind, text[start:position], Span(start, position))
        if kind == "symbol":
            if token.text not in _USUAL_SYMBOLS:
                _refuse_symbol(text, token)
        elif kind in ("integer", "float"):
            _refuse_number(text, token)
        yield token


def _refuse_symbol(text: str, token: TextprotoToken) -> None:
    if token.text in "\"'":
        line = text[token.span.start :].partition("\n")[0]
        if "\0" in line:  # protobuf's reader stops there
            at = token.span.start + line.index("\0")
            raise TextprotoError("a NUL byte inside a string", Span(at, at + 1))
        span = Span(token.span.start, token.span.start + len(line))
        raise TextprotoError("a string is not closed on its line", span)
    if is_utf16(text):
        raise TextprotoError("the file is UTF-16, not UTF-8", token.span)
    if not token.text.isprintable():
        raise TextprotoError(f"unexpected {describe_character(token.text)}", token.span)


def _refuse_number(text: str, token: TextprotoToken) -> None:
    next_character = text[token.span.end : token.span.end + 1]
    if next_character.isalnum() or next_character == "_":
        raise TextprotoError("a number runs into what follows it", token.span)
    plain = token.kind == "integer" and token.text[:2].lower() != "0x"
    if plain and token.text[0] == "0" and not _OCTAL.match(token.text):
        raise TextprotoError("a number that begins with 0 is octal and has no 8 or 9", token.span)


def integer(token: TextprotoToken) -> int:
    """Return the value of an integer token: decimal, octal or hexadecimal."""
    text = token.text.lower()
    if text.startswith("0x"):
        return int(text, 16)
    if text.startswith("0"):
        return int(text, 8)
    # Python refuses longer numbers; the limits of all fields are far lower.
    return int(text) if len(text) <= _MAX_DIGITS else 10**_MAX_DIGITS


def string(token: TextprotoToken) -> bytes:
    """Return the bytes of a string token. Raises TextprotoError for an unknown escape."""
    plain = token.text[1:-1].encode("utf-8", "surrogateescape")
    if b"\\" not in plain:
        return plain

    def unescape(match: re.Match[bytes]) -> bytes:
        if octal := match["octal"]:
            return bytes([int(octal, 8) & 0xFF])
        if digits := match["hex"]:
            return bytes([int(digits, 16)])
        if digits := match["u4"] or match["u8"]:
            code = int(digits, 16)
            if code <= 0x10FFFF:  # noqa: PLR2004 - the last code point
                return chr(code).encode("utf-8", "surrogatepass")
        elif match["letter"] in _LETTERS:
            return _LETTERS[match["letter"]]
        raise TextprotoError(f"unknown escape {match[0].decode()}", token.span)

    return _ESCAPE.sub(unescape, plain)
