# SPDX-License-Identifier: Apache-2.0
"""GET /openapi.json: what is accepted, made from the models that accept it."""

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
# By status: when a client gets it.
_ERRORS = {
    "400": "a field that is wrong, unknown or not supported; `param` names it",
    "401": "no key, or one that no tenant has",
    "404": "no such model",
    "408": "the body did not come in time",
    "413": "the body is too long",
    "415": "the body is not JSON",
    "429": "too many requests; `retry-after` says when to come again",
    "500": "the server failed",
    "503": "the model's server does not answer; `retry-after` says when to come again",
}


@dataclass(frozen=True)
class Operation:
    """A route. `body`: of its request. `events`: it may answer by server-sent events."""

    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    events: bool = False


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The description, OpenAPI 3.1."""
    listed = list(operations)
    bodies = [one.body for one in listed if one.body is not None]
    _, schema = models_json_schema(
        [(body, "validation") for body in dict.fromkeys(bodies)], ref_template=_REFERENCE
    )
    paths: dict[str, Any] = {}
    for one in listed:
        paths.setdefault(one.path.replace(":path", ""), {})[one.method.lower()] = _operation(one)
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


def _operation(one: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {_JSON: {"schema": {"type": "object"}}}
    if one.events:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    errors = {
        status: {
            "description": text,
            "content": {_JSON: {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
        }
        for status, text in _ERRORS.items()
    }
    operation: dict[str, Any] = {
        "summary": one.summary,
        "responses": {"200": {"description": "the answer", "content": content}, **errors},
    }
    if "{" in one.path:
        name = one.path.partition("{")[2].partition(":")[0].rstrip("}")
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if one.body is not None:
        reference = {"$ref": _REFERENCE.format(model=one.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": reference}}}
    return operation
