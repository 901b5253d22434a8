# SPDX-License-Identifier: Apache-2.0
"""`response_format` as guided decoding: the engine restricts the model to matching text.

An engine without guides lacks their tensors, so Triton refuses the request and names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, StringConstraints

from tritonctl.frontend.bodies import Body
from tritonctl.frontend.errors import ApiError
from tritonctl.protocol.generation import SamplingParameters

MAX_GUIDE_BYTES = 65_536  # the engines'
GUIDE_TENSORS = ("guided_decoding_guide_type", "guided_decoding_guide")
_KIND = "json_schema"
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class TextFormat(Body):
    """Text without restrictions."""

    type: Literal["text"]


class ObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


SchemaName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class NamedSchema(Body):
    """A JSON schema. The answer follows it, `strict` or not."""

    name: SchemaName
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class SchemaFormat(Body):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


@dataclass(frozen=True)
class AnswerGuide:
    """The JSON schema of an answer."""

    schema: Mapping[str, Any]
    field: str  # the request's field that sets the guide


def guide_of(response_format: ResponseFormat | None) -> AnswerGuide | None:
    """Return the guide of a `response_format`; None for unrestricted text."""
    if response_format is None or isinstance(response_format, TextFormat):
        return None
    schema = (
        ANY_OBJECT
        if isinstance(response_format, ObjectFormat)
        else response_format.json_schema.schema_
    )
    return AnswerGuide(schema, "response_format")


def with_guide(sampling: SamplingParameters, guide: AnswerGuide) -> SamplingParameters:
    """Add a guide to the sampling parameters. Raises ApiError if it is too long."""
    text = orjson.dumps(guide.schema)
    if len(text) > MAX_GUIDE_BYTES:
        raise ApiError(
            400,
            f"the JSON schema of `{guide.field}` has {len(text)} bytes, at most "
            f"{MAX_GUIDE_BYTES} are possible",
            code="invalid_value",
            param=guide.field,
        )
    return replace(
        sampling, guided_decoding_guide_type=_KIND, guided_decoding_guide=text.decode("utf-8")
    )
