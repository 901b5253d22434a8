# SPDX-License-Identifier: Apache-2.0
"""Every field of the project file says what it is: `tritonctl schema` is what editors show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonctl.project.pages import page
from tritonctl.project.schema import Project

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tritonctl-yaml.md"


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


def test_the_page_is_that_of_the_models() -> None:
    """`make reference` has been run since a field was changed."""
    assert PAGE.read_text(encoding="utf-8") == page(), "make reference"


def test_what_is_on_the_page() -> None:
    """Types lead to their sections; bounds, defaults and what is required are told."""
    text = page()
    assert "| `grpc_port` | integer ≥ 0, ≤ 65535 | `8001` |" in text
    assert "| `schema` | `tritonctl/v1` | **required** |" in text
    assert "| `profiles` | anything by name |" in text
    assert '| `mode` | `embedded` or `docker` | `"embedded"` |' in text
