# SPDX-License-Identifier: Apache-2.0
"""Reads the build request and checks it against request.schema.json. Standard library only.

The schema and request_types.py are generated from the host's models. builders/README.md describes
the request. Each builder checks its own precisions, options and limits.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError, did_you_mean, read_json_object
from buildlib.request_types import CLASSES, BuilderRequest

_FILE = Path(__file__).with_name("request.schema.json")
_DEFINITIONS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))["$defs"]
SCHEMA = _DEFINITIONS["BuildRequest"]["properties"]["schema"]["const"]
_SAME_RELEASE = "Use a tritonctl and a builder of the same release."
# Keys of the request whose place in tritonctl.yaml differs.
_PLACES = {
    "limits": "engine",
    "calibration": "engine.calibration",
    "options": "engine.options",
    "target": "engine.target",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
}


def read_request(path: Path) -> BuilderRequest:
    """Read the request in the JSON file `path`.

    Raises:
        BuildError: a key is missing, unknown or malformed.
    """
    raw = read_json_object(path, remedy="Run the build through tritonctl, which writes this file.")
    if raw.get("schema") != SCHEMA:
        schema = raw.get("schema")
        raise BuildError(f"{path}: schema is {schema!r}, expected {SCHEMA!r}", remedy=_SAME_RELEASE)
    del raw["schema"]
    request: BuilderRequest = _read_object(raw, "BuildRequest", "the build request")
    return request


def check_keys(
    raw: Any, allowed: Sequence[str], place: str, *, required: Sequence[str] = ()
) -> None:
    """Raise BuildError unless `raw` is an object with `allowed` keys and all `required` ones."""
    if not isinstance(raw, dict):
        problem = f"{place} must be a JSON object, found {raw!r}"
        raise BuildError(problem, remedy=_SAME_RELEASE)
    for key in raw:
        if key not in allowed:
            raise BuildError(
                f"{place} has the unknown key {key!r}{did_you_mean(key, allowed)}",
                remedy=f"Use only: {', '.join(allowed) or 'nothing'}.",
            )
    for key in required:
        if raw.get(key) is None:
            raise BuildError(f"{place} lacks the key {key!r}", remedy=_SAME_RELEASE)


def _read_object(raw: Any, definition: str, place: str) -> Any:
    """Return an object of the request as its class. null equals a missing key."""
    schema = _DEFINITIONS[definition]
    properties = schema["properties"]
    check_keys(raw, tuple(properties), place, required=schema.get("required", ()))
    is_root = definition == "BuildRequest"
    values = {
        key: _read_value(
            value, properties[key], _PLACES.get(key, key) if is_root else f"{place}.{key}"
        )
        for key, value in raw.items()
        if value is not None
    }
    return CLASSES[definition](**values)


def _read_value(value: Any, schema: dict[str, Any], place: str) -> Any:
    if "$ref" in schema:
        return _read_object(value, schema["$ref"].rpartition("/")[2], place)
    kind, allowed = schema["type"], schema.get("enum")
    is_valid = isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")
    if is_valid and "minimum" in schema:
        is_valid = schema["minimum"] <= value <= schema.get("maximum", value)
    if not is_valid or (allowed and value not in allowed):
        expectation = _expectation(schema)
        raise BuildError(
            f"{place} is {value!r}, expected {expectation}",
            remedy=f"Set {place} to {expectation}, or leave it out.",
        )
    return Path(value) if schema.get("format") == "path" else value


def _expectation(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "integer":
        return f"a whole number of at least {schema['minimum']}"
    if schema["type"] == "number":
        return f"a fraction from {schema['minimum']} to {schema['maximum']}"
    return {"string": "text", "boolean": "true or false", "object": "a JSON object"}[schema["type"]]
