# SPDX-License-Identifier: Apache-2.0
"""Characters that word processors and Windows shells put in place of ASCII's.

Protobuf's text format knows no others outside strings and comments.
"""

from __future__ import annotations

import re
import unicodedata

from tritonctl.checks.source_span import Span

# Python's "surrogateescape" reads bytes that are not UTF-8 as these.
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF
_UTF16_MARKS = ("\udcff\udcfe", "\udcfe\udcff")
_BYTE_ORDER_MARK = "\ufeff"

_DOUBLE = "\u201c\u201d\u201e\u201f\u2033"
_SINGLE = "\u2018\u2019\u201a\u201b\u2032"
_REPLACEMENTS = {
    **dict.fromkeys(_DOUBLE, '"'),
    **dict.fromkeys(_SINGLE, "'"),
    **dict.fromkeys("\xa0\u1680\u202f\u205f\u3000", " "),
    **dict.fromkeys(map(chr, range(0x2000, 0x200B)), " "),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
    **dict.fromkeys(f"\xad\u200b\u200c\u200d\u2060{_BYTE_ORDER_MARK}", ""),
}
_ALONE = "".join(sorted(set(_REPLACEMENTS) - set(_DOUBLE + _SINGLE)))
_REPLACED = re.compile(
    rf"""
    \#[^\n]*
  | (?P<string>(["'])(?:(?!\2)[^\\\n]|\\.)*+(?P<closed>\2?))
  | [{_DOUBLE}](?P<double>[^{_DOUBLE}"\\\n]*+)[{_DOUBLE}"]
  | [{_SINGLE}](?P<single>[^{_SINGLE}'\\\n]*+)[{_SINGLE}']
  | (?P<alone>[{_ALONE}])
    """,
    re.VERBOSE,
)


def is_utf16(text: str) -> bool:
    """Whether a text that was read as UTF-8 begins with UTF-16's mark."""
    return text.startswith(_UTF16_MARKS)


def describe_character(character: str) -> str:
    """Name a character for a message; show a byte outside UTF-8 in hexadecimal."""
    code = ord(character)
    if _FIRST_BYTE <= code <= _LAST_BYTE:
        return f"byte 0x{code & 0xFF:02X}"
    is_mark = character == _BYTE_ORDER_MARK
    name = "byte order mark" if is_mark else unicodedata.name(character, "").lower()
    if character.isascii() or not name:
        return f"character {character!r}"
    shown = f" {character}" if character.isprintable() else ""
    return f"{name}{shown} U+{code:04X}"


def ascii_remedy(character: str) -> str | None:
    """Say what belongs in a character's place, if it stands for another."""
    plain = _REPLACEMENTS.get(character)
    if plain is None:
        return None
    return f"write {'a space' if plain == ' ' else plain} in its place" if plain else "remove it"


def as_ascii(text: str) -> tuple[Span, str] | None:
    """Return the part with such characters outside strings and comments, and its right text."""
    found = [match for match in _REPLACED.finditer(text) if _replacement(match) != match[0]]
    if not found:
        return None
    span = Span(found[0].start(), found[-1].end())
    return span, _REPLACED.sub(_replacement, text[span.start : span.end])


def _replacement(match: re.Match[str]) -> str:
    """Return what belongs in the place of a match: for a string or comment, itself."""
    for quote, group in (('"', "double"), ("'", "single")):
        if match[group] is not None:
            return f"{quote}{match[group]}{quote}"
    if match["alone"]:
        return _REPLACEMENTS[match["alone"]]
    if match["string"] and not match["closed"]:
        return _closed(match[0])
    return match[0]


def _closed(unclosed: str) -> str:
    """Close a string whose second quote alone is of another kind."""
    quote = unclosed[0]
    others = [each for each in unclosed if each in (_DOUBLE if quote == '"' else _SINGLE)]
    return unclosed.replace(others[0], quote) if len(others) == 1 else unclosed
