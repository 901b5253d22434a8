# SPDX-License-Identifier: Apache-2.0
"""What can be done to the text of a config.pbtxt: each may leave it valid, or break it."""

from __future__ import annotations

import re
from collections.abc import Callable

from hypothesis import strategies as st

from tests.differential.drafts import Draw, pick

TextTouch = Callable[[Draw, str], str | bytes | None]

_NUMBERS = (
    "-1", "0", "00", "08", "010", "0x4", "1.0", "1e1", "4294967296", "9999999999999999999", "4f",
    "'4'", '"4"', "TYPE_FP32", "true", "-0", "+1", "1 2", "- 1", "inf", "",
)  # fmt: skip
_STRINGS = (
    "''", '"a" "b"', "'x'", "IN0", r'"\q"', r'"\x41"', '"é"', '"a\nb"', r'"\u00e9"',
    r'"\U0010FFFF"', r'"\ud800"', r'"\400"', r'"\377"', r'"\0"', "${name}", '"{{ name }}"', "3",
    '"a', "TYPE_FP32", "{ }", "[ ]", '"\t"', r'"\?"',
)  # fmt: skip
_INSERTED = ("{", "}", "[", "]", ",", ";", ":", "#", "x", "0", '"', "'", "\\", "é", "\x00", "\xa0",
             "<", ">", "-", "$", "\n", "\r", "\f", "\x01", "/", ".")  # fmt: skip
_ADDED = (
    "max_batch_size: 0", "max_batchsize: 4", 'platform: ""', "input [ ]", "input: [ ]", "input { }",
    "output [ { } ]", "parameters { }", 'parameters { key: "a" }', "dynamic_batching",
    'parameters { key: "a" value { string_value: "b" } }\nparameters { key: "a" value { } }',
    "dynamic_batching { }", "dynamic_batching: { }", "dynamic_batching < >", "model_metrics { }",
    "dynamic_batching { };", "version_policy: { all { } }", 'version_policy { all { } latest { } }',
    "[ext]: 3", "[a.b/c.d] { }", "# a comment", "#", "1: 2", 'name: "m"', "name: [ ]", "junk",
    "optimization { priority: 1 }", "optimization { priority: PRIORITY_MAX }",
    "optimization { priority: 'PRIORITY_MAX' }", "optimization { priority: HIGH }",
    "instance_group [ { kind: KIND_CPU } ]", "instance_group { kind: CPU }",
    "instance_group [ { kind: KIND_CPU, count: 1, } ]", "instance_group { kind: 2 count: 0 }",
    "metric_tags { key: 'a' value: 'b' }", "metric_tags { key: 'a' value: 'b' key: 'c' }",
    "metric_tags: [ { key: 'a' value: 'b' }, { key: 'a' value: 'c' } ]", "metric_tags { value: 3 }",
    "response_cache { enable: t }", "response_cache { enable: 1 }", "response_cache { enable: 2 }",
    "response_cache { enable: TRUE }", "response_cache { enable: yes }",
    "sequence_batching { direct { minimum_slot_utilization: 1f } }",
    "sequence_batching { direct { minimum_slot_utilization: nan } }",
    "sequence_batching { direct { minimum_slot_utilization: 1e400 } }",
    "sequence_batching { direct { minimum_slot_utilization: -inf } }",
)  # fmt: skip


def _replaced(draw: Draw, text: str, pattern: str, values: tuple[str, ...]) -> str:
    places = list(re.finditer(pattern, text))
    if not places:
        return text
    place = pick(draw, *places)
    return text[: place.start()] + str(pick(draw, *values)) + text[place.end() :]


def number(draw: Draw, text: str) -> str:
    """A number becomes another one, or none."""
    return _replaced(draw, text, r"(?<=[ \[])-?\d+\b", _NUMBERS)


def string(draw: Draw, text: str) -> str:
    """A string becomes another one, or none."""
    return _replaced(draw, text, r'"[^"\n]*"', _STRINGS)


def word(draw: Draw, text: str) -> str:
    """A field's or a value's name with one letter more, less, or other."""
    words = list(re.finditer(r"\b[A-Za-z_]{3,}\b", text))
    if not words:
        return text
    found = pick(draw, *words)
    old = found.group()
    at = draw(st.integers(0, len(old) - 1))
    new = pick(draw, old[:at] + old[at + 1 :], old[:at] + "x" + old[at:], old.upper(), old + "s")
    return text[: found.start()] + str(new) + text[found.end() :]


def character_gone(draw: Draw, text: str) -> str:
    """One less."""
    at = draw(st.integers(0, max(len(text) - 1, 0)))
    return text[:at] + text[at + 1 :]


def character_more(draw: Draw, text: str) -> str:
    """One more."""
    at = draw(st.integers(0, len(text)))
    return text[:at] + str(pick(draw, *_INSERTED)) + text[at:]


def line_twice(draw: Draw, text: str) -> str:
    """A line again."""
    lines = text.splitlines(keepends=True)
    at = draw(st.integers(0, max(len(lines) - 1, 0)))
    return "".join([*lines[: at + 1], *lines[at:]])


def line_gone(draw: Draw, text: str) -> str:
    """A line less."""
    lines = text.splitlines(keepends=True)
    at = draw(st.integers(0, max(len(lines) - 1, 0)))
    return "".join([*lines[:at], *lines[at + 1 :]])


def added(draw: Draw, text: str) -> str:
    """Something more at the end, or at the beginning."""
    more = pick(draw, *_ADDED)
    return f"{more}\n{text}" if draw(st.booleans()) else f"{text}\n{more}\n"


def separators(draw: Draw, text: str) -> str:
    """Commas and semicolons that protobuf takes, and does not."""
    separator = pick(draw, ",", ";", ";;", ",,")
    return text.replace("\n", f"{separator}\n", draw(st.integers(1, 3)))


def pointed(draw: Draw, text: str) -> str:
    """Angle brackets for braces, all or half of them."""
    text = text.replace("{", "<")
    return text.replace("}", ">") if draw(st.booleans()) else text


def encoding(draw: Draw, text: str) -> str | bytes:
    """Marks, ends of lines, bytes that are no UTF-8."""
    return draw(  # type: ignore[no-any-return]
        st.sampled_from(
            [
                "\ufeff" + text,
                text.replace("\n", "\r\n"),
                text.replace("\n", "\r"),
                text.encode() + b"# \xff\n",
                text.encode() + b"\xff\n",
                text.encode().replace(b"IN0", b"\xff", 1),
                text.encode("utf-16"),
                text + "\x1a",
                text + "\n" * 1000,
            ]
        )
    )


def whole_file(draw: Draw, text: str) -> str | bytes | None:
    """Nothing, or nothing that means anything, or no file."""
    return draw(  # type: ignore[no-any-return]
        st.sampled_from(["", "\n", "# nothing\n", "junk", b"\x00\x01\x02\xff" * 8, "{}", None])
    )


TEXT_TOUCHES: tuple[TextTouch, ...] = (
    number, string, word, character_gone, character_more, line_twice, line_gone, added, separators,
    pointed, encoding, whole_file,
)  # fmt: skip
