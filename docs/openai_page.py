# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/openai.md, made of the frontend's request models: `make reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tritonctl.frontend.app import OPERATIONS
from tritonctl.frontend.metrics import REASONS
from tritonctl.frontend.openapi import document

_HEAD = """\
<!-- Made by `make reference` from docs/openai_page.py and tritonctl/frontend/: edits are lost. -->

# The OpenAI API

What `tritonctl frontend` and `frontend:` in `tritonctl.yaml` serve. To use it:
[Point your OpenAI client here](../how-to/openai-api.md). The same as OpenAPI 3.1, with types and
bounds: `GET /openapi.json`.

A field that is not listed, or one with a value that the model or its engine cannot have, is an
error in OpenAI's shape whose `param` names it. Nothing is ignored silently.

## Endpoints

| method | path | does |
|---|---|---|
"""
_OTHERS = """\
| GET | `/metrics` | what Prometheus reads: [Metrics](metrics.md#of-the-frontend) |
| GET | `/openapi.json` | this page as OpenAPI 3.1 |
"""
_ERRORS = """
## Errors

`{{"error": {{"message", "type", "param", "code"}}}}`, in a stream that has begun as its last event.

| status | when |
|---|---|
{statuses}

Metrics and the access log count them by reason: {reasons}.

## Headers

| header | of | is |
|---|---|---|
| `authorization: Bearer KEY`, `x-api-key: KEY` | requests | the tenant's key |
| `x-request-id` | both | a client's own is kept; it is in the access log |
| `traceparent` | requests | its trace; through a gateway only with `gateway.trust_traces` |
| `x-ratelimit-{{limit,remaining,reset}}-{{requests,tokens}}` | responses | the tenant's budgets |
| `retry-after` | responses 429 and 503 | seconds |
| `x-tritonctl-release` | responses | whose answer it is: the number of the release |
"""


def page() -> str:
    """The page: endpoints, the fields of each body, errors, headers."""
    described = document(OPERATIONS)
    schemas = described["components"]["schemas"]
    lines = [_HEAD]
    bodies: dict[str, list[str]] = {}
    for one in OPERATIONS:
        path = one.path.replace(":path", "")
        lines.append(f"| {one.method} | `{path}` | {one.summary} |\n")
        if one.body is not None:
            bodies.setdefault(one.body.__name__, []).append(f"`{path}`")
    lines.append(_OTHERS)
    for name, paths in bodies.items():
        lines.append(
            f"\n## Fields of {', '.join(paths)}\n\n| field | type | does |\n|---|---|---|\n"
        )
        lines += _rows(schemas[name], schemas)
    operation = next(iter(described["paths"].values()))["post"]
    statuses = "\n".join(
        f"| {status} | {response['description']} |"
        for status, response in operation["responses"].items()
        if status != "200"
    )
    lines.append(_ERRORS.format(statuses=statuses, reasons=", ".join(f"`{r}`" for r in REASONS)))
    return "".join(lines)


def _rows(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        needed = ", required" if name in required else ""
        text = field.get("description", "").replace("|", "\\|").replace("\n", " ")
        yield f"| `{name}` | {_type(field, schemas)}{needed} | {text} |\n"


def _type(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """In a few words."""
    if "$ref" in field:
        return _type(schemas[field["$ref"].rsplit("/", 1)[1]], schemas)
    if "anyOf" in field or "oneOf" in field:
        kinds = [_type(each, schemas) for each in field.get("anyOf", field.get("oneOf", ()))]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null")) or "null"
    if "const" in field or "enum" in field:
        values = field.get("enum", [field.get("const")])
        return " or ".join(f"`{value if value != '' else repr('')}`" for value in values).lower()
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), schemas)}"
    bounds = [
        f"{sign} {field[key]:g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in field and abs(field[key]) < (1 << 31) - 1
    ]
    return " ".join([field.get("type", "any"), *bounds])


if __name__ == "__main__":
    sys.stdout.write(page())
