# SPDX-License-Identifier: Apache-2.0
"""A JSON schema as a grammar of xgrammar's that leaves nothing to be padded.

xgrammar's own takes any whitespace between two tokens of JSON, and a small model goes on with it
until its limit; it takes 42.0 for an integer, which many readers do not, and digits without end.
The library's call has no setting for either. Here a space may follow a comma and a colon, integers
have up to 18 digits, and \\u escapes are characters. What is not written here is xgrammar's.

Properties come in the order of the schema; others only where the schema names no property or gives
`additionalProperties` a schema of its own, as in xgrammar's strict mode.
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
_LARGEST = 10**18 - 1  # integers with more digits lose some in many readers
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


def grammar_of(schema: Any) -> str | None:
    """The grammar; None for a schema that has more than is written here."""
    grammar = _Grammar(schema)
    try:
        root = grammar.value(schema)
    except _NotWrittenError:
        return None
    rules = {"root": root, **grammar.rules}
    return "\n".join(f"{name} ::= {body}" for name, body in rules.items()) + _BASE


class _NotWrittenError(Exception):
    """xgrammar's own conversion has to do it."""


class _Grammar:
    """The rules that a schema needs. Methods give what stands on the right of a rule."""

    def __init__(self, root: Any) -> None:
        self.rules: dict[str, str] = {}
        self._root = root
        self._names: dict[str, str] = {}  # of references

    def value(self, schema: Any) -> str:
        if schema is True:
            return "any"
        if not isinstance(schema, dict):
            raise _NotWrittenError
        keys = set(schema) - _ANNOTATIONS
        if not keys:
            return "any"
        if keys == {"$ref"}:
            return self._reference(schema["$ref"])
        if keys <= {"enum", "const", "type"} and keys & {"enum", "const"}:
            return _values(schema)
        for key in ("anyOf", "oneOf", "allOf"):
            if keys == {key}:
                return self._choice(schema[key], most=1 if key == "allOf" else None)
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not kinds or not all(isinstance(kind, str) and kind in _KEYS for kind in kinds):
            raise _NotWrittenError
        if keys - {"type"} - {key for kind in kinds for key in _KEYS[kind]}:
            raise _NotWrittenError
        return _either([self._typed(kind, schema) for kind in kinds])

    def _typed(self, kind: str, schema: Schema) -> str:
        writers: dict[str, Callable[[Schema], str]] = {
            "object": self._object,
            "array": self._array,
            "string": _string,
            "integer": _integer,
        }
        return writers[kind](schema) if kind in writers else kind

    def _choice(self, schemas: Any, most: int | None) -> str:
        if not isinstance(schemas, list) or not schemas or len(schemas) > (most or len(schemas)):
            raise _NotWrittenError
        return _either([self.value(schema) for schema in schemas])

    def _reference(self, target: Any) -> str:
        if target not in self._names:
            name = self._names[target] = f"ref{len(self._names)}"
            self.rules[name] = ""  # its place; it may be recursive
            self.rules[name] = self.value(self._found(target))
        return self._names[target]

    def _found(self, target: Any) -> Any:
        if target == "#":
            return self._root
        if isinstance(target, str):
            for key in ("$defs", "definitions"):
                name = target.removeprefix(f"#/{key}/")
                named = self._root.get(key)
                if name != target and isinstance(named, dict) and name in named:
                    return named[name]
        raise _NotWrittenError

    def _array(self, schema: Schema) -> str:
        item = self._rule(self.value(schema.get("items", True)))
        least, most = _bounds(schema, "minItems", "maxItems")
        if most == 0:
            return '"[]"'
        rest = f"(comma {item}){{{max(least, 1) - 1},{'' if most is None else most - 1}}}"
        items = f"{item} {rest}"
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _object(self, schema: Schema) -> str:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        others = schema.get("additionalProperties")
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _NotWrittenError
        if not set(required) <= set(properties):
            raise _NotWrittenError
        if properties:
            if others not in (None, False):
                raise _NotWrittenError
            return f'"{{" {self._members(properties, required)} "}}"'
        if others is False or ("properties" in schema and others is None):
            return '"{}"'
        member = self._rule(f"string colon ({self.value(True if others is None else others)})")
        return f'"{{" ({member} (comma {member})*)? "}}"'

    def _members(self, properties: Mapping[str, Any], required: Sequence[str]) -> str:
        """Two rules a property: for it and what follows, where one was written before or not."""
        first, later = '""', '""'
        for key, schema in reversed(list(properties.items())):
            name = f"p{len(self.rules)}"
            self.rules[name] = ""
            member = f"{_literal(json.dumps(key, ensure_ascii=False))} colon ({self.value(schema)})"
            self.rules[name] = f"{member} {later}"
            skips = key not in required
            first = self._rule(f"{name} | {first}" if skips else name)
            later = self._rule(f"comma {name} | {later}" if skips else f"comma {name}")
        return first

    def _rule(self, body: str) -> str:
        name = f"r{len(self.rules)}"
        self.rules[name] = body
        return name


