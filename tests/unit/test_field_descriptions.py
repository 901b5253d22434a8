# SPDX-License-Identifier: Apache-2.0
"""Every field of the project file says what it is: `tritonctl schema` is what editors show."""

from __future__ import annotations

from typing import Any

from tritonctl.project.schema import Project


def _fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections = {"Project": schema, **schema["$defs"]}
    return {
        f"{section}.{name}": field
        for section, content in sections.items()
        for name, field in content.get("properties", {}).items()
    }


def test_every_field_has_a_description() -> None:
    """Also those that only name another section."""
    fields = _fields(Project.model_json_schema(by_alias=True))
    assert len(fields) > 150
    assert [name for name, field in fields.items() if not field.get("description")] == []
