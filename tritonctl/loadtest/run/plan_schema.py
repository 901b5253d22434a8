# SPDX-License-Identifier: Apache-2.0
"""The load plan's JSON schema, built from the project file's models.

Generators read plans with a copy of it and with classes that `make contracts` generates from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tritonctl.project.base import NotNegative, Positive, Strict
from tritonctl.project.json_schema import definitions
from tritonctl.project.scenario import Load, Protocol, RequestClass

SCHEMA = "tritonctl/loadplan/v1"


class PlanTls(Strict):
    """PEM files, and the server certificate's name if it differs from the endpoint's."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None


class PlanEndpoint(Strict):
    """The endpoint that receives the requests."""

    protocol: Protocol = "grpc"
    url: str = Field(description="HOST:PORT")
    tls: PlanTls | None = Field(None, description="gRPC only")
    api_key_file: Path | None = Field(None, description="its first line goes as x-api-key")


class PlanClass(RequestClass):
    """A class of requests of a plan, which may be written by hand."""

    name: str = "default"
    prompts: Path | None = Field(  # type: ignore[assignment]  # wider on purpose
        None, description="not needed where a trace brings every text"
    )


class TraceEntry(Strict):
    """A line of a trace: a recorded arrival. null: the request class's value."""

    at: NotNegative = Field(description="seconds")
    class_: str | None = Field(None, alias="class")
    max_tokens: Positive | None = None
    text_input: str | None = None


class LoadPlan(Load):
    """The plan that a generator carries out."""

    schema_: Literal["tritonctl/loadplan/v1"] = Field(alias="schema")
    endpoint: PlanEndpoint
    classes: list[PlanClass] = Field(description="drawn by weight", min_length=1)
    started_at: NotNegative | None = Field(
        None, description="seconds since the epoch: aligns workers; 0.2 s from now unless given"
    )


def plan_schema() -> dict[str, Any]:
    """Return the schemas of plans and trace lines by name."""
    return definitions(LoadPlan, TraceEntry)
