# SPDX-License-Identifier: Apache-2.0
"""`response_format` as guided decoding: the engine leaves no other text to the model.

An engine without guides has no tensors for them, and Triton refuses the request by their name.
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

MOST_GUIDE_BYTES = 65_536  # the engines'
GUIDE_TENSORS = ("guided_decoding_guide_type", "guided_decoding_guide")
_KIND = "json_schema"
_ANY_OBJECT = {"type": "object"}


class TextFormat(Body):
    """Free text."""

    type: Literal["text"]


class ObjectFormat(Body):
    """Some JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A JSON schema. The answer follows it, `strict` or not."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class SchemaFormat(Body):
    """JSON by a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


@dataclass(frozen=True)
class Guide:
    """The JSON schema of an answer. `field`: the field of the request that asks for it."""

    schema: Mapping[str, Any]
    field: str


def guide_of(asked: ResponseFormat | None) -> Guide | None:
    """The guide of a `response_format`; None for free text."""
    if asked is None or isinstance(asked, TextFormat):
        return None
    schema = _ANY_OBJECT if isinstance(asked, ObjectFormat) else asked.json_schema.schema_
    return Guide(schema, "response_format")


def guided(sampling: SamplingParameters, guide: Guide | None) -> SamplingParameters:
    """The sampling that follows a guide. Raises ApiError for one that is too long."""
    if guide is None:
        return sampling
    text = orjson.dumps(guide.schema)
    if len(text) > MOST_GUIDE_BYTES:
        raise ApiError(
            400,
            f"the JSON schema of `{guide.field}` has {len(text)} bytes, at most "
            f"{MOST_GUIDE_BYTES} are possible",
            code="invalid_value",
            param=guide.field,
        )
    return replace(
        sampling, guided_decoding_guide_type=_KIND, guided_decoding_guide=text.decode("utf-8")
    )
