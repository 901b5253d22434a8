# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of models, as files for programs that check by them and cannot import tritonctl."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_LEFT_OUT = ("title", "format")
_LINE = 96


def definitions(*models: type[BaseModel]) -> dict[str, Any]:
    """The schemas of models, and of those that they refer to, by name."""
    _, schema = models_json_schema([(model, "validation") for model in models], by_alias=True)
    return {"$defs": _plain(schema)["$defs"]}


def to_json(value: Any, indent: str = "") -> str:
    """As it stands in the file: what fits on a line is on one."""
    line = json.dumps(value)
    if not isinstance(value, dict) or len(indent) + len(line) <= _LINE:
        return line
    deeper = indent + "  "
    fields = [f"{deeper}{json.dumps(name)}: {to_json(one, deeper)}" for name, one in value.items()]
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}"


def _plain(schema: Any) -> Any:
    """Without titles, and without null: in these files that is the same as leaving a field out."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        name: _plain(value)
        for name, value in schema.items()
        if name not in _LEFT_OUT and not (name == "default" and value is None)
    }
    alternatives = [one for one in plain.pop("anyOf", ()) if one != {"type": "null"}]
    return plain | alternatives[0] if alternatives else plain
