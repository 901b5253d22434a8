# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as grammars: what a grammar takes, by the regular expression that it amounts to.

tests/server/test_guides.py has the real compiler and recursive schemas.
"""

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvinolib.json_grammar import ANY_JSON, schema_grammar

_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[^}]*\}|\w+|[()|*+?]')
PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 3, "description": "first"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "日本"]}, "maxItems": 2},
        "score": {"type": ["number", "null"]},
    },
    "required": ["age", "score"],
    "additionalProperties": False,
}


@cache
def _expression(grammar: str) -> re.Pattern[str]:
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines() if line)

    def expanded(body: str) -> str:
        words = [word[0] for word in _WORD.finditer(body)]
        return "".join(
            f"(?:{re.escape(json.loads(word))})"
            if word.startswith('"')
            else f"(?:{expanded(rules[word])})"
            if word[0].isalnum()
            else word
            for word in words
        )

    return re.compile(expanded("root"))


def takes(schema: Any, text: str) -> bool:
    """Whether an answer by the schema may be this text."""
    grammar = schema_grammar(schema)
    assert grammar is not None
    return _expression(grammar).fullmatch(text) is not None


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('{"name": "Ada", "age": 36, "tags": ["a", "日本"], "score": 1.5}', True),
        ('{"age":130,"score":null}', True),
        ('{"age": 0, "tags": [], "score": -2e10}', True),
        ('{"name": "Ada", "age": 36}', False),
        ('{"name": "", "age": 36, "score": 1}', False),
        ('{"name": "Adam", "age": 36, "score": 1}', False),
        ('{"age": 131, "score": 1}', False),
        ('{"age": 36.0, "score": 1}', False),
        ('{"age": 36, "score": 1, "more": 1}', False),
        ('{"score": 1, "age": 36}', False),
        ('{ "age": 36, "score": 1}', False),
        ('{"age":\n36, "score": 1}', False),
        ('{"age": 36, "tags": ["a", "a", "a"], "score": 1}', False),
    ],
)
def test_an_object(text: str, good: bool) -> None:
    """Properties in their order, optional ones too, and no whitespace but a space."""
    assert takes(PERSON, text) is good


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, ["0", "-7", "9" * 18], ["42.0", "-0", "007", "9" * 19, "--7"]),
        ({"type": "number"}, ["0", "-0.5", "4e2", "1.25E-3"], [".5", "1.", "1e999", "0x1"]),
        ({"type": "string"}, ['"a\\n\\u00e9 é"', '""'], ['"\\udC00"', '"\n"', '"\\x"', "a", '"']),
        ({"const": {"a": [1, "é"]}}, ['{"a": [1, "é"]}'], ['{"a": [1]}']),
        ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
        ({"type": "array", "items": {"type": "null"}, "minItems": 1}, ["[null, null]"], ["[]"]),
        ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
        ({"type": "object", "properties": {}}, ["{}"], ['{"a": 1}']),
        (
            {"type": "object", "additionalProperties": {"type": "boolean"}},
            ["{}", '{"a": true, "b":false}'],
            ['{"a": 1}'],
        ),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"const": 1}}},
         ["null", "1"], ["2"]),
    ],
)  # fmt: skip
def test_values(schema: Any, good: list[str], bad: list[str]) -> None:
    """Each kind, and what no reader would take for it."""
    assert [text for text in good if not takes(schema, text)] == []
    assert [text for text in bad if takes(schema, text)] == []


@given(st.integers(-2000, 2000), st.integers(0, 3000), st.integers(-6000, 6000))
def test_ranges(least: int, width: int, value: int) -> None:
    """Exactly the integers from one to the other, in whichever words the bounds come."""
    most = least + width
    inclusive = {"type": "integer", "minimum": least, "maximum": most}
    exclusive = {"type": "integer", "exclusiveMinimum": least - 1, "exclusiveMaximum": most + 1}
    for schema in (inclusive, exclusive):
        for each in (value, least, most, least - 1, most + 1):
            assert takes(schema, str(each)) is (least <= each <= most), each


@pytest.mark.parametrize(("key", "sign"), [("minimum", 1), ("maximum", -1)])
def test_half_open_ranges(key: str, sign: int) -> None:
    """Up to 18 digits."""
    for bound in (-250, -1, 0, 1, 250):
        for value in (-(10**17), -251, -250, -1, 0, 1, 249, 250, 10**17):
            said = takes({"type": "integer", key: bound}, str(value))
            assert said is (sign * value >= sign * bound), (bound, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a$"},
        {"type": "string", "format": "date"},
        {"type": "number", "minimum": 0},
        {"type": "object", "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        {"type": "object", "required": ["a"]},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "array", "prefixItems": [{}]},
        {"type": "objekt"},
        {"$ref": "#/$defs/none"},
        {"anyOf": []},
        {"enum": []},
        {"allOf": [{}, {}]},
        False,
        7,
    ],
)
def test_what_is_left_to_the_library(schema: Any) -> None:
    """Wherever it stands: a grammar is not followed in part."""
    assert schema_grammar(schema) is None
    assert schema_grammar({"type": "array", "items": schema}) is None


def test_recursive_schemas_have_rules() -> None:
    """Of each schema once, so that a grammar has a size like its schema's."""
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
        "required": ["next"],
    }
    grammar = schema_grammar({"$ref": "#/$defs/n", "$defs": {"n": node}})
    assert grammar is not None
    assert grammar.startswith("root ::= ref0\n")
    assert ANY_JSON.startswith("root ::= object | array\n")
    deep: Any = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "additionalProperties": {"type": "array", "items": deep}}
    assert len(schema_grammar(deep) or "") < 20_000
