# SPDX-License-Identifier: Apache-2.0
"""The load plan's JSON schema, made of the project file's models; the generators check plans by it.

They read it from a file in their folder. After a change here or in the models, write it again:

    python -c "from tritonctl.project.json_schema import *
    from tritonctl.loadtest.run.plan_schema import *
    print(to_json(plan_schema()))" > loadtests/loadplan.schema.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tritonctl.project.base import NotNegative, Positive, Strict
from tritonctl.project.json_schema import definitions
from tritonctl.project.scenario import Load, Protocol, RequestClass

SCHEMA = "tritonctl/loadplan/v1"


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
    return definitions(LoadPlan, TraceEntry)
