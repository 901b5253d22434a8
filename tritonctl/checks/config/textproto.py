# SPDX-License-Identifier: Apache-2.0
"""Protobuf's text format as a tree that knows where everything stands.

No schema is needed to read it: config_message.py gives the fields a meaning.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tritonctl.checks.config.lexer import TextprotoError, Token, integer, string, tokens
from tritonctl.checks.places import Span

# As protobuf's own parser: deeper messages are refused.
MOST_LEVELS = 100
_CLOSING = {"{": "}", "<": ">"}
_SEPARATORS = (",", ";")


class Scalar(NamedTuple):
    """A value as written. `value`: bytes, int, float, or the name of an identifier."""

    kind: Literal["string", "integer", "float", "identifier"]
    value: bytes | int | float | str
    span: Span


class Block(NamedTuple):
    """A message: its fields in the order they stand."""

    fields: tuple[Field, ...]
    span: Span


class Field(NamedTuple):
    """One value of a field; `name: [a, b]` gives two, which are `listed`, `name: []` a None.

    colon: False for `name []`, which messages may be written as and scalars not.
    """

    name: str
    name_span: Span
    value: Scalar | Block | None
    listed: bool = False
    colon: bool = True


def parse(text: str) -> Block:
    """The whole text as one message. Raises TextprotoError at the first non-field."""
    reader = _Reader(text)
    fields = reader.fields(closing="", level=0)
    return Block(fields, Span(0, len(text)))


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._now = next(self._tokens)

    def fields(self, closing: str, level: int) -> tuple[Field, ...]:
        """Fields up to `closing`, or to the end of the text."""
        if level > MOST_LEVELS:
            raise TextprotoError(
                f"more than {MOST_LEVELS} messages inside each other", self._now.span
            )
        fields: list[Field] = []
        while not self._ends(closing):
            self._field(level, fields)
            if self._now.text in _SEPARATORS:
                self._take()
        return tuple(fields)

    def _ends(self, closing: str) -> bool:
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
            fields += [Field(name, span, value, listed=True, colon=colon) for value in values]
        else:
            fields.append(Field(name, span, self._value(colon, level, name)))

    def _name(self) -> tuple[str, Span]:
        token = self._now
        if token.kind == "identifier":
            self._take()
            return token.text, token.span
        if self._accept("["):  # an extension, or the type of an Any
            first = self._now.span
            parts = []
            while self._now.kind == "identifier" or self._now.text in (".", "/", "-"):
                parts.append(self._take().text)
            last = self._expect("]", "the name of an extension").span
            return f"[{''.join(parts)}]", Span(first.start - 1, last.end)
        raise self._unexpected("a field's name")

    def _value(self, colon: bool, level: int, name: str) -> Scalar | Block:
        if self._now.text in _CLOSING:
            return self._block(level)
        if not colon:
            raise self._unexpected(f"':' after {name}")
        return self._scalar()

    def _list(self, colon: bool, level: int) -> list[Scalar | Block | None]:
        self._take()
        values: list[Scalar | Block | None] = []
        if self._accept("]"):
            return values
        while True:
            values.append(self._value(colon, level, "a list's field"))
            if self._accept("]"):
                return values
            self._expect(",", "',' or ']'")

    def _block(self, level: int) -> Block:
        opening = self._take()
        fields = self.fields(_CLOSING[opening.text], level + 1)
        closing = self._take()
        return Block(fields, Span(opening.span.start, closing.span.end))

    def _scalar(self) -> Scalar:
        token = self._now
        if token.kind == "string":
            return self._strings()
        if token.text == "-":
            return self._negative()
        if token.kind not in ("integer", "float", "identifier"):
            raise self._unexpected("a value")
        return _plain(self._take())

    def _strings(self) -> Scalar:
        """Strings that follow each other are one."""
        first = last = self._now
        pieces = []
        while self._now.kind == "string":
            last = self._take()
            pieces.append(string(last))
        return Scalar("string", b"".join(pieces), Span(first.span.start, last.span.end))

    def _negative(self) -> Scalar:
        minus, token = self._take(), self._now
        infinite = token.kind == "identifier" and token.text.lower() in _FLOATS
        if token.kind not in ("integer", "float") and not infinite:
            raise self._unexpected("a number after '-'")
        plain = _plain(self._take())
        span = Span(minus.span.start, plain.span.end)
        if infinite:
            return Scalar("float", -_FLOATS[token.text.lower()], span)
        assert isinstance(plain.value, int | float)  # noqa: S101
        return Scalar(plain.kind, -plain.value, span)

    def _accept(self, symbol: str) -> bool:
        # No token of another kind reads like a symbol.
        if self._now.text != symbol:
            return False
        self._take()
        return True

    def _expect(self, symbol: str, what: str) -> Token:
        if self._now.text != symbol:
            raise self._unexpected(what)
        return self._take()

    def _take(self) -> Token:
        token = self._now
        if token.kind != "end":
            self._now = next(self._tokens)
        return token

    def _unexpected(self, wanted: str) -> TextprotoError:
        token = repr(self._now.text) if self._now.text else "the end of the file"
        return TextprotoError(f"expected {wanted}, found {token}", self._now.span)


_FLOATS = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}


def _plain(token: Token) -> Scalar:
    if token.kind == "integer":
        return Scalar("integer", integer(token), token.span)
    if token.kind == "float":
        return Scalar("float", float(token.text.rstrip("fF")), token.span)
    return Scalar("identifier", token.text, token.span)
