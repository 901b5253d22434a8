# SPDX-License-Identifier: Apache-2.0
"""The tokens of protobuf's text format, with their places.

Follows the tokenizer of protobuf's C++ library, which is what Triton reads config.pbtxt with:
https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tritonctl.checks.places import Span

Kind = Literal["identifier", "integer", "float", "string", "symbol", "end"]

# What is skipped, then a token; at the end of the text, only the first part matches.
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
# Python's "surrogateescape" reads bytes that are not UTF-8 as these.
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF
_MOST_DIGITS = 400
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
    """The text is not valid text format: what is wrong, and where."""

    def __init__(self, problem: str, span: Span) -> None:
        super().__init__(problem)
        self.problem = problem
        self.span = span


class Token(NamedTuple):
    """`text` as written."""

    kind: Kind
    text: str
    span: Span


def tokens(text: str) -> Iterator[Token]:
    """Every token, then one of kind "end". Raises TextprotoError."""
    at, match = 0, _TOKEN.match
    while matched := match(text, at):
        kind: Kind | None = matched.lastgroup  # type: ignore[assignment]
        if kind is None:
            yield Token("end", "", Span(len(text), len(text)))
            return
        start, at = matched.span(kind)
        token = Token(kind, text[start:at], Span(start, at))
        if kind == "symbol":
            if token.text not in _USUAL_SYMBOLS:
                _refuse_symbol(text, token)
        elif kind in ("integer", "float"):
            _refuse_number(text, token)
        yield token


def _refuse_symbol(text: str, token: Token) -> None:
    if token.text in "\"'":
        line = text[token.span.start :].partition("\n")[0]
        if "\0" in line:  # where protobuf's reader takes the text to end
            at = token.span.start + line.index("\0")
            raise TextprotoError("a NUL byte inside a string", Span(at, at + 1))
        span = Span(token.span.start, token.span.start + len(line))
        raise TextprotoError("a string is not closed on its line", span)
    if not token.text.isprintable():
        raise TextprotoError(f"unexpected {_named(token.text)}", token.span)


def _refuse_number(text: str, token: Token) -> None:
    after = text[token.span.end : token.span.end + 1]
    if after.isalnum() or after == "_":
        raise TextprotoError("a number runs into what follows it", token.span)
    plain = token.kind == "integer" and token.text[:2].lower() != "0x"
    if plain and token.text[0] == "0" and not _OCTAL.match(token.text):
        raise TextprotoError("a number that begins with 0 is octal and has no 8 or 9", token.span)


def integer(token: Token) -> int:
    """The value of an integer token: decimal, octal or hexadecimal."""
    text = token.text.lower()
    if text.startswith("0x"):
        return int(text, 16)
    if text.startswith("0"):
        return int(text, 8)
    # Python refuses to read longer ones; every field ends far below.
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS


def string(token: Token) -> bytes:
    """The bytes of a string token. Raises TextprotoError for an unknown escape."""
    plain = token.text[1:-1].encode("utf-8", "surrogateescape")
    if b"\\" not in plain:
        return plain

    def replaced(match: re.Match[bytes]) -> bytes:
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

    return _ESCAPE.sub(replaced, plain)


def _named(character: str) -> str:
    """For people; a byte that is no UTF-8 is called one."""
    is_byte = _FIRST_BYTE <= ord(character) <= _LAST_BYTE
    return f"byte 0x{ord(character) & 0xFF:02X}" if is_byte else f"character {character!r}"