def _string(schema: Schema) -> str:
    least, most = _bounds(schema, "minLength", "maxLength")
    if not least and most is None:
        return "string"
    return f'"\\"" char{{{least},{"" if most is None else most}}} "\\""'


def _integer(schema: Schema) -> str:
    given_least = _limit(schema, "minimum", "exclusiveMinimum", 1)
    given_most = _limit(schema, "maximum", "exclusiveMaximum", -1)
    least = -_LARGEST if given_least is None else max(given_least, -_LARGEST)
    most = _LARGEST if given_most is None else min(given_most, _LARGEST)
    if least > most:
        raise _NotWrittenError
    if (least, most) == (-_LARGEST, _LARGEST):
        return "integer"
    bodies = ['"0"'] if least <= 0 <= most else []
    if most > 0:
        bodies += _naturals(max(least, 1), most)
    if least < 0:
        bodies += [f'"-" ({body})' for body in _naturals(max(-most, 1), -least)]
    return _either(bodies)


def _naturals(least: int, most: int) -> list[str]:
    """Numbers from 1 on, by how many digits they have."""
    if (least, most) == (1, _LARGEST):
        return ["natural"]
    bodies = []
    for digits in range(len(str(least)), len(str(most)) + 1):
        low, high = max(least, 10 ** (digits - 1)), min(most, 10**digits - 1)
        bodies.append(_digits(str(low), str(high)))
    return bodies


def _digits(low: str, high: str) -> str:
    """Texts of as many digits, from one to the other."""
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else "")
    if first == last:
        return f'"{first}" ({_digits(low[1:], high[1:])})'
    bodies = [f'"{first}" ({_digits(low[1:], "9" * rest)})']
    if last - first > 1:
        bodies.append(f"[{first + 1}-{last - 1}] [0-9]{{{rest}}}")
    return _either([*bodies, f'"{last}" ({_digits("0" * rest, high[1:])})'])


def _limit(schema: Schema, inclusive: str, exclusive: str, step: int) -> int | None:
    given = {key: schema[key] for key in (inclusive, exclusive) if key in schema}
    if len(given) > 1 or not all(type(value) is int for value in given.values()):
        raise _NotWrittenError
    for key, value in given.items():
        return int(value) + (step if key == exclusive else 0)
    return None


def _bounds(schema: Schema, least: str, most: str) -> tuple[int, int | None]:
    low, high = schema.get(least, 0), schema.get(most)
    if type(low) is not int or low < 0 or not (high is None or (type(high) is int and high >= low)):
        raise _NotWrittenError
    return low, high


def _values(schema: Schema) -> str:
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(values, list):
        raise _NotWrittenError
    kinds = schema.get("type", list(_PYTHON_TYPES))
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not all(isinstance(kind, str) and kind in _PYTHON_TYPES for kind in kinds):
        raise _NotWrittenError
    types = {each for kind in kinds for each in _PYTHON_TYPES[kind]}
    taken = [value for value in values if type(value) in types]
    if not taken or ("enum" in schema and "const" in schema):
        raise _NotWrittenError
    return _either([_literal(json.dumps(value, ensure_ascii=False)) for value in taken])


def _either(bodies: Sequence[str]) -> str:
    return bodies[0] if len(bodies) == 1 else " | ".join(f"({body})" for body in bodies)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
