# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the project file's schema: strictness, number types, the SLO."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NotNegativeInteger = Annotated[int, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
# In lower case, as HTTP/2 and gRPC send it.
HeaderName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}[a-z0-9]$")]


class Frozen(BaseModel):
    """An immutable record without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Strict(Frozen):
    """A section of the project file, without type conversions."""

    # YAML has types, so `max_batch_size: "32"` is a mistake worth reporting.
    model_config = ConfigDict(strict=True)


class Slo(Strict):
    """The service's targets."""

    ttft_p99_ms: Annotated[float, Field(gt=0)] | None = Field(
        None, description="time to the first token, P99, milliseconds"
    )
    itl_p99_ms: Annotated[float, Field(gt=0)] | None = Field(
        None, description="time between two tokens, P99, milliseconds"
    )
    e2e_p99_ms: Annotated[float, Field(gt=0)] | None = Field(
        None, description="time to the end of the answer, P99, milliseconds"
    )
    error_rate: Share | None = Field(None, description="maximum share of failed requests")
