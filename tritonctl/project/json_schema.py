# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of models, as files for programs that cannot import tritonctl."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_LINE = 96


def definitions(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the schemas of models and of all models that they refer to, by name."""
    _, schema = models_json_schema([(model, "validation") for model in models], by_alias=True)
    return {"$defs": _plain(schema)["$defs"]}


def to_json(value: Any, indent: str = "") -> str:
    """Format a value for the file; an object that fits on a line stays on one line."""
    line = json.dumps(value)
    if not isinstance(value, dict) or len(indent) + len(line) <= _LINE:
        return line
    deeper = indent + "  "
    fields = [
        f"{deeper}{json.dumps(name)}: {to_json(item, deeper)}" for name, item in value.items()
    ]
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}"


def _plain(schema: Any) -> Any:
    """Remove titles and null: in these files null equals a missing field."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        name: _plain(value)
        for name, value in schema.items()
        if name != "title" and not (name == "default" and value is None)
    }
    alternatives = [
        alternative for alternative in plain.pop("anyOf", ()) if alternative != {"type": "null"}
    ]
    return plain | alternatives[0] if alternatives else plain
