# SPDX-License-Identifier: Apache-2.0
"""The load plan's JSON schema, made of the project file's models; the generators check plans by it.

They read it from a file of their own folder. After a change here or in the models, write it anew:

    python -c "from tritonctl.loadtest.run.plan_schema import *; print(to_json(plan_schema()))" \
        > loadtests/loadplan.schema.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import models_json_schema

from tritonctl.project.base import NotNegative, Positive, Strict
from tritonctl.project.scenario import Load, Protocol, RequestClass

SCHEMA = "tritonctl/loadplan/v1"
_LEFT_OUT = ("title", "format")
_LINE = 96


class Tls(Strict):
    """PEM files, and the name in the server's certificate where it is not that of the endpoint."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None


class PlanEndpoint(Strict):
    """Where requests go."""

    protocol: Protocol = "grpc"
    url: str = Field(description="HOST:PORT")
    tls: Tls | None = Field(None, description="gRPC only")
    api_key_file: Path | None = Field(None, description="its first line goes as x-api-key")


class PlanClass(RequestClass):
    """A class of requests of a plan, which may be written by hand."""

    name: str = "default"
    prompts: Path | None = Field(  # type: ignore[assignment]  # wider on purpose
        None, description="not needed where a trace brings every text"
    )


class TraceEntry(Strict):
    """A line of a trace."""

    at: NotNegative = Field(description="seconds")
    class_: str | None = Field(None, alias="class")
    max_tokens: Positive | None = None
    text_input: str | None = None


class LoadPlan(Load):
    """What a generator carries out."""

    schema_: Literal["tritonctl/loadplan/v1"] = Field(alias="schema")
    endpoint: PlanEndpoint
    classes: list[PlanClass] = Field(description="drawn by weight", min_length=1)
    started_at: NotNegative | None = Field(
        None, description="seconds since the epoch: aligns workers; 0.2 s from now unless given"
    )


def plan_schema() -> dict[str, Any]:
    """The schemas of plans and of lines of traces, by name."""
    _, schema = models_json_schema(
        [(LoadPlan, "validation"), (TraceEntry, "validation")], by_alias=True
    )
    definitions: dict[str, Any] = _plain(schema)["$defs"]
    return {"$defs": definitions}


def to_json(value: Any, indent: str = "") -> str:
    """As it stands in the file: what fits on a line is on one."""
    line = json.dumps(value)
    if not isinstance(value, dict) or len(indent) + len(line) <= _LINE:
        return line
    deeper = indent + "  "
    fields = [f"{deeper}{json.dumps(name)}: {to_json(one, deeper)}" for name, one in value.items()]
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}"


def _plain(schema: Any) -> Any:
    """Without titles, and without null: in a plan that is the same as leaving a field out."""
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
