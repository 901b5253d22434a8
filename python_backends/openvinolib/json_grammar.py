# SPDX-License-Identifier: Apache-2.0
"""Convert a JSON schema into an xgrammar grammar that allows no padding.

xgrammar's own conversion allows any whitespace between two JSON tokens, which a small model
continues to its limit. It also allows 42.0 as an integer, which many readers reject, and unlimited
digits. The library has no setting for either. Here a space may follow a comma and a colon, integers
have up to 18 digits, and \\u escapes are characters. Other schemas use xgrammar's conversion.

Properties come in the order of the schema. Additional ones are allowed only if the schema names no
property or `additionalProperties` is a schema, as in xgrammar's strict mode.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_BASE = r"""
any ::= object | array | string | number | boolean | null
object ::= "{" (string colon any (comma string colon any)*)? "}"
array ::= "[" (any (comma any)*)? "]"
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" code)
code ::= [0-9A-Ca-cEeFf] hex hex hex | [Dd] [0-7] hex hex
hex ::= [0-9A-Fa-f]
integer ::= "0" | "-"? natural
natural ::= [1-9] [0-9]{0,17}
number ::= "-"? ("0" | [1-9] [0-9]{0,17}) ("." [0-9]{1,17})? ([eE] [+-]? [0-9]{1,2})?
boolean ::= "true" | "false"
null ::= "null"
comma ::= "," " "?
colon ::= ":" " "?
"""
_MAX_INTEGER = 10**18 - 1  # integers with more digits lose some in many readers
ANY_JSON = "root ::= object | array\n" + _BASE
_ANNOTATIONS = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions"),
}
_KEYS: Mapping[str, Collection[str]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "number": (),
    "boolean": (),
    "null": (),
}
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def schema_grammar(schema: Any) -> str | None:
    """Return the grammar; None for a schema with unsupported keywords."""
    grammar = _Grammar(schema)
    try:
        root = grammar.value(schema)
    except _UnsupportedSchemaError:
        return None
    rules = {"root": root, **grammar.rules}
    return "\n".join(f"{name} ::= {body}" for name, body in rules.items()) + _BASE


class _UnsupportedSchemaError(Exception):
    """The schema needs xgrammar's own conversion."""


class _Grammar:
    """The rules of a schema's grammar. Methods return the right-hand side of a rule."""

    def __init__(self, root: Any) -> None:
        self.rules: dict[str, str] = {}
        self._root = root
        self._names: dict[str, str] = {}  # rule name by reference

    def value(self, schema: Any) -> str:
        if schema is True:
            return "any"
        if not isinstance(schema, dict):
            raise _UnsupportedSchemaError
        keys = set(schema) - _ANNOTATIONS
        if not keys:
            return "any"
        if keys == {"$ref"}:
            return self._reference(schema["$ref"])
        if keys <= {"enum", "const", "type"} and keys & {"enum", "const"}:
            return _values(schema)
        for key in ("anyOf", "oneOf", "allOf"):
            if keys == {key}:
                return self._choice(schema[key], max_choices=1 if key == "allOf" else None)
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not kinds or not all(isinstance(kind, str) and kind in _KEYS for kind in kinds):
            raise _UnsupportedSchemaError
        if keys - {"type"} - {key for kind in kinds for key in _KEYS[kind]}:
            raise _UnsupportedSchemaError
        return _either([self._typed_value(kind, schema) for kind in kinds])

    def _typed_value(self, kind: str, schema: Schema) -> str:
        writers: dict[str, Callable[[Schema], str]] = {
            "object": self._object,
            "array": self._array,
            "string": _string,
            "integer": _integer,
        }
        return writers[kind](schema) if kind in writers else kind

    def _choice(self, schemas: Any, max_choices: int | None) -> str:
        if (
            not isinstance(schemas, list)
            or not schemas
            or len(schemas) > (max_choices or len(schemas))
        ):
            raise _UnsupportedSchemaError
        return _either([self.value(schema) for schema in schemas])

    def _reference(self, target: Any) -> str:
        if target not in self._names:
            name = self._names[target] = f"ref{len(self._names)}"
            self.rules[name] = ""  # reserved: the definition may be recursive
            self.rules[name] = self.value(self._definition(target))
        return self._names[target]

    def _definition(self, target: Any) -> Any:
        if target == "#":
            return self._root
        if isinstance(target, str):
            for key in ("$defs", "definitions"):
                name = target.removeprefix(f"#/{key}/")
                definitions = self._root.get(key)
                if name != target and isinstance(definitions, dict) and name in definitions:
                    return definitions[name]
        raise _UnsupportedSchemaError

    def _array(self, schema: Schema) -> str:
        item = self._add_rule(self.value(schema.get("items", True)))
        min_items, max_items = _bounds(schema, "minItems", "maxItems")
        if max_items == 0:
            return '"[]"'
        limit = "" if max_items is None else max_items - 1
        more_items = f"(comma {item}){{{max(min_items, 1) - 1},{limit}}}"
        items = f"{item} {more_items}"
        return f'"[" {items} "]"' if min_items else f'"[" ({items})? "]"'

    def _object(self, schema: Schema) -> str:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        additional = schema.get("additionalProperties")
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _UnsupportedSchemaError
        if not set(required) <= set(properties):
            raise _UnsupportedSchemaError
        if properties:
            if additional not in (None, False):
                raise _UnsupportedSchemaError
            return f'"{{" {self._members(properties, required)} "}}"'
        if additional is False or ("properties" in schema and additional is None):
            return '"{}"'
        member = self._add_rule(
            f"string colon ({self.value(True if additional is None else additional)})"
        )
        return f'"{{" ({member} (comma {member})*)? "}}"'

    def _members(self, properties: Mapping[str, Any], required: Sequence[str]) -> str:
        """Add two rules per property: for it and the following ones, with and without a comma."""
        first, later = '""', '""'
        for key, schema in reversed(list(properties.items())):
            name = f"p{len(self.rules)}"
            self.rules[name] = ""
            member = f"{_literal(json.dumps(key, ensure_ascii=False))} colon ({self.value(schema)})"
            self.rules[name] = f"{member} {later}"
            is_optional = key not in required
            first = self._add_rule(f"{name} | {first}" if is_optional else name)
            later = self._add_rule(f"comma {name} | {later}" if is_optional else f"comma {name}")
        return first

    def _add_rule(self, body: str) -> str:
        name = f"r{len(self.rules)}"
        self.rules[name] = body
        return name


