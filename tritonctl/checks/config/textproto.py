# SPDX-License-Identifier: Apache-2.0
"""Parse protobuf's text format into a tree with spans.

The parser needs no schema: message.py gives the fields their meaning.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tritonctl.checks.config.characters import describe_character
from tritonctl.checks.config.lexer import TextprotoError, TextprotoToken, integer, string, tokens
from tritonctl.checks.source_span import Span

# The limit of protobuf's own parser, which refuses deeper messages.
MAX_DEPTH = 100
_CLOSING = {"{": "}", "<": ">"}
_SEPARATORS = (",", ";")


class Scalar(NamedTuple):
    """A scalar value."""

    kind: Literal["string", "integer", "float", "identifier"]
    value: bytes | int | float | str  # str: the name of an identifier
    span: Span


class MessageBlock(NamedTuple):
    """A message: its fields in the order of the text."""

    fields: tuple[Field, ...]
    span: Span


class Field(NamedTuple):
    """One value of a field. `name: [a, b]` gives two fields, `name: []` one without a value."""

    name: str
    name_span: Span
    value: Scalar | MessageBlock | None
    is_listed: bool = False
    colon: bool = True  # False for `name []`, which is valid for messages only


def parse(text: str) -> MessageBlock:
    """Parse a text as one message. Raises TextprotoError at the first syntax error."""
    reader = _Reader(text)
    fields = reader.fields(closing="", level=0)
    return MessageBlock(fields, Span(0, len(text)))


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._now = next(self._tokens)

    def fields(self, closing: str, level: int) -> tuple[Field, ...]:
        """Return the fields up to `closing`, or to the end of the text if it is empty."""
        if level > MAX_DEPTH:
            raise TextprotoError(
                f"more than {MAX_DEPTH} messages inside each other", self._now.span
            )
        fields: list[Field] = []
        while not self._is_at_end(closing):
            self._field(level, fields)
            if self._now.text in _SEPARATORS:
                self._advance()
        return tuple(fields)

    def _is_at_end(self, closing: str) -> bool:
        if self._now.kind == "end":
            if closing:
                raise TextprotoError(f"{closing!r} is missing at the end", self._now.span)
            return True
        return bool(closing) and self._now.text == closing

    def _field(self, level: int, fields: list[Field]) -> None:
        name, span = self._name()
        colon = self._accept(":")
        if self._now.text == "[":
            values = self._list(colon, level) or [None]
            fields += [Field(name, span, value, is_listed=True, colon=colon) for value in values]
        else:
            fields.append(Field(name, span, self._value(colon, level, name)))

    def _name(self) -> tuple[str, Span]:
        token = self._now
        if token.kind == "identifier":
            self._advance()
            return token.text, token.span
        if self._accept("["):  # an extension, or the type of an Any
            first = self._now.span
            parts = []
            while self._now.kind == "identifier" or self._now.text in (".", "/", "-"):
                parts.append(self._advance().text)
            last = self._expect("]", "the name of an extension").span
            return f"[{''.join(parts)}]", Span(first.start - 1, last.end)
        raise self._unexpected("a field's name")

    def _value(self, colon: bool, level: int, name: str) -> Scalar | MessageBlock:
        if self._now.text in _CLOSING:
            return self._block(level)
        if not colon:
            raise self._unexpected(f"':' after {name}")
        return self._scalar()

    def _list(self, colon: bool, level: int) -> list[Scalar | MessageBlock | None]:
        self._advance()
        values: list[Scalar | MessageBlock | None] = []
        if self._accept("]"):
            return values
        while True:
            values.append(self._value(colon, level, "a list's field"))
            if self._accept("]"):
                return values
            self._expect(",", "',' or ']'")

    def _block(self, level: int) -> MessageBlock:
        opening = self._advance()
        fields = self.fields(_CLOSING[opening.text], level + 1)
        closing = self._advance()
        return MessageBlock(fields, Span(opening.span.start, closing.span.end))

    def _scalar(self) -> Scalar:
        token = self._now
        if token.kind == "string":
            return self._strings()
        if token.text == "-":
            return self._negative()
        if token.kind not in ("integer", "float", "identifier"):
            raise self._unexpected("a value")
        return _scalar(self._advance())

    def _strings(self) -> Scalar:
        """Join consecutive strings into one value."""
        first = last = self._now
        pieces = []
        while self._now.kind == "string":
            last = self._advance()
            pieces.append(string(last))
        return Scalar("string", b"".join(pieces), Span(first.span.start, last.span.end))

    def _negative(self) -> Scalar:
        minus, token = self._advance(), self._now
        is_non_finite = token.kind == "identifier" and token.text.lower() in _FLOATS
        if token.kind not in ("integer", "float") and not is_non_finite:
            raise self._unexpected("a number after '-'")
        plain = _scalar(self._advance())
        span = Span(minus.span.start, plain.span.end)
        if is_non_finite:
            return Scalar("float", -_FLOATS[token.text.lower()], span)
        assert isinstance(plain.value, int | float)  # noqa: S101
        return Scalar(plain.kind, -plain.value, span)

    def _accept(self, symbol: str) -> bool:
        # Tokens of other kinds never have the text of a symbol.
        if self._now.text != symbol:
            return False
        self._advance()
        return True

    def _expect(self, symbol: str, expected: str) -> TextprotoToken:
        if self._now.text != symbol:
            raise self._unexpected(expected)
        return self._advance()

    def _advance(self) -> TextprotoToken:
        token = self._now
        if token.kind != "end":
            self._now = next(self._tokens)
        return token

    def _unexpected(self, expected: str) -> TextprotoError:
        text = self._now.text
        found = repr(text) if text else "the end of the file"
        if len(text) == 1 and not text.isascii():
            found = describe_character(text)
        return TextprotoError(f"expected {expected}, found {found}", self._now.span)


_FLOATS = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}


def _scalar(token: TextprotoToken) -> Scalar:
    if token.kind == "integer":
        return Scalar("integer", integer(token), token.span)
    if token.kind == "float":
        return Scalar("float", float(token.text.rstrip("fF")), token.span)
    return Scalar("identifier", token.text, token.span)
