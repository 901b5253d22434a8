# SPDX-License-Identifier: Apache-2.0
"""Generates docs/reference/tritonctl-yaml.md from the project file's models (`make reference`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritonctl.project.schema import Project

_HEAD = """\
<!-- Made by `make reference` from the project file's models: edits are lost. -->

# `tritonctl.yaml`

Every section and field. `tritonctl schema` prints the same as a JSON schema, for editors. A flag
goes before the environment (`TRITONCTL_SERVER__GRPC_PORT`), a profile, the file and the default.
"""
# Title of the first section; the other titles are the names of their models.
_ROOT_TITLE = "The whole file"


def page() -> str:
    """Return the page as Markdown."""
    schema = Project.model_json_schema(by_alias=True)
    sections = {_ROOT_TITLE: schema, **schema["$defs"]}
    return "\n".join([_HEAD, *(_section(name, content) for name, content in sections.items())])


def _section(name: str, content: dict[str, Any]) -> str:
    required = content.get("required", ())
    rows = [
        f"| `{field}` | {_type(about)} | {_default(about, field in required)} "
        f"| {_cell(about['description'])} |"
        for field, about in content.get("properties", {}).items()
    ]
    head = ["| field | type | default | is |", "|---|---|---|---|"]
    return "\n".join([f"## {name}\n", content["description"], "", *head, *rows, ""])


def _type(about: dict[str, Any]) -> str:
    return _cell(" or ".join(dict.fromkeys(_kinds(about)))) or "any"


def _kinds(about: dict[str, Any]) -> Iterator[str]:
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        yield f"[{name}](#{name.lower()})"
    elif "const" in about or "enum" in about:
        yield from (f"`{value}`" for value in about.get("enum", [about.get("const")]))
    elif "anyOf" in about or "oneOf" in about:
        for alternative in about.get("anyOf") or about["oneOf"]:
            if alternative != {"type": "null"}:
                yield from _kinds(alternative)
    elif about.get("type") == "array":
        yield f"list of {' or '.join(_kinds(about.get('items', {}))) or 'any'}"
    elif about.get("type") == "object":
        values = [*about.get("patternProperties", {}).values(), about.get("additionalProperties")]
        inside = [kind for value in values if isinstance(value, dict) for kind in _kinds(value)]
        # Free content nested one level down.
        free = all(kind.endswith(" by name") for kind in inside)
        yield f"{'anything' if free else ' or '.join(inside)} by name"
    elif "type" in about:
        yield f"{about.get('format') or about['type']}{_bounds(about)}"


def _bounds(about: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {about[key]:g}" for key, sign in signs.items() if key in about]
    return f" {', '.join(bounds)}" if bounds else ""


def _default(about: dict[str, Any], required: bool) -> str:
    if required:
        return "**required**"
    value = about.get("default")
    if value is None or isinstance(value, dict | list):
        return ""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