def _string(schema: Schema) -> str:
    min_length, max_length = _bounds(schema, "minLength", "maxLength")
    if not min_length and max_length is None:
        return "string"
    return f'"\\"" char{{{min_length},{"" if max_length is None else max_length}}} "\\""'


def _integer(schema: Schema) -> str:
    lower_limit = _limit(schema, "minimum", "exclusiveMinimum", 1)
    upper_limit = _limit(schema, "maximum", "exclusiveMaximum", -1)
    low = -_MAX_INTEGER if lower_limit is None else max(lower_limit, -_MAX_INTEGER)
    high = _MAX_INTEGER if upper_limit is None else min(upper_limit, _MAX_INTEGER)
    if low > high:
        raise _UnsupportedSchemaError
    if (low, high) == (-_MAX_INTEGER, _MAX_INTEGER):
        return "integer"
    bodies = ['"0"'] if low <= 0 <= high else []
    if high > 0:
        bodies += _naturals(max(low, 1), high)
    if low < 0:
        bodies += [f'"-" ({body})' for body in _naturals(max(-high, 1), -low)]
    return _either(bodies)


def _naturals(minimum: int, maximum: int) -> list[str]:
    """Return rules for numbers from 1 on, one per number of digits."""
    if (minimum, maximum) == (1, _MAX_INTEGER):
        return ["natural"]
    bodies = []
    for digits in range(len(str(minimum)), len(str(maximum)) + 1):
        low, high = max(minimum, 10 ** (digits - 1)), min(maximum, 10**digits - 1)
        bodies.append(_digits(str(low), str(high)))
    return bodies


def _digits(low: str, high: str) -> str:
    """Return the rule for numbers from `low` to `high`, both with the same number of digits."""
    tail_length = len(low) - 1
    first, last = int(low[0]), int(high[0])
    if low[1:] == "0" * tail_length and high[1:] == "9" * tail_length:
        return f"[{first}-{last}]" + (f" [0-9]{{{tail_length}}}" if tail_length else "")
    if first == last:
        return f'"{first}" ({_digits(low[1:], high[1:])})'
    bodies = [f'"{first}" ({_digits(low[1:], "9" * tail_length)})']
    if last - first > 1:
        bodies.append(f"[{first + 1}-{last - 1}] [0-9]{{{tail_length}}}")
    return _either([*bodies, f'"{last}" ({_digits("0" * tail_length, high[1:])})'])


def _limit(schema: Schema, inclusive: str, exclusive: str, step: int) -> int | None:
    limits = {key: schema[key] for key in (inclusive, exclusive) if key in schema}
    if len(limits) > 1 or not all(type(value) is int for value in limits.values()):
        raise _UnsupportedSchemaError
    for key, value in limits.items():
        return int(value) + (step if key == exclusive else 0)
    return None


def _bounds(schema: Schema, min_key: str, max_key: str) -> tuple[int, int | None]:
    low, high = schema.get(min_key, 0), schema.get(max_key)
    if type(low) is not int or low < 0 or not (high is None or (type(high) is int and high >= low)):
        raise _UnsupportedSchemaError
    return low, high


def _values(schema: Schema) -> str:
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(values, list):
        raise _UnsupportedSchemaError
    kinds = schema.get("type", list(_PYTHON_TYPES))
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not all(isinstance(kind, str) and kind in _PYTHON_TYPES for kind in kinds):
        raise _UnsupportedSchemaError
    types = {each for kind in kinds for each in _PYTHON_TYPES[kind]}
    matching = [value for value in values if type(value) in types]
    if not matching or ("enum" in schema and "const" in schema):
        raise _UnsupportedSchemaError
    return _either([_literal(json.dumps(value, ensure_ascii=False)) for value in matching])


def _either(bodies: Sequence[str]) -> str:
    return bodies[0] if len(bodies) == 1 else " | ".join(f"({body})" for body in bodies)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
