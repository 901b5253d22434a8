# SPDX-License-Identifier: Apache-2.0
"""What a client is told of its limits: OpenAI's headers, on every answer, and OpenAI's error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonctl.frontend.budgets.ledger import Claim, Standing
from tritonctl.frontend.budgets.tenant import Tenant

_WORDS = {"tokens": "tokens per min (TPM)", "requests": "requests per min (RPM)"}


@dataclass(frozen=True)
class Refusal:
    """An answer in OpenAI's shape. `reason`: for metrics, one word."""

    status: int
    type: str
    code: str
    message: str
    reason: str
    headers: Mapping[str, str] = field(default_factory=dict)


STRANGER = Refusal(
    401,
    "invalid_request_error",
    "invalid_api_key",
    "Incorrect API key provided. Send yours as `authorization: Bearer KEY`.",
    "unknown_key",
    {"www-authenticate": "Bearer"},
)
UNREACHABLE = Refusal(
    503,
    "server_error",
    "budgets_unavailable",
    "The store of token budgets cannot be reached. Please retry your request.",
    "budgets_unavailable",
    {"retry-after": "1"},
)


def rate_limits(tenant: Tenant, standing: Standing) -> dict[str, str]:
    """`x-ratelimit-*` of those limits that the tenant has. What is held does not remain."""
    headers = {}
    parts = (
        ("requests", tenant.requests_per_minute, standing.requests, standing.reset_requests),
        ("tokens", tenant.tokens_per_minute, standing.used + standing.held, standing.reset_tokens),
    )
    for what, most, spent, reset in parts:
        if most is not None:
            headers[f"x-ratelimit-limit-{what}"] = str(most)
            headers[f"x-ratelimit-remaining-{what}"] = str(max(0, most - spent))
            headers[f"x-ratelimit-reset-{what}"] = duration(reset)
    return headers


def over_budget(claim: Claim, standing: Standing) -> Refusal:
    """Status 429: which limit, what is used of it, and when to come again, if ever."""
    tenant, over = claim.tenant, standing.over
    headers = rate_limits(tenant, standing)
    if over == "size":
        # No waiting helps, so that clients must not retry: OpenAI's do by themselves.
        return Refusal(
            429,
            "tokens",
            "rate_limit_exceeded",
            f"Request too large on tokens per min (TPM): Limit {tenant.tokens_per_minute}, "
            f"Requested {claim.reserved}. The prompt and `max_tokens` of all choices must fit; "
            "ask for fewer.",
            "size",
            {**headers, "x-should-retry": "false"},
        )
    headers["retry-after"] = str(max(1, math.ceil(standing.retry_after)))
    again = f"Please try again in {duration(standing.retry_after)}."
    if over == "concurrency":
        message = (
            f"Rate limit reached on requests in flight: Limit {tenant.concurrency}, "
            f"In flight {standing.under_way}. {again}"
        )
        return Refusal(429, "requests", "rate_limit_exceeded", message, "concurrency", headers)
    if over == "tokens":
        most, spent, asked = tenant.tokens_per_minute, standing.used + standing.held, claim.reserved
    else:
        over, most, spent, asked = "requests", tenant.requests_per_minute, standing.requests, 1
    message = (
        f"Rate limit reached on {_WORDS[over]}: Limit {most}, Used {spent}, "
        f"Requested {asked}. {again}"
    )
    return Refusal(429, over, "rate_limit_exceeded", message, over, headers)


def duration(seconds: float) -> str:
    """As OpenAI writes it, rounded up to milliseconds: 120ms, 1.5s, 1m0s."""
    milliseconds = math.ceil(round(seconds * 1000, 6))
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"
