# SPDX-License-Identifier: Apache-2.0
"""GET /openapi.json: the API's description, generated from the request models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tritonctl.host.version import __version__

_REFERENCE = "#/components/schemas/{model}"
_JSON = "application/json"
_ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
# When a client gets each status.
_ERRORS = {
    "400": "a field that is wrong, unknown or not supported; `param` names it",
    "401": "the key is missing or unknown",
    "404": "no such model",
    "408": "the body did not come in time",
    "413": "the body is too long",
    "415": "the body is not JSON",
    "417": "`expect` is not `100-continue`",
    "429": "too many requests; retry after `retry-after` seconds",
    "500": "the server failed",
    "503": "the model's server does not answer; retry after `retry-after` seconds",
}


@dataclass(frozen=True)
class Operation:
    """A documented route."""

    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None  # of its request
    events: bool = False  # whether it may answer with server-sent events


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Describe the operations as an OpenAPI 3.1 document."""
    listed = list(operations)
    bodies = [operation.body for operation in listed if operation.body is not None]
    _, schema = models_json_schema(
        [(body, "validation") for body in dict.fromkeys(bodies)], ref_template=_REFERENCE
    )
    paths: dict[str, Any] = {}
    for operation in listed:
        paths.setdefault(operation.path.replace(":path", ""), {})[operation.method.lower()] = (
            _describe(operation)
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tritonctl frontend",
            "version": __version__,
            "description": "The OpenAI API over the public models of a Triton server",
        },
        "paths": paths,
        "components": {"schemas": {**schema.get("$defs", {}), "Error": _ERROR}},
    }


def _describe(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {_JSON: {"schema": {"type": "object"}}}
    if operation.events:
        content["text/event-stream"] = {}  # OpenAPI 3.1 cannot describe single events
    errors = {
        status: {
            "description": text,
            "content": {_JSON: {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
        }
        for status, text in _ERRORS.items()
    }
    description: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": {"description": "the answer", "content": content}, **errors},
    }
    if "{" in operation.path:
        name = operation.path.partition("{")[2].partition(":")[0].rstrip("}")
        description["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if operation.body is not None:
        reference = {"$ref": _REFERENCE.format(model=operation.body.__name__)}
        description["requestBody"] = {"required": True, "content": {_JSON: {"schema": reference}}}
    return description
