# SPDX-License-Identifier: Apache-2.0
"""Checks JSON against loadplan.schema.json; every complaint names the field's path.

The host makes that file of the models of its project file, so that each field's name, type, limits
and default are written once. What fields mean together is checked where they are used.
"""

from __future__ import annotations

import difflib
import json
import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadlib.refusal import Refusal

_FILE = Path(__file__).resolve().parents[1] / "loadplan.schema.json"
_DEFINITIONS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))["$defs"]
SCHEMA: str = _DEFINITIONS["LoadPlan"]["properties"]["schema"]["const"]
_ROOT = "plan."
_LIMITS = (
    ("minimum", operator.ge, "at least"),
    ("exclusiveMinimum", operator.gt, "more than"),
    ("maximum", operator.le, "at most"),
    ("exclusiveMaximum", operator.lt, "less than"),
)


def refused(where: str, problem: str, remedy: str) -> Refusal:
    """What is wrong with the field at `where`."""
    return Refusal(f"{where}: {problem}", remedy=remedy)


def nearest(word: str, known: Sequence[str]) -> str:
    """`did you mean "x"? known: ...`"""
    close = difflib.get_close_matches(word, known, n=1)
    hint = f'did you mean "{close[0]}"? ' if close else ""
    return f"{hint}known: {', '.join(known)}"


def is_number(value: Any) -> bool:
    """Whether it is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def checked(name: str, content: Any, where: str) -> dict[str, Any]:
    """An object with all its fields, defaults filled in; Refusal where something is wrong.

    `name`: of its definition in the schema. Fields that are null count as left out.
    """
    fields: dict[str, Any] = _checked(content, where, _DEFINITIONS[name])
    return fields


def choices(name: str, field: str) -> list[str]:
    """The values that a field of a definition may have."""
    return list(_DEFINITIONS[name]["properties"][field]["enum"])


def _checked(content: Any, where: str, schema: dict[str, Any]) -> Any:
    schema = _chosen(content, where, schema)
    kind = schema["type"]
    if kind == "object":
        return _object(content, where, schema)
    if kind == "array":
        return _array(content, where, schema)
    if kind == "boolean":
        if not isinstance(content, bool):
            raise refused(where, f"{content!r} is neither true nor false", "give one of them")
    elif kind == "string":
        _check_text(content, where, schema)
    else:
        _check_number(content, where, schema)
    return content


def _chosen(content: Any, where: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that is meant: of a reference, of a process of arrivals, of a number or object."""
    if "discriminator" in schema:
        field, kinds = schema["discriminator"]["propertyName"], schema["discriminator"]["mapping"]
        kind = content.get(field) if isinstance(content, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            problem = "missing" if kind is None else f"unknown: {kind!r}"
            raise refused(_at(where, field), problem, nearest(str(kind), list(kinds)))
        return _referred({"$ref": kinds[kind]})
    if "oneOf" in schema and "type" not in schema:
        options = [_referred(option) for option in schema["oneOf"]]
        wanted = isinstance(content, dict)
        return next(option for option in options if (option["type"] == "object") == wanted)
    return _referred(schema)


def _referred(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    definition: dict[str, Any] = _DEFINITIONS[schema["$ref"].rpartition("/")[2]]
    return definition


def _at(where: str, name: str) -> str:
    """The path of a field; what is inside the plan's fields needs no `plan.` before it."""
    return f"{where.removeprefix(_ROOT)}.{name}"


def _object(content: Any, where: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    if not isinstance(content, dict):
        raise refused(where, f"{content!r} is not an object", f"give {', '.join(properties)}")
    given = {name: value for name, value in content.items() if value is not None}
    if not properties:  # tensors by name
        return given
    for name in content:
        if name not in properties:
            remedy = nearest(str(name), list(properties))
            raise refused(_at(where, name), "unknown field", remedy)
    for name in schema.get("required", ()):
        if name not in given:
            raise refused(_at(where, name), "missing", f"add {name} to {where}")
    # Both ways in which this schema says "exactly one of".
    exclusive = [name for one in schema.get("oneOf", ()) for name in one["required"]]
    exclusive = list(properties) if "maxProperties" in schema else exclusive
    if exclusive and len(given.keys() & exclusive) != 1:
        names = ", ".join(exclusive)
        raise refused(where, f"needs exactly one of {names}", f"give one of {names}")
    return {
        name: _checked(given[name], _at(where, name), one) if name in given else one.get("default")
        for name, one in properties.items()
    }


def _array(content: Any, where: str, schema: dict[str, Any]) -> list[Any]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not isinstance(content, list) or not least <= len(content) <= most:
        count = f"{least}" if least == most else f"{least} or more"
        raise refused(where, f"{content!r} is not a list of {count}", f"give a list of {count}")
    inside = where.removeprefix(_ROOT)
    return [
        _checked(item, f"{inside}[{number}]", schema["items"])
        for number, item in enumerate(content)
    ]


def _check_text(content: Any, where: str, schema: dict[str, Any]) -> None:
    if not isinstance(content, str):
        raise refused(where, f"{content!r} is not a string", "give a string")
    known = schema.get("enum") or [schema["const"]] if {"enum", "const"} & schema.keys() else []
    if known and content not in known:
        raise refused(where, f"unknown: {content!r}", nearest(content, known))


def _check_number(content: Any, where: str, schema: dict[str, Any]) -> None:
    if not is_number(content):
        raise refused(where, f"{content!r} is not a number", "give a number")
    if schema["type"] == "integer" and not isinstance(content, int):
        raise refused(where, f"{content!r} is not a whole number", "give a whole number")
    for name, holds, words in _LIMITS:
        if name in schema and not holds(content, schema[name]):
            raise refused(where, f"{content:g} is out of range", f"give {words} {schema[name]}")
