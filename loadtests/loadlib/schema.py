# SPDX-License-Identifier: Apache-2.0
"""Validate JSON against loadplan.schema.json; every error names the field's path.

tritonctl generates that file from its project models, so that each field's name, type, limits and
default have one source. The code that uses fields checks their combinations.
"""

from __future__ import annotations

import difflib
import json
import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadlib.refusal import RunRefusedError

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


def field_error(location: str, problem: str, remedy: str) -> RunRefusedError:
    """Return the error for the field at `location`."""
    return RunRefusedError(f"{location}: {problem}", remedy=remedy)


def suggest(word: str, candidates: Sequence[str]) -> str:
    """Return a remedy: `did you mean "x"? known: ...`"""
    close = difflib.get_close_matches(word, candidates, n=1)
    hint = f'did you mean "{close[0]}"? ' if close else ""
    return f"{hint}known: {', '.join(candidates)}"


def is_number(value: Any) -> bool:
    """Whether the value is a finite number; true and false do not count as numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def validate_object(name: str, content: Any, location: str) -> dict[str, Any]:
    """Return a valid object with defaults filled in; raises RunRefusedError otherwise.

    `name` is its definition in the schema. A null field counts as missing. Paths become Path.
    """
    fields: dict[str, Any] = _validate(content, location, _DEFINITIONS[name])
    return fields


def choices(name: str, field: str) -> list[str]:
    """Return the allowed values of a field of a definition."""
    return list(_DEFINITIONS[name]["properties"][field]["enum"])


def _validate(content: Any, location: str, schema: dict[str, Any]) -> Any:
    schema = _select_schema(content, location, schema)
    kind = schema["type"]
    if kind == "object":
        return _validate_fields(content, location, schema)
    if kind == "array":
        return _validate_items(content, location, schema)
    if kind == "boolean":
        if not isinstance(content, bool):
            raise field_error(
                location, f"{content!r} is neither true nor false", "give one of them"
            )
    elif kind == "string":
        _check_text(content, location, schema)
        return Path(content) if schema.get("format") == "path" else content
    else:
        _check_number(content, location, schema)
    return content


def _select_schema(content: Any, location: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Resolve a schema: a reference, an arrival process, or number versus object."""
    if "discriminator" in schema:
        field, kinds = schema["discriminator"]["propertyName"], schema["discriminator"]["mapping"]
        kind = content.get(field) if isinstance(content, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            problem = "missing" if kind is None else f"unknown: {kind!r}"
            raise field_error(
                _field_location(location, field), problem, suggest(str(kind), list(kinds))
            )
        return _resolve_reference({"$ref": kinds[kind]})
    if "oneOf" in schema and "type" not in schema:
        options = [_resolve_reference(option) for option in schema["oneOf"]]
        is_object = isinstance(content, dict)
        return next(option for option in options if (option["type"] == "object") == is_object)
    return _resolve_reference(schema)


def _resolve_reference(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    definition: dict[str, Any] = _DEFINITIONS[schema["$ref"].rpartition("/")[2]]
    return definition


def _field_location(location: str, name: str) -> str:
    """Return a field's path, without the leading `plan.`."""
    return f"{location.removeprefix(_ROOT)}.{name}"


def _validate_fields(content: Any, location: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    if not isinstance(content, dict):
        raise field_error(
            location, f"{content!r} is not an object", f"give {', '.join(properties)}"
        )
    values = {name: value for name, value in content.items() if value is not None}
    if not properties:  # tensors by name
        return values
    for name in content:
        if name not in properties:
            remedy = suggest(str(name), list(properties))
            raise field_error(_field_location(location, name), "unknown field", remedy)
    for name in schema.get("required", ()):
        if name not in values:
            raise field_error(
                _field_location(location, name), "missing", f"add {name} to {location}"
            )
    # The schema expresses "exactly one of" in two ways.
    exclusive = [name for option in schema.get("oneOf", ()) for name in option["required"]]
    exclusive = list(properties) if "maxProperties" in schema else exclusive
    if exclusive and len(values.keys() & exclusive) != 1:
        names = ", ".join(exclusive)
        raise field_error(location, f"needs exactly one of {names}", f"give one of {names}")
    return {
        name: _validate(values[name], _field_location(location, name), option)
        if name in values
        else option.get("default")
        for name, option in properties.items()
    }


def _validate_items(content: Any, location: str, schema: dict[str, Any]) -> list[Any]:
    min_items, max_items = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not isinstance(content, list) or not min_items <= len(content) <= max_items:
        count = f"{min_items}" if min_items == max_items else f"{min_items} or more"
        raise field_error(
            location, f"{content!r} is not a list of {count}", f"give a list of {count}"
        )
    inner_location = location.removeprefix(_ROOT)
    return [
        _validate(item, f"{inner_location}[{number}]", schema["items"])
        for number, item in enumerate(content)
    ]


def _check_text(content: Any, location: str, schema: dict[str, Any]) -> None:
    if not isinstance(content, str):
        raise field_error(location, f"{content!r} is not a string", "give a string")
    allowed = schema.get("enum") or [schema["const"]] if {"enum", "const"} & schema.keys() else []
    if allowed and content not in allowed:
        raise field_error(location, f"unknown: {content!r}", suggest(content, allowed))


def _check_number(content: Any, location: str, schema: dict[str, Any]) -> None:
    if not is_number(content):
        raise field_error(location, f"{content!r} is not a number", "give a number")
    if schema["type"] == "integer" and not isinstance(content, int):
        raise field_error(location, f"{content!r} is not a whole number", "give a whole number")
    for name, holds, words in _LIMITS:
        if name in schema and not holds(content, schema[name]):
            raise field_error(
                location, f"{content:g} is out of range", f"give {words} {schema[name]}"
            )
